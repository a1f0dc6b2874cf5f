"""How others find this broker: its own address, and its registration with the name servers."""

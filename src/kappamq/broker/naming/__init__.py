"""How clients and brokers find this broker: its address, and its registration with the name servers."""

"""What a user of the Python client pays: CPU of the client per message, the broker on another core."""

"""The same clients for programs without an event loop: each call is handed to one loop in a daemon thread."""

"""The same clients for programs without an event loop: each call runs on one loop in a daemon thread."""

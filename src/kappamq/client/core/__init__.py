"""What all clients of a process share: connections, routes, heartbeats, checked arguments and settings.

Stands on `net` and `protocol`; every other room of the client stands on it.
"""

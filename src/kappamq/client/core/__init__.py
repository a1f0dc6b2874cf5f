"""Shared by all clients of a process: connections, routes, heartbeats, validation of arguments and settings.

Builds on `net` and `protocol`; every other package of the client builds on it.
"""

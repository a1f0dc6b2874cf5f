"""Sockets: the only package that uses them. Transfers bytes and enforces limits, but does not interpret the bytes.

`serving` accepts connections, `requests` turns frames into calls of handlers, `channel` is the outgoing side. Builds on `protocol`.
"""

"""Sockets: the only folder that knows them. Bytes in, bytes out, limits; what the bytes mean is for others.

`serving` accepts connections, `requests` turns frames into calls of handlers, `channel` is the outgoing side. Stands on `protocol`.
"""

"""Copies of the log on other brokers: what `kappamq.replication` decides, over sockets.

A master serves followers on the port for copies (`serving`, one `link` each); a slave follows its master (`following`). `copies` is what
the rest of the broker knows of both. May touch store, log writer, metadata and workers; `broker.broker` builds it, the role of the node
begins and ends with what it says.
"""

"""Copies of the log on other brokers: carries out the decisions of `kappamq.replication`, over sockets.

A master serves followers on the port for copies (`serving`, one `link` each); a slave follows its master (`following`). `copies` is their
interface to the rest of the broker. May use store, log writer, metadata and workers; `broker.broker` builds it, and it decides when the
role of the node begins and ends.
"""

"""The format `kappamq.store`: the commit log of a data directory as a table."""

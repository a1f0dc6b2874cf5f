"""Damage of our log below `confirmed`, mended with the bytes of another copy.

`mender` decides what is asked of whom and writes it in its place, `fetching` asks, `giving` answers; what they say is
`replication/ranges.py`, and what is good enough to be written `store/log/mending.py`. May touch what `broker.copies` may.
"""

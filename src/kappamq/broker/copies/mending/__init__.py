"""Repairs damage of our log below `confirmed` with the bytes of another copy.

`mender` decides what to request from which copy and writes it in place, `fetching` requests, `giving` answers; their messages are in
`replication/ranges.py`, the checks before a write in `store/log/mending.py`. May use what `broker.copies` may.
"""

"""A member of a Raft group: carries out the decisions of `kappamq.raft` with this broker's store, disk and connections.

`group` drives the node; `peers` connects the members; `member_files` are the vote and the terms on disk, `term_records` the terms in the
log; `reading` reads the bytes for others; `operations` serves operators. May use what `broker.copies` may.
"""

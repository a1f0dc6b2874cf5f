"""A member of a Raft group: what `kappamq.raft` decides is done here, with this broker's store, disk and connections.

`group` drives the node; `peers` connects the members; `member_files` are the vote and the terms on disk, `term_records` the terms in the
log; `reading` is what is sent to others; `operations` is what operators ask of a group. May touch what `broker.copies` may.
"""

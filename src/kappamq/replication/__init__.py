"""How a log is copied: pure: offsets and bytes in, effects out; no sockets, no records, no clock.

`vote_file` and `terms_file` are the bytes of the two small files that a member of a Raft group keeps beside its log.
"""

"""How the log of one broker gets to others: the bytes between them, how much each was sent, and what members of a Raft group keep
on disk. Pure: offsets and bytes in, effects out; no sockets, no files, no clock.

A follower reports the offset up to which it has the log; its leader streams the bytes behind that. Asynchronous copies, synchronous
copies and Raft groups differ in who waits for the reports, and not in the bytes.

    frames        messages on a connection between two of our brokers
    greeting      what both say of themselves first, and the reasons not to go on
    seeding       what a follower gets whose log the leader's does not continue any more
    feed          what one follower was sent and has reported
    gathering     what waits for a follower's report, so that many turns share one piece of the log
    held          how many followers have how much: what synchronous copies wait for
    vote_file     what a member of a group has promised, and who it is
    terms_file    which term wrote which bytes of the log

May use `raft`, `store` and `protocol`; `broker.copies` does the input and output.
"""

"""How the log of one broker gets to others: the messages between them, how much each was sent, and what members of a Raft group keep
on disk. Pure: offsets and bytes in, effects out; no sockets, no files, no clock.

A follower reports the offset up to which it has the log; its leader streams the bytes behind that. Asynchronous copies, synchronous
copies and Raft groups send the same bytes; they differ in who waits for the reports.

    frames        messages on a connection between two of our brokers
    greeting      what both brokers say first, and the reasons to refuse a peer
    seeding       what a follower gets if its log cannot be continued by its leader's
    feed          what one follower was sent and has reported
    gathering     data held back until a follower's next report, so that many turns share one piece of the log
    held          how many followers have how much of the log: what synchronous copies wait for
    vote_file     a member's ballot and identity
    terms_file    which term wrote which bytes of the log

May use `raft`, `store` and `protocol`; `broker.copies` does the input and output.
"""

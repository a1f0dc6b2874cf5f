"""How the log of one broker gets to others: the bytes between them, and who has been sent how much. No sockets, no files, no clock.

A follower reports the offset up to which it has the log; its leader streams the bytes behind that. Asynchronous copies, synchronous
copies and Raft groups differ in who waits for the reports, and not in the stream.

    frames     messages on a connection between two of our brokers
    greeting   what both say of themselves first, and the reasons not to go on
    feed       what one follower was sent and has reported
    held       how many followers have how much: what synchronous copies wait for

May use `store` and `protocol`; `broker.copies` does the input and output.
"""

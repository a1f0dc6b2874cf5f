"""What consumers get from copies: which broker to read old messages from, and offsets that were committed where nobody writes.

May touch tables, store and the kernel's settings; it is told who leads. Called by `Copies`, several times a second.
"""

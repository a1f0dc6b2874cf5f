"""What consumers get from copies: which broker to read old messages from, and offsets that were committed to a node that does not write.

May use tables, store and the kernel's settings; callers tell it which node leads. Called by `Copies`, several times a second.
"""

"""Storing messages: the slow path of sends, and everything the broker stores by itself.

`send` checks requests the kernel did not take, `appending` turns drafts into records, `gate` decides whether anything may be stored at
all, `replies` serves request-reply. Touches the log and the topic table. Called by `requests`, and by every room that appends.
"""

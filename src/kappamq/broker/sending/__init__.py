"""Storing messages: the slow path of sends, and everything the broker stores by itself.

`send_requests` receives sends that the kernel did not take, and answers them; `send` checks and stores them, and knows no protocol;
`appending` turns drafts into records, `gate` decides whether anything may be stored at all, `replies` serves request-reply. Touches the
log and the topic table. Called by `requests`, and by every room that appends.
"""

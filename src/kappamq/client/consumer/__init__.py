"""Consuming: the consumers an application makes, and what happens to a message between pull and acknowledgement.

Uses `group` for its share of the queues and `pulling` for their messages.
"""

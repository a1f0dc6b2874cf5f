"""Consumers: the classes an application creates, and the life of a message between pull and acknowledgement.

Uses `group` for queue assignment and `pulling` to fetch messages.
"""

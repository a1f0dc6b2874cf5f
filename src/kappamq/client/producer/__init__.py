"""Sending: single messages, batches, transactions, requests with a reply, recalls.

Uses `core` for routes and connections. Called by applications, and by `blocking` on behalf of programs without an event loop.
"""

"""Pulling: one request and its answer, the loop that pulls a queue, and the messages held of a queue."""

"""Pulls: one request and its answer, the loop that pulls a queue, and what is held of a queue."""

"""Consume queues: from (topic, queue, offset) to a place in the log, and the repair of entries."""

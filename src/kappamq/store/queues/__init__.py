"""Consume queues: from (topic, queue, number) to a place in the log, and the repair of entries."""

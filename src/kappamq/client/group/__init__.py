"""Membership of a consumer group: joining, sharing queues, locks, and offsets."""

"""Membership of a consumer group: joining, queue assignment, queue locks, and offsets."""

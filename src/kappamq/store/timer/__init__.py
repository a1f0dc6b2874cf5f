"""RocketMQ's timer files: the wheel, the timer log and their checkpoint."""

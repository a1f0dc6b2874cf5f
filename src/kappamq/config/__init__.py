"""One frozen dataclass per part of the system, validated on creation; `apache.py` reads RocketMQ's properties."""

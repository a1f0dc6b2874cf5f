"""One frozen dataclass per part of the system, checked once at the door; `apache.py` reads RocketMQ's properties."""

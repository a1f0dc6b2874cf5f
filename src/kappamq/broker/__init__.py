"""The broker: one idea per file, wired together in broker.py."""

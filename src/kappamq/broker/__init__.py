"""The broker: one idea per file. broker.py builds the process-long objects, roles.py those that exist while this node may write."""

"""The broker: one idea per file. broker.py builds what lives as long as the process, roles.py what lives as long as this node may write."""

"""Figures of our own broker, of its limits and of its peers. `python -m benchmarks --help`; benchmarks/README.md has results."""

"""Shared by the commands: options, output, exit codes, times, connecting to a cluster, formatting messages."""

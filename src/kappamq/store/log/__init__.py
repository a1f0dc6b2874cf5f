"""The commit log: its files, its watermarks, and readers of its bytes."""

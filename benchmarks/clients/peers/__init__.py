"""The clients of others, each with its own server, doing what our client does: the same bodies, the same messages in flight."""

"""The key index: from a key to records."""

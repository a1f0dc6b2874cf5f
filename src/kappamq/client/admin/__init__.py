"""Administration: topics, brokers, groups, queries, dead letters, resizing."""

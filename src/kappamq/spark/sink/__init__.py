"""Writing rows to topics, as a batch or a stream."""

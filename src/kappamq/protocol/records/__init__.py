"""One stored message and its parts: record, batch, properties, tags, ids, compression, queue and index entries."""

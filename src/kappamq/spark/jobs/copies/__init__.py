"""Jobs that copy messages into a topic, each one once: `replay` from an archive or a range, `dedup` from a topic without its duplicates.

Both write batches of a scope of batch transactions (client/batches), so what was killed in the middle of a batch is done again and
nobody sees it twice. What a job has to know to do the same again lies in a folder of its own (`state`), whose random id owns the scope:
if the folder is lost, the scope belongs to a stranger, and nothing is written a second time.
"""

"""Jobs that copy messages into a topic, each one once: `replay` from an archive or a range, `dedup` from a topic without its duplicates.

Both write batches of a scope of batch transactions (client/batches), so a batch that was interrupted is done again and
no consumer sees it twice. The information needed to repeat it is in the job's folder (`state`), whose random id owns the scope:
if the folder is lost, the scope has another owner, and nothing is written a second time.
"""

"""Reading messages: pulls the kernel could not answer alone, long polls, cold reads, filters.

Uses queues, log pages and the tables of topics, groups and offsets; appends only consumer offsets. Called by `requests`, and
woken when queues grow.
"""

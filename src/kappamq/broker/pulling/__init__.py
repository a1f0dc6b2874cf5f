"""Reading messages: pulls the kernel could not answer alone, long polls, cold reads, filters.

Touches queues, log pages and the tables of topics, groups and offsets; appends nothing but consumer offsets. Called by `requests`, and
woken when queues grow.
"""

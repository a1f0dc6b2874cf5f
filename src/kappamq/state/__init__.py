"""The broker's tables: topics, groups, consumer offsets, resets, locks, filters.

Each is a fold over the metadata records of the log: a snapshot, and the records behind it. `metadata` writes and replays these records.
Touches the store; knows no connection and no request. Used by every room of the broker.
"""

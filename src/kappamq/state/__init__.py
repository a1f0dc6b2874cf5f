"""The broker's tables: topics, groups, consumer offsets, resets, locks, filters.

Each is a fold over the metadata records of the log: a snapshot, and the records behind it. `metadata` is the one
way to change one: it appends the record of a change and has the table apply it, and a start applies the records again.
Touches the store; knows no connection and no request. Used by every room of the broker.
"""

"""The broker's tables: topics, groups, consumer offsets, resets, locks, filters.

Each is a fold over the metadata records of the log: a snapshot plus the records behind it. `metadata` is the only way to change
one: it appends the record of a change and lets the table apply it; a start applies the records again.
Uses the store; knows no connections and no requests. Used by every room of the broker.
"""

"""Connected clients: heartbeats, group membership, conflicts between members, queue locks.

Uses the tables of groups, offsets and locks. Called by `requests`; other packages ask `registry` who is connected.
"""

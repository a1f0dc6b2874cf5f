"""Connected clients: heartbeats, group membership, conflicts between members, queue locks.

Touches the tables of groups, offsets and locks. Called by `requests`; other rooms ask `registry` who is connected.
"""

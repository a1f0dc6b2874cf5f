"""A copy whose log cannot be continued gets snapshots first, and then a log that begins where its leader's does.

A follower asks before its store is open (`asking`, with the directory in `files`); a master or the leader of a group gives
(`giving`). Their messages are in `kappamq.replication.seeding`.
"""

"""A copy whose log cannot be continued gets snapshots first, and then a log that begins where its leader's does.

The one who asks does so before its store is open (`asking`, with the directory in `files`); a master or the leader of a group gives
(`giving`). What they say is in `kappamq.replication.seeding`.
"""

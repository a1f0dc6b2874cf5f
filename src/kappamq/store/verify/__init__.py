"""Consistency checks of a store, for `kappamq store verify` and a running broker's scrub, and the repairs of what they find.

Every derived file (queues, key index, timer files, snapshots) is compared with what the commit log says it should contain.
"""

"""Whole brokers in one thread, from one seed: the real broker, its store, tables, kernel and connections, on a simulated machine.

`loop` is the event loop of one simulated process, `streams` are the connections between them, `memory_disk`, `crash_disk` and
`sim_disk` are the disk below `store.files.Files`, which loses and tears what was not synced, `virtual` replaces time and dice. A `machine`
runs one broker after another on its disk; `cluster` injects faults into a group of them (`settings` draws which) while `client` sends to
it, and `checkers` checks the invariants after every turn of every broker. A seed determines a history: `python -m kappamq.sim
--brokers --seed 4711` replays it.
"""

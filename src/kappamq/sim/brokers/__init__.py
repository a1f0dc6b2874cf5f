"""Whole brokers in one thread, from one seed: the real broker, its store, tables, kernel and connections, on a simulated machine.

`loop` is the event loop of one simulated process, `streams` are the connections between them, `memory_disk`, `crash_disk` and
`sim_disk` the disk below `store.files.Files`, which loses and tears what was not synced, `virtual` time and dice. A `machine` runs
broker after broker on its disk; `cluster` has a group of them befallen by faults (`settings` draws which) while `client` sends to it,
and `checkers` knows after every turn of every broker what must hold. A history is its seed: `python -m kappamq.sim --brokers --seed
4711` has it again.
"""

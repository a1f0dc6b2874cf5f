"""A whole group of brokers in one thread, from one seed: real cores on a simulated clock, network and disk.

`world` is time and dice, `network` and `disk` lose what real ones lose, `broker` is the driver that the contract of `kappamq.raft`
requires, `cluster` injects faults into a group (`settings` draws which), and `checkers` checks the invariants after every event. A
seed determines a history: `python -m kappamq.sim --seed 4711` replays it. `mutants` plants bugs to see whether they are found. Stands on
top of `raft`; the room `brokers`, where whole brokers replace the core, stands on top of `broker`. Used by tests, by `make sim`, and
by whoever changes the core or the store.
"""

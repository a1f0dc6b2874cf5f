"""A whole group of brokers in one thread, from one seed: real cores on a simulated clock, network and disk.

`world` is time and dice, `network` and `disk` lose what real ones lose, `broker` is the driver that the contract of `kappamq.raft` asks
for, `cluster` has a group befallen by faults (`settings` draws which), and `checkers` knows after every event what must hold. A history
is its seed: `python -m kappamq.sim --seed 4711` has it again. `mutants` plants bugs to see whether they are found. Stands on top of
`raft`, and the room `brokers`, where whole brokers take the place of the core, on top of `broker`; nobody uses it but tests, `make sim`
and whoever changes the core or the store.
"""

"""Checks of a store against itself, for `kappamq store verify` and the scrub of a running broker, and the repairs that follow."""

"""Starts the command."""

from kappamq.sim.command import main

if __name__ == "__main__":
    main()

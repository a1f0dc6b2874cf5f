"""`python -m kappamq` is `kappamq`."""

from kappamq.cli import main

main()

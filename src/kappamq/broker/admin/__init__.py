"""Requests of operators and tools (`mqadmin`, the dashboard, our command line).

One module per subject; `administration` builds them. Reads everything, changes the tables of `kappamq.state`. Called by `requests`.
"""

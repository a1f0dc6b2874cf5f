"""Peers that mean harm: the worst requests that a broker's limits admit, and what another client feels of them.

corpus.py   the requests: for every request code the largest body and the worst header
peers.py    a process that sends them, over many connections at once, and notes what comes back
server.py   `kappamq broker` with a probe: how much CPU the longest turn of its loop used
"""

"""Messages that the broker itself delivers: retries, dead letters and delay levels.

`agenda` runs what is due at a message time; `parking`, `sources` and `record_copies` move a stored message to its real queue. Touches
the log through `sending.appending`. Called by the agenda and by `requests`. `delivery` builds this room, `timers` and
`transactions`, for as long as this node has the role that may write (`broker/roles.py`).
"""

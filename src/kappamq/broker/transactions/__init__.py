"""Transactional messages: half messages, commits and rollbacks, checks at the producer.

`open_transactions` is the pure fold, `half_log` its place in the log, `checks` asks producers. Touches the log through
`sending.appending`. Called by sends that prepare a transaction, by `requests` and by the agenda.
"""

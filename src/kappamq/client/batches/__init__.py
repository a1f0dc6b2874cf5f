"""Batch transactions: messages for any queues of several brokers, published all or not at all, each once.

`scope.py` opens a scope, begins a batch and decides it; `staging.py` brings messages to the brokers, in one process or in many;
`patience.py` says how long both try again; `batch_transaction.py` is both for one program. Used by the producer and by the Spark
sink; may use `client/core`.
"""

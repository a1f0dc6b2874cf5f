"""Batch transactions: messages for any queues of several brokers, all published or none, each once.

`scope.py` opens a scope, begins a batch and decides it; `staging.py` sends messages to the brokers, in one process or in many;
`patience.py` says how long both retry; `batch_transaction.py` combines them for one program. Used by the producer and by the Spark
sink; may use `client/core`.
"""

"""Batch transactions: many messages for many queues of several brokers, all published or none, each once.

    client                     coordinator                      participant (every broker that gets messages)
      | OPEN_SCOPE ------------> scope, owner, coordinator -----> the same, on every master
      | BEGIN_BATCH -----------> batch-begun
      | STAGE_CHUNK ------------------------------------------> a chunk is one record, and a note of it
      | DECIDE_BATCH ----------> CHECK_CHUNKS -----------------> are they all here?
      |                          batch-decided                                           <- from here on it counts
      |                          SETTLE_SCOPE -----------------> ASK_DECISIONS: which chunks are to be published?
      |                          batch-finished <--------------- published, chunk by chunk, each with the note of it

Each broker of a transaction is a participant; one of them is the coordinator of the scope as well (`coordinator.py`). The tables
are `state/scopes.py` and `state/staged.py`. A participant decides nothing: before it publishes or drops anything it asks the
coordinator, until it gets an answer (`participant.py`). `publishing.py` turns decided chunks into messages,
`peers.py` reaches the other brokers, `batch_requests.py` handles the requests. May touch the appender, the agenda and the tables.
"""

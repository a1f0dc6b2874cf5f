"""What runs in the background: flushing, derived files, retention, scrubbing, repairs, the watch over the clock.

Decisions are taken on the loop, files are touched by worker threads. Called by timers of its own; other rooms borrow its workers.
"""

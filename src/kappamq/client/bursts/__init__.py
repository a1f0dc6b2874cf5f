"""Waiting sends leave together: many messages for one queue as one request, each with its own result.

A message that `send` accepts goes into the *lane* of its queue (`lanes`). An idle lane sends at the end of the turn of the loop;
what comes in while a request is in flight leaves with the next one, as one batch (`encoding`) where the rules allow. A request
in flight is a *burst* (`burst`). The usual case, a successful answer, takes no task; everything else is left to
`producer.sending`, which decides what to try next. Called by `producer.producer`, and by `blocking` on behalf of threads.
"""

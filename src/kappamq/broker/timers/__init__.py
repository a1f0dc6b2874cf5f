"""Messages delivered at any millisecond, and their recall.

Pending timers live in RocketMQ's timer files (`book`); `upcoming` holds those of the next seconds, `due` delivers them, `progress` is the
fold that says how far delivery has come. Called by the agenda, by sends that name a time, and by retention (`keeping`).
"""

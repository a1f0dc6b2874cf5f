"""Messages delivered at any millisecond, and their recall.

    send with a time -> placing: parked in the timer topic, in the log      only if due after message time at the send, else stored at once
                           |
                         book: entered into RocketMQ's timer files          a thread of its own; one slot per second of message time
                           |
                       upcoming: the next seconds, loaded ahead             window knows which seconds are loaded
                           |
                         due: copied to the real topic, in one group        delivers when message time has passed the due time
                              with progress (due time, log offset)          progress is a fold: a restart goes on behind it

All times here are message time, which follows the wall clock (see clock.py and `store.timer.acts` for a clock that was set).

Pending timers live in RocketMQ's timer files (`book`); `upcoming` holds those of the next seconds, `due` delivers them, `progress` is the
fold that says how far delivery has come. Called by the agenda, by sends that name a time, and by retention (`keeping`).
"""

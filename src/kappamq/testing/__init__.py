"""For tests of programs that use KappaMQ: a real broker in the test's own process, and a clock that tests can advance.

    def test_reminder(kappamq_broker):                      # a fixture, available as soon as kappamq is installed
        with kappamq_broker.producer() as producer:
            producer.send(Message("reminders", b"call mum", delay_level=18))
        assert kappamq_broker.bodies("reminders") == []
        kappamq_broker.clock.advance("2h")
        assert kappamq_broker.bodies("reminders") == [b"call mum"]

Without pytest: `with BrokerKit() as broker: ...`. An application under test needs only `broker.nameserver`: its own clients share the
clock, and `broker.settle()` waits for them.
"""

from __future__ import annotations

from kappamq.testing.broker import BrokerKit
from kappamq.testing.clock import KitClock

__all__ = ["BrokerKit", "KitClock"]

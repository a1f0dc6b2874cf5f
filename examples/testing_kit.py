"""Tests of a program that uses KappaMQ: a broker in the test's own process, and two hours that pass at once.

python examples/testing_kit.py          # or, with pytest: the fixture `kappamq_broker`
"""

from __future__ import annotations

from kappamq import Message
from kappamq.testing import BrokerKit


def main() -> None:
    with BrokerKit() as broker:
        with broker.producer() as producer:
            producer.send(Message("reminders", b"the tea is ready", delay_level=18))  # in two hours
        print("at once:    ", broker.bodies("reminders"))
        broker.clock.advance("1h59m59s")
        print("almost:     ", broker.bodies("reminders"))
        broker.clock.advance("1s")
        print("in two hours:", broker.bodies("reminders"))


if __name__ == "__main__":
    main()

"""The one place to import bodies from has all of them."""

from __future__ import annotations

from kappamq.protocol.bodies import admin as bodies_admin
from kappamq.protocol.bodies import all as bodies
from kappamq.protocol.bodies import clients as bodies_clients
from kappamq.protocol.bodies import copies as bodies_copies
from kappamq.protocol.bodies import topics as bodies_topics
from tests.protocol.round_trips import kinds_in


def test_every_body_is_there() -> None:
    for module in (bodies_admin, bodies_clients, bodies_copies, bodies_topics):
        for kind in kinds_in(module):
            assert getattr(bodies, kind.__name__) is kind
            assert kind.__name__ in bodies.__all__

"""What a broker builds for batch transactions takes part in its agenda, its ticks and its retention."""

from __future__ import annotations

from kappamq.broker.broker import Broker
from kappamq.protocol.bodies.batches import Decisions
from tests.broker.operating import on_broker
from tests.broker.running import Speaker


@on_broker()
async def test_everything_is_wired(broker: Broker, client: Speaker) -> None:
    batches = broker.delivery.batches
    assert batches.renewing in broker.delivery.keepers
    assert [part.due_ms() for part in (batches.coordinator, batches.publishing)] == [None, None]
    assert await batches.decisions("unknown", "b", {}) == Decisions()
    assert await batches.rows_of("s", "x", []) == 0

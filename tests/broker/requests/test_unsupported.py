"""What this version does not do is refused, and says so."""

from __future__ import annotations

from kappamq.broker.broker import Broker
from kappamq.broker.requests.table import REQUESTS
from kappamq.broker.requests.unsupported import refusals
from kappamq.protocol import fastjson
from kappamq.protocol.bodies.admin import DelayOffsets
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.headers.admin import (
    GetAllDelayOffsets,
    GetAllMessageRequestModes,
    GetTimerCheckpoint,
    GetTimerMetrics,
)
from kappamq.protocol.headers.client import CheckTransaction
from tests.broker.operating import bare, make_topic, ok, on_broker, refused
from tests.broker.running import Speaker, appended


@on_broker()
async def test_every_refusal_names_what_is_missing(broker: Broker, client: Speaker) -> None:
    assert {declared.code for declared in refusals()} == {code for code in REQUESTS if REQUESTS[code].refusal}
    for code in (declared.code for declared in refusals()):
        answer = await bare(client, code)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, code
        remark = answer.remark or ""
        assert remark.startswith(f" request type {code} not supported: "), remark
        assert "version" in remark or "instead" in remark or "broker asks" in remark or "is configured" in remark
    assert REQUESTS[RequestCode.POP_MESSAGE].refusal


@on_broker()
async def test_nothing_is_stored_by_what_is_refused(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    before = appended(broker)
    check = CheckTransaction(transaction_offset=0, log_offset=0)
    await refused(client, check, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "a broker asks producers")
    await client.channel.oneway(check)  # there is nobody to tell
    assert appended(broker) == before


@on_broker()
async def test_tables_of_what_is_not_there_are_empty(broker: Broker, client: Speaker) -> None:
    offsets = DelayOffsets.decode((await ok(client, GetAllDelayOffsets())).body)
    assert offsets.offsets == {}
    assert (await ok(client, GetTimerCheckpoint())).body == bytes(56)
    metrics = fastjson.loads((await ok(client, GetTimerMetrics())).body)
    assert metrics["timingCount"] == {}
    assert metrics["dataVersion"]["counter"] == 0
    modes = (await ok(client, GetAllMessageRequestModes())).body
    assert modes == b'{"messageRequestModeMap":{}}'

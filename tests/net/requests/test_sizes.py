"""How large a request may be, and which bodies are read beside the loop."""

from __future__ import annotations

import pytest

from kappamq.config.net import NetConfig
from kappamq.errors import InvalidParameter, ProtocolError
from kappamq.net.requests.sizes import BESIDE_BYTES, RequestLimit, RequestLimits, check_values
from kappamq.protocol.bodies.clients import LockBatch
from kappamq.protocol.fastjson import LooseJsonTooLong
from kappamq.protocol.frame import Frame

TABLE = {34: RequestLimit("heartbeat_bytes_max"), 41: RequestLimit("list_bytes_max", kind=LockBatch)}
LIMITS = RequestLimits(
    TABLE, NetConfig(heartbeat_bytes_max=5000, list_bytes_max=64 << 10, loose_json_bytes_max=8 << 10)
)


def test_refusals_say_how_much_is_allowed_and_what_to_do() -> None:
    LIMITS.check(34, 65_536, 5000)
    with pytest.raises(
        InvalidParameter,
        match=r"body of a HEART_BEAT \(34\) request has 5001 bytes, the limit is 5000.*heartbeat_bytes_max",
    ):
        LIMITS.check(34, 100, 5001)
    with pytest.raises(
        InvalidParameter,
        match=r"header of a HEART_BEAT \(34\) request has 65537 bytes, the limit is 65536.*net\.request_header_bytes_max",
    ):
        LIMITS.check(34, 65_537, 0)
    LIMITS.check(9999, 100, 65_536)
    with pytest.raises(
        InvalidParameter, match=r"code 9999 request has 65537 bytes, the limit is 65536.*request_bytes_max"
    ):
        LIMITS.check(9999, 100, 65_537)


def test_only_large_bodies_of_known_kinds_are_read_beside_the_loop() -> None:
    assert not LIMITS.is_for_beside(Frame(41, body=bytes(BESIDE_BYTES)))
    assert LIMITS.is_for_beside(Frame(41, body=bytes(BESIDE_BYTES + 1)))
    assert not LIMITS.is_for_beside(Frame(34, body=bytes(BESIDE_BYTES + 1)))


def test_bodies_are_read_as_what_they_are() -> None:
    queues = b",".join(b'{"topic":"t","brokerName":"b","queueId":%d}' % number for number in range(400))
    read = LIMITS.read(Frame(41, body=b'{"clientId":"c","mqSet":[' + queues + b"]}"))
    assert isinstance(read, LockBatch)
    assert len(read.queues) == 400


def test_the_dialect_is_read_only_up_to_its_limit() -> None:
    assert LIMITS.read(Frame(41, body=b"{clientId:'" + b"x" * 6000 + b"'}")).client_id == "x" * 6000
    with pytest.raises(LooseJsonTooLong, match="too long for the lenient decoder"):
        LIMITS.read(Frame(41, body=b"{clientId:'" + b"x" * 9000 + b"'}"))


def test_tiny_values_are_counted() -> None:
    check_values(b"[1,2,3]", 3)
    with pytest.raises(ProtocolError, match="3 JSON values, the limit is 2"):
        check_values(b"[1,2,3]", 2)
    with pytest.raises(ProtocolError, match="JSON values"):
        LIMITS.read(Frame(41, body=b'{"mqSet":[' + b"{}," * 3000 + b"{}]}"))

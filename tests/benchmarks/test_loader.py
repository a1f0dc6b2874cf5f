"""The load generator tells the truth: it counts what was answered, and it notices answers that are wrong."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.loader import BATCH, PULL, Load, LoadFailed, run
from kappamq.protocol.frame import Frame, decode, reply
from kappamq.protocol.headers.client import PullMessage, PullMessageResponse, SendMessageV2
from kappamq.protocol.records.batch import split
from kappamq.protocol.records.properties import decode as read_properties
from kappamq.protocol.records.record import Record
from tests.needs import needs

pytestmark = needs("compiler")

Answer = Callable[[Frame], bytes]


@contextmanager
def broker(answer: Answer) -> Iterator[str]:
    """Answers each frame with what `answer` returns."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as frames:
            while head := frames.read(4):
                data = head + frames.read(struct.unpack(">i", head)[0])
                try:
                    connection.sendall(answer(decode(data)))
                except OSError:
                    return

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def test_sends_as_a_java_client_does(tmp_path: Path) -> None:
    seen: list[Frame] = []

    def answer(frame: Frame) -> bytes:
        seen.append(frame)
        return reply(frame).encode()

    with broker(answer) as address:
        load = Load(requests=40, connections=2, inflight=2, queues=4, body=64, seconds=0, warmup=0)
        loaded = run(address, load, tmp_path)
        binary = run(address, Load(requests=3, connections=1, binary=True, seconds=0, warmup=0), tmp_path)
    assert (loaded.requests, loaded.messages, loaded.total_messages, loaded.errors) == (40, 40, 40, {})
    assert binary.requests == 3
    assert [frame.binary for frame in seen] == [False] * 40 + [True] * 3
    headers = [SendMessageV2.decode(frame.ext) for frame in seen]
    assert {frame.code for frame in seen} == {310}
    assert {header.queue_id for header in headers[:40]} == {0, 1, 2, 3}
    assert {len(frame.body) for frame in seen[:40]} == {64}
    properties = [read_properties(header.properties or "") for header in headers]
    assert {frozenset(one) for one in properties} == {frozenset({"KEYS", "UNIQ_KEY", "WAIT", "TAGS"})}
    assert len({one["UNIQ_KEY"] for one in properties[:40]}) == 40
    assert {len(one["UNIQ_KEY"]) for one in properties} == {32}


def test_batches_have_members_with_ids_of_their_own(tmp_path: Path) -> None:
    bodies: list[bytes] = []

    def answer(frame: Frame) -> bytes:
        assert frame.code == 320
        bodies.append(frame.body)
        return reply(frame).encode()

    with broker(answer) as address:
        loaded = run(
            address, Load(mode=BATCH, batch=5, requests=4, connections=1, body=10, seconds=0, warmup=0), tmp_path
        )
    assert (loaded.requests, loaded.messages) == (4, 20)
    members = [member for body in bodies for member in split(body)]
    assert len(members) == 20
    assert {len(member.body) for member in members} == {10}


def records(first: int, count: int) -> bytes:
    return b"".join(Record(topic="bench", body=b"x", queue_offset=first + n).encode() for n in range(count))


def pulled(frame: Frame, shift: int = 0) -> bytes:
    header = PullMessage.decode(frame.ext)
    count = min(header.count_max, 100 - header.queue_offset)
    found = PullMessageResponse(
        suggested_broker_id=0, next_offset=header.queue_offset + count, min_offset=0, max_offset=100
    )
    return reply(frame, header=found, body=records(header.queue_offset + shift, count)).encode()


@pytest.mark.parametrize("binary", [False, True])
def test_pulls_read_every_record_once(tmp_path: Path, binary: bool) -> None:
    load = Load(mode=PULL, connections=2, queues=2, until=100, seconds=0, warmup=0, binary=binary)
    with broker(pulled) as address:
        loaded = run(address, load, tmp_path)
    assert loaded.messages == 200
    assert loaded.requests == 8


def test_a_gap_in_pulled_records_is_noticed(tmp_path: Path) -> None:
    load = Load(mode=PULL, connections=1, until=100, seconds=0, warmup=0)
    with broker(lambda frame: pulled(frame, shift=1)) as address, pytest.raises(LoadFailed, match="not what was asked"):
        run(address, load, tmp_path)


def test_refusals_are_counted_by_code(tmp_path: Path) -> None:
    load = Load(requests=10, connections=1, seconds=0, warmup=0)
    with broker(lambda frame: reply(frame, code=2, remark="busy").encode()) as address:
        assert run(address, load, tmp_path, may_fail=True).errors == {2: 10}
        with pytest.raises(LoadFailed, match=r"\{2: 10\}"):
            run(address, load, tmp_path)


def test_an_answer_to_nobody_is_an_error(tmp_path: Path) -> None:
    def answer(frame: Frame) -> bytes:
        frame.opaque += 1
        return reply(frame).encode()

    with broker(answer) as address, pytest.raises(LoadFailed, match="under way"):
        run(address, Load(requests=10, connections=1, seconds=0, warmup=0), tmp_path)


def test_latency_counts_from_the_time_a_request_was_due(tmp_path: Path) -> None:
    """One stalled answer delays all that were due behind it; a closed loop would hide that."""
    stalled = threading.Event()

    def answer(frame: Frame) -> bytes:
        if not stalled.is_set():
            stalled.set()
            threading.Event().wait(0.2)
        return reply(frame).encode()

    with broker(answer) as address:
        loaded = run(address, Load(requests=100, connections=1, rate=1000, seconds=0, warmup=0), tmp_path)
    assert loaded.max_us > 150_000
    assert loaded.p50_us > 20_000


def test_printed_line_is_json(tmp_path: Path) -> None:
    with broker(lambda frame: reply(frame).encode()) as address:
        run(address, Load(requests=1, connections=1, seconds=0, warmup=0), tmp_path)
    assert json.loads((tmp_path / "load" / "out.txt").read_text())["requests"] == 1

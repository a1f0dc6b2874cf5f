"""Frames in both forms: golden bytes, there and back, loose input, and every wrong byte refused."""

from __future__ import annotations

import itertools
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.errors import FrameTooLarge, ProtocolError
from kappamq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, VERSION, Language, RequestCode
from kappamq.protocol.frame import FRAME_BYTES_MAX, Frame, FrameDecoder, decode, next_opaque, reply, request
from kappamq.protocol.headers.client import OffsetResponse, SendMessageV2, UnregisterClient
from tests.protocol.strategies import headers, int32s, texts

frames = st.builds(
    Frame,
    code=st.integers(-0x7FFF, 0x7FFF),
    opaque=int32s,
    flag=int32s,
    remark=st.none() | texts.filter(bool),
    ext=st.dictionaries(texts.filter(bool), texts.filter(bool), max_size=5),
    body=st.binary(max_size=50),
    language=st.sampled_from(Language).map(int),
    version=st.integers(-0x8000, 0x7FFF),
    binary=st.booleans(),
)


def json_frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def binary_frame(header: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(header), 1 << 24 | len(header)) + header


def test_smallest_binary_response() -> None:
    golden = bytes.fromhex("00000019 01000015 0000 00 0000 00000007 00000001 00000000 00000000")
    frame = Frame(code=0, opaque=7, flag=FLAG_RESPONSE, language=Language.JAVA, version=0, binary=True)
    assert frame.encode() == golden
    assert decode(golden) == frame


def test_json_header_is_what_java_writes() -> None:
    encoded = Frame(code=0, opaque=7, flag=1, language=Language.JAVA, version=0).encode()
    text = b'{"code":0,"flag":1,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":0}'
    assert encoded == json_frame(text)


def test_separators_of_properties_are_escaped() -> None:
    encoded = Frame(code=310, ext={"i": "a\x01b\x02"}).encode()
    assert rb'"i":"a\u0001b\u0002"' in encoded
    assert decode(encoded).ext == {"i": "a\x01b\x02"}


@given(frames)
def test_there_and_back(frame: Frame) -> None:
    encoded = frame.encode()
    assert decode(encoded) == frame
    assert decode(bytearray(encoded)) == decode(memoryview(encoded)) == frame
    assert int.from_bytes(encoded[:4], "big") == len(encoded) - 4


@given(st.lists(frames, max_size=5), st.lists(st.integers(0, 400)))
def test_fed_in_any_pieces(sent: list[Frame], cuts: list[int]) -> None:
    data = b"".join(frame.encode() for frame in sent)
    decoder = FrameDecoder()
    received: list[Frame] = []
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in itertools.pairwise(edges):
        received += decoder.feed(data[start:end])
    assert received == sent
    assert decoder.buffered == 0


@given(headers(SendMessageV2), st.binary(max_size=9))
def test_request_carries_its_header(header: SendMessageV2, body: bytes) -> None:
    frame = request(header, body, oneway=True, opaque=5, code=RequestCode.SEND_BATCH_MESSAGE)
    assert (frame.code, frame.opaque, frame.flag, frame.body) == (320, 5, FLAG_ONEWAY, body)
    assert frame.is_oneway
    assert not frame.is_response
    assert SendMessageV2.decode(decode(frame.encode()).ext) == header


def test_request_needs_a_code() -> None:
    assert request(UnregisterClient(client_id="c")).code == RequestCode.UNREGISTER_CLIENT
    with pytest.raises(ProtocolError, match="OffsetResponse is not a request header"):
        request(OffsetResponse(offset=1))


@pytest.mark.parametrize("binary", [False, True])
def test_reply_answers_in_kind(binary: bool) -> None:
    asked = Frame(code=14, opaque=99, binary=binary)
    answer = reply(asked, 22, "none", OffsetResponse(offset=3), b"body")
    assert answer == Frame(22, 99, FLAG_RESPONSE, "none", {"offset": "3"}, b"body", binary=binary)
    assert answer.version == VERSION
    assert answer.is_response


def test_opaques_differ() -> None:
    assert len({next_opaque() for _ in range(1000)}) == 1000


def test_pop_codes_travel_as_json_whatever_is_asked() -> None:
    frame = decode(Frame(code=200050, binary=True).encode())
    assert (frame.code, frame.binary) == (200050, False)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b'{"code":"11","opaque":"3","flag":0}', Frame(11, 3, language=Language.OTHER, version=0)),
        (b"{code:11,'opaque':3,}", Frame(11, 3, language=Language.OTHER, version=0)),
        (
            b'{"code":11,"extFields":{"a":1,"b":true,"c":null,"d":"x"},"language":"GO"}',
            Frame(11, ext={"a": "1", "b": "true", "d": "x"}, language=Language.GO, version=0),
        ),
        (b'{"code":11,"language":9,"version":1}', Frame(11, language=Language.GO, version=1)),
        (b'{"code":11,"language":"KLINGON"}', Frame(11, language=Language.OTHER, version=0)),
        (b'{"code":11,"unknown":{"x":[1]},"remark":null}', Frame(11, language=Language.OTHER, version=0)),
    ],
)
def test_loose_json_is_read(header: bytes, expected: Frame) -> None:
    assert decode(json_frame(header)) == expected


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "at least 8 bytes"),
        (b"\0\0\0\4\0\0\0", "at least 8 bytes"),
        (struct.pack(">ii", 5, 0), "announces 5 bytes after its length, but has 4"),
        (struct.pack(">ii", 4, 2 << 24), "unknown form of header 2"),
        (struct.pack(">ii", 4, -1), "unknown form of header 255"),
        (struct.pack(">ii", 4, 9), "header of 9 bytes does not fit"),
        (json_frame(b""), "not JSON"),
        (json_frame(b"[]"), "not a JSON object"),
        (json_frame(b"{}"), "no 'code'"),
        (json_frame(b'{"code":"x"}'), "'code' of the header is not a number"),
        (json_frame(b'{"code":1,"opaque":4294967296}'), "'opaque' of the header does not fit into 32 bits"),
        (json_frame(b'{"code":1,"extFields":[1]}'), "'extFields' of the header is not a JSON object"),
        (json_frame(b'{"code":1,"remark":"\xff"}'), "not UTF-8"),
        (json_frame(b'{"code":' + b"[" * 100_000), "nested deeper"),
        (binary_frame(b""), "ends too early"),
        (binary_frame(bytes(13) + struct.pack(">ii", 9, 0)), "announces 9 bytes, but 4 follow"),
        (binary_frame(bytes(13) + struct.pack(">ii", -1, 0)), "announces -1 bytes"),
        (binary_frame(bytes(13) + struct.pack(">ii", 0, 0) + b"x"), "1 bytes are left over"),
        (binary_frame(bytes(13) + struct.pack(">iih", 0, 2, -1)), "announces -1 bytes"),
        (binary_frame(bytes(13) + struct.pack(">i", 1) + b"\xff" + bytes(4)), "not UTF-8"),
    ],
)
def test_wrong_bytes_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode(data)


def test_a_claim_is_refused_before_the_bytes_arrive() -> None:
    with pytest.raises(FrameTooLarge, match=f"the limit is {FRAME_BYTES_MAX}"):
        FrameDecoder().feed(struct.pack(">i", FRAME_BYTES_MAX - 3))
    assert FrameDecoder().feed(struct.pack(">i", FRAME_BYTES_MAX - 4)) == []
    with pytest.raises(FrameTooLarge, match="header of 101 bytes, the limit is 100"):
        FrameDecoder(header_bytes_max=100).feed(struct.pack(">ii", 5000, 101))
    for length in (-1, 0, 3):
        with pytest.raises(ProtocolError, match="no room for its header"):
            FrameDecoder().feed(struct.pack(">i", length))


def test_what_does_not_fit_cannot_be_encoded() -> None:
    with pytest.raises(ProtocolError, match="cannot be encoded"):
        Frame(code=1, ext={"a": "\ud800"}).encode()
    with pytest.raises(ProtocolError, match="cannot be encoded"):
        Frame(code=1, ext={"x" * 40_000: "y"}, binary=True).encode()
    with pytest.raises(ProtocolError, match="24 bits"):
        Frame(code=1, remark="x" * (1 << 24)).encode()


@given(st.binary(max_size=200))
def test_any_bytes_give_frames_or_a_protocol_error(data: bytes) -> None:
    for attempt in (lambda: FrameDecoder(4096).feed(data), lambda: decode(data)):
        try:
            attempt()
        except ProtocolError:
            pass


@given(frames, st.data())
def test_damaged_frames_give_a_frame_or_a_protocol_error(frame: Frame, data: st.DataObject) -> None:
    damaged = bytearray(frame.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(4, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(damaged)
    except ProtocolError:
        pass


@given(
    st.recursive(
        st.none() | st.booleans() | int32s | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner)
    )
)
def test_any_json_header_gives_a_frame_or_a_protocol_error(value: object) -> None:
    for header in (value, {"code": value}, {"code": 1, "extFields": value}, {"code": 1, "language": value}):
        try:
            decode(json_frame(json.dumps(header).encode()))
        except ProtocolError:
            pass


@given(sizes=st.lists(st.integers(0, 300_000), min_size=1, max_size=6), step=st.integers(1, 200_000))
def test_a_socket_may_write_into_the_decoder(sizes: list[int], step: int) -> None:
    sent = [Frame(code=11, opaque=n, body=bytes([n + 1]) * size) for n, size in enumerate(sizes)]
    data = b"".join(frame.encode() for frame in sent)
    decoder, found, at = FrameDecoder(), list[Frame](), 0
    while at < len(data):
        room = decoder.room()
        assert len(room) > 0
        piece = data[at : at + min(step, len(room))]
        room[: len(piece)] = piece
        found += decoder.received(len(piece))
        at += len(piece)
    assert [(frame.opaque, frame.body) for frame in found] == [(frame.opaque, frame.body) for frame in sent]
    assert decoder.buffered == 0


def test_a_buffer_that_has_grown_large_is_given_back() -> None:
    decoder = FrameDecoder()
    small = len(decoder.room())
    (frame,) = decoder.feed(Frame(code=11, body=bytes(8 << 20)).encode())
    assert len(frame.body) == 8 << 20
    assert len(decoder.room()) == small


def test_room_does_not_grow_by_what_is_announced() -> None:
    decoder = FrameDecoder()
    decoder.feed(struct.pack(">ii", FRAME_BYTES_MAX - 4, 10))
    assert len(decoder.room()) < 128 << 10

"""Which headers are plain: the twin's rules, spelled out; and that the compiled kernel draws the line in the same place."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.native import pure
from kappamq.native.layout import LEFT
from kappamq.native.pure_scan import (
    plain_fixed,
    plain_properties,
    plain_pull,
    plain_time,
    printable_key,
    read_binary,
    read_json,
)
from tests.native import requests
from tests.native.conftest import BORN, NOW, SETTINGS, load_kernel


def taken(module: ModuleType, head: bytes, body: bytes = b"x", binary: bool = False) -> bool:
    """Whether a kernel that knows the topics and groups of `requests` takes the frame."""
    kernel = module.Kernel(**SETTINGS)
    for topic in ("tea", "é"):
        kernel.set_topic(topic, 4, 4, 3)
    for explicit in (False, True):
        kernel.set_row(1, "shop", "tea", explicit, 100, None)
    kernel.accepting = True
    kernel.open_segment(0, 1 << 20)
    return bool(kernel.burst(requests.framed(head, body, binary), 0, BORN, NOW)[1] != LEFT)


SEND = requests.header(310, requests.send_fields())
CHANGES: list[tuple[bytes, bytes, bool]] = [
    (b'"e":"1"', b'"e":"01"', True),
    (b'"e":"1"', b'"e":"0000000001"', True),
    (b'"e":"1"', b'"e":"00000000001"', False),
    (b'"e":"1"', b'"e":"-1"', False),
    (b'"e":"1"', b'"e":"+1"', False),
    (b'"e":"1"', b'"e":" 1"', False),
    (b'"e":"1"', b'"e":""', False),
    (b'"e":"1"', b'"e":1', True),
    (b'"e":"1"', b'"e":null', False),
    (b'"e":"1"', b'"e":"\\u0031"', True),
    (b'"e":"1"', b'"\\u0065":"1"', True),
    (b'"e":"1"', b'"e":"9","e":"1"', True),
    (b'"e":"1"', b'"e":9,"e":"1"', True),
    (b'"e":"1"', b'"e" : \t\r\n"1" ', True),
    (b'"d":"4"', b'"d":"2147483647"', True),
    (b'"d":"4"', b'"d":"2147483648"', False),
    (b'"d":"4"', b'"d":"-2147483648"', True),
    (b'"f":"0"', b'"f":"1793"', True),
    (b'"f":"0"', b'"f":"4"', False),
    (b'"g":"1700000000123"', b'"g":"-999999999999999999"', True),
    (b'"g":"1700000000123"', b'"g":"1000000000000000000"', False),
    (b'"g":"1700000000123"', b'"g":"12345678/"', False),
    (b'"g":"1700000000123"', b'"g":"1234567:8"', False),
    (b'"f":"0"', b'"f":0', True),
    (b'"f":"0"', b'"f":-0', True),
    (b'"f":"0"', b'"f" : 0 ', True),
    (b'"f":"0"', b'"f":4', False),
    (b'"f":"0"', b'"f":00', False),
    (b'"f":"0"', b'"f":0.0', False),
    (b'"f":"0"', b'"f":0e0', False),
    (b'"f":"0"', b'"f":null', False),
    (b'"f":"0"', b'"f":false', False),
    (b'"f":"0"', b'"f":-', False),
    (b'"f":"0"', b'"f":99999999999999999999,"f":0', True),
    (b'"g":"1700000000123"', b'"g":1700000000123', True),
    (b'"g":"1700000000123"', b'"g":1000000000000000000', False),
    (b'"b":"tea"', b'"b":7', False),
    (b'"m":"false"', b'"lo":1', False),
    (b'"m":"false"', b'"Signature":"x=","AccessKey":"","OnsChannel":"ALIYUN","SecurityToken":"t"', True),
    (b'"m":"false"', b'"Signature":1', False),
    (b'"k":"false"', b'"k":"true"', True),
    (b'"k":"false"', b'"k":"0"', True),
    (b'"k":"false"', b'"k":"1"', True),
    (b'"k":"false"', b'"k":"2"', False),
    (b'"m":"false"', b'"m":"0"', True),
    (b'"m":"false"', b'"m":"1"', False),
    (b'"k":"false"', b'"k":"FALSE"', False),
    (b'"m":"false"', b'"m":"true"', False),
    (b'"m":"false"', b'"l":"x"', False),
    (b'"m":"false"', b'"zz":"x"', False),
    (b'"m":"false"', b'"":"x"', False),
    (b'"m":"false"', b'"nsd":"","lo":"\\\\\\"\\/"', True),
    (b'"m":"false"', b'"lo":"\\ud83d\\ude00"', True),
    (b'"m":"false"', b'"lo":"\\ud83d"', False),
    (b'"m":"false"', b'"lo":"\\ude00"', False),
    (b'"m":"false"', b'"lo":"\\x"', False),
    (b'"m":"false"', b'"lo":"\xc3\xa9"', True),
    (b'"m":"false"', b'"lo":"\xc3"', False),
    (b'"m":"false"', b'"lo":"\xed\xa0\x80"', False),
    (b'"m":"false"', b'"lo":"\x1f"', False),
    (b'"m":"false"', b'"lo":"\x7f"', True),
    (b'"b":"tea"', b'"b":"\\u0074ea"', True),
    (b'"b":"tea"', b'"b":"tea\\u0000"', False),
    (b'"b":"tea"', b'"b":"\xc3\xa9"', True),
    (b'"b":"tea"', b'"b":"other"', False),
    (b'"b":"tea",', b"", False),
    (b'"flag":0', b'"flag":2', True),
    (b'"flag":0', b'"flag":1', False),
    (b'"flag":0', b'"flag":-0', True),
    (b'"flag":0', b'"flag":0.0', False),
    (b'"flag":0', b'"flag":00', False),
    (b'"flag":0', b'"flag":99999999999999999999,"flag":0', True),
    (b'"flag":0,', b"", False),
    (b'"opaque":9', b'"opaque":-2147483648', True),
    (b'"opaque":9', b'"opaque":2147483648', False),
    (b'"opaque":9', b'"opaque":"9"', False),
    (b'"version":479', b'"version":2147483648', False),
    (b',"version":479', b"", True),
    (b'"version":479', b'"version":null', False),
    (b'"language":"JAVA"', b'"language":null', True),
    (b'"language":"JAVA"', b'"language":1', False),
    (b'"language":"JAVA"', b'"remark":"\xc3\xa9"', True),
    (b'"language":"JAVA"', b'"other":1', False),
    (b'"code":310', b'"code":11,"code":310', True),
    (b'"code":310', b'"code":310.0', False),
    (b'"code":310', b'"code":311', False),
    (b'"code":310', b'"code":310,"extFields":{}', False),
    (b'"code":310', b'"code":310,"extFields":{"zz":""}', False),
    (b"},", b",", False),
    (b'"version":479}', b'"version":479', False),
    (b'"version":479}', b'"version":479} \n', True),
    (b'"version":479}', b'"version":479}}', False),
    (b'"version":479}', b'"version":479,}', False),
    (b'{"code"', b' {"code"', True),
    (b'{"code"', b'\xef\xbb\xbf{"code"', False),
]


@pytest.mark.parametrize(("old", "new", "plain"), CHANGES)
def test_json_header(module: ModuleType, old: bytes, new: bytes, plain: bool) -> None:
    assert taken(module, SEND)
    changed = SEND.replace(old, new, 1)
    assert changed != SEND
    assert taken(module, changed) is plain


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"}", b"{}", b"[]", b"nul", b'"', b"{" * 5000, b'{"extFields":' + b"[" * 100_000, b" " * 40, b'{"a'],
)
def test_no_header_at_all(module: ModuleType, text: bytes) -> None:
    assert not taken(module, text)
    assert not taken(module, text, binary=True)


def test_keys_in_any_order(module: ModuleType) -> None:
    top = json.loads(SEND)
    top["extFields"] = dict(reversed(top["extFields"].items()))
    assert taken(module, json.dumps(dict(reversed(top.items()))).encode())


def test_a_long_number_may_be_replaced_but_not_too_long(module: ModuleType) -> None:
    assert taken(module, SEND.replace(b'"opaque":9', b'"opaque":' + b"1" * 4300 + b',"opaque":9'))
    assert not taken(module, SEND.replace(b'"opaque":9', b'"opaque":' + b"1" * 4301 + b',"opaque":9'))


@pytest.mark.parametrize(
    ("changed", "plain"),
    [
        ({}, True),
        ({"sysFlag": "0"}, True),
        ({"sysFlag": "8"}, False),
        ({"sysFlag": "-1"}, False),
        ({"sysFlag": "7"}, True),
        ({"sysFlag": "7", "subscription": "TagA"}, False),
        ({"sysFlag": "7", "subscription": None}, False),
        ({"subscription": None, "expressionType": None}, True),
        ({"expressionType": "SQL92"}, False),
        ({"subVersion": "101"}, False),
        ({"subVersion": None}, False),
        ({"maxMsgNums": "0"}, False),
        ({"queueOffset": "-1"}, False),
        ({"suspendTimeoutMillis": "-1"}, False),
        ({"commitOffset": "-1"}, True),
        ({"maxMsgBytes": "-1"}, False),
        ({"maxMsgBytes": "2147483647"}, True),
        ({"requestSource": "-1"}, True),
        ({"requestSource": "0"}, False),
        ({"consumerGroup": "other"}, False),
        ({"queueId": "4"}, False),
        ({"b": "tea"}, False),
    ],
)
@pytest.mark.parametrize("binary", [False, True])
def test_pull_header(module: ModuleType, changed: dict[str, str | None], plain: bool, binary: bool) -> None:
    fields = requests.pull_fields(**changed)
    head = requests.binary_header(11, fields) if binary else requests.header(11, fields)
    assert taken(module, head, b"", binary) is plain


def test_lite_pull_carries_its_flag(module: ModuleType) -> None:
    for code, sys_flag, plain in ((361, "19", True), (361, "3", False), (11, "19", False)):
        assert taken(module, requests.header(code, requests.pull_fields(sysFlag=sys_flag)), b"") is plain


def test_binary_header_with_each_byte_changed(native: ModuleType) -> None:
    head = requests.binary_header(310, requests.send_fields())
    assert taken(native, head, binary=True)
    for at in range(len(head)):
        for value in (0, 1, 0x7F, 0x80, 0xFF, head[at] ^ 1):
            changed = head[:at] + bytes([value]) + head[at + 1 :]
            assert taken(native, changed, binary=True) == taken(pure, changed, binary=True), (at, value)


def test_json_header_with_each_byte_changed_or_cut(native: ModuleType) -> None:
    for at in range(len(SEND)):
        for value in b' "\\{}:,0a\x00\x80':
            changed = SEND[:at] + bytes([value]) + SEND[at + 1 :]
            assert taken(native, changed) == taken(pure, changed), changed
        assert taken(native, SEND[:at]) == taken(pure, SEND[:at])
        assert taken(native, SEND[:at] + SEND[at + 1 :]) == taken(pure, SEND[:at] + SEND[at + 1 :]), at


TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
PIECES = st.lists(
    st.sampled_from(["UNIQ_KEY", "WAIT", "TAGS", "true", "DELAY", "é", "k", "\x01", "\x02", "", requests.KEY]),
    max_size=12,
)


@given(PIECES.map("".join) | TEXT)
def test_properties_are_judged_alike(text: str) -> None:
    native = load_kernel("native")
    plain = plain_properties(text)
    head = requests.header(310, requests.send_fields(i=text))
    assert taken(native, head) == taken(pure, head) == (plain is not None and printable_key(plain))
    body = requests.member(b"x", text.encode())
    assert native.split_batch(body, True) == pure.split_batch(body, True)
    assert native.plain_batch(body) == pure.plain_batch(body)
    assert (native.split_batch(body, True) is not None) == (plain is not None)


@given(TEXT)
def test_numbers_are_judged_alike(text: str) -> None:
    native = load_kernel("native")
    for name in "deg":
        head = requests.header(310, requests.send_fields(**{name: text}))
        assert taken(native, head) == taken(pure, head)


# -- the twin's functions on their own ---------------------------------------------------------------------------------


def test_readers_agree_on_both_forms() -> None:
    fields = requests.send_fields()
    as_json, as_binary = read_json(requests.header(310, fields)), read_binary(requests.binary_header(310, fields))
    assert as_json is not None
    assert as_binary is not None
    assert (as_json.code, as_json.flag, as_json.opaque, as_json.version, as_json.ext) == (310, 0, 9, 479, as_binary.ext)
    fixed = plain_fixed(310, 479, as_json.ext)
    assert fixed == ("tea", 1, 0, 7, 0)


def test_code_10_spells_the_same_fields_out() -> None:
    long: Any = read_json(requests.send(code=10)[8 : -len(b"hello")])
    short: Any = read_json(requests.send()[8 : -len(b"hello")])
    assert {name: getattr(long.ext, name) for name in "abcdefghijklmn"} == {
        name: getattr(short.ext, name) for name in "abcdefghijklmn"
    }
    assert read_json(requests.header(10, requests.send_fields())) is None


def test_pull_is_read() -> None:
    head: Any = read_json(requests.header(11, requests.pull_fields()))
    assert plain_pull(head) == ("shop", "tea", 1, 0, 32, 3, 5, 15000, 100, False)


def test_times() -> None:
    assert [plain_time(text) for text in ("0", "-5", "1700000000123", "", "-", "9" * 18, "9" * 19, "١")] == [
        0, -5, 1700000000123, None, None, int("9" * 18), None, None,
    ]  # fmt: skip

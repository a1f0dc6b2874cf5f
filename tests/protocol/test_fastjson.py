"""The JSON dialect: golden texts from Java, loose texts it reads, and nothing but ProtocolError for the rest."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kappamq.errors import ProtocolError
from kappamq.message import MessageQueue
from kappamq.protocol import fastjson
from kappamq.protocol.codes import Language
from tests.protocol.strategies import int64s, queues, texts

MQ = MessageQueue("T", "b-a", 0)
MQ_TEXT = '{"brokerName":"b-a","queueId":0,"topic":"T"}'

values = st.recursive(
    st.booleans() | int64s | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=15,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": None, "c": [1, None]}, '{"b":1,"c":[1,null]}'),
        ({1: "x", 0: "y"}, '{0:"y",1:"x"}'),
        ({MQ: {"maxOffset": 5}}, "{" + MQ_TEXT + ':{"maxOffset":5}}'),
        ([0.0, 1e10, 1.5, 1e16, 1e-7, math.nan, math.inf], "[0.0,10000000000.0,1.5,1.0E16,1.0E-7,null,null]"),
        ([True, False, None], "[true,false,null]"),
        (Language.JAVA, '"JAVA"'),
        ("a\x01/ä\n", '"a\\u0001/ä\\n"'),
        ((), "[]"),
        ({}, "{}"),
    ],
)
def test_writes_as_java_does(value: Any, text: str) -> None:
    assert fastjson.dumps(value).decode() == text


def test_standard_form() -> None:
    value = {0: "a/b", "ä": "😀", MQ: 1}
    text = fastjson.dumps(value, standard=True).decode()
    assert text.isascii()
    assert "a\\/b" in text
    assert "\\uD83D\\uDE00" in text
    assert json.loads(text) == {"0": "a/b", "ä": "😀", MQ_TEXT: 1}


def test_refuses_what_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="cannot write object"):
        fastjson.dumps([object()])
    with pytest.raises(TypeError, match="as a key"):
        fastjson.dumps({(): 1})


@given(values)
def test_there_and_back(value: Any) -> None:
    assert fastjson.loads(fastjson.dumps(value)) == value
    assert fastjson.loads(fastjson.dumps(value, standard=True)) == value
    assert json.loads(fastjson.dumps(value, standard=True)) == value
    assert json.loads(fastjson.pretty(value)) == value


def loose(value: Any, draw: Callable[[st.SearchStrategy[str]], str]) -> str:
    """Write a value in one of the ways only a lenient reader takes."""
    if isinstance(value, dict):
        pairs = [f"{loose(key, draw)} : {loose(item, draw)}" for key, item in value.items()]
        return (
            "{,"
            + draw(st.sampled_from([",", " ,, ", "\n,"])).join(pairs)
            + draw(st.sampled_from(["", ",", "\n"]))
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(loose(item, draw) for item in value) + draw(st.sampled_from(["", ",,"])) + "]"
    if isinstance(value, str):
        escaped = "".join(f"\\u{unit:04x}" for unit in memoryview(value.encode("utf-16-le")).cast("H"))
        return f"'{draw(st.sampled_from([escaped, value]))}'" if not set(value) & set("'\\") else f'"{escaped}"'
    return json.dumps(value)


@given(values, st.data())
def test_loose_writing_means_the_same(value: Any, data: st.DataObject) -> None:
    assert fastjson.loads(loose(value, data.draw)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a:1,b_2:'x'}", {"a": 1, "b_2": "x"}),
        ("{0:7,3:8\n\t\t}", {"0": 7, "3": 8}),
        ("{" + MQ_TEXT + ":5}", {MQ_TEXT: 5}),
        ("{{'topic':'T','brokerName':\"b-a\",queueId:0}:5}", {MQ_TEXT: 5}),
        ("[1L,+2,.5,3.,undefined,NaN]", [1, 2, 0.5, 3.0, None, None]),
        (r"['\x41\'\q\0\t']", ["A'q\0\t"]),
        (r"['\ud83d\ude00\ud800']", ["😀�"]),
        ("{{a:1}:{{b:1}:1}}", {'{"a":1}': {'{"b":1}': 1}}),
        ("\ufeff[1]", [1]),
    ],
)
def test_reads_what_java_reads(text: str, value: Any) -> None:
    assert fastjson.loads(text) == value
    assert fastjson.loads(text.encode()) == value


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "a value is missing"),
        (b"{", "a name is missing"),
        (b"{,", "a name is missing"),
        (b"{a", "a colon is missing"),
        (b"{a:", "a value is missing"),
        (b"{a:1", "',' or '}' is missing"),
        (b"[1 2]", "',' or ']' is missing"),
        (b"[1,}", "a value is missing"),
        (b"'abc", "does not end"),
        (b"'abc\\", "does not end"),
        (rb"'\u12'", "hexadecimal digits are missing"),
        (b"{} x", "unexpected text after the value"),
        (b"{:1}", "a name is missing"),
        (b"\xff", "not UTF-8"),
        (b"{" * 1000, "a key within a key"),
        (b"{" * 60 + b"a:1" + b"}:1" * 59 + b"}", "a key within a key"),  # each level would double the text of the key
        (b"{{a:{{b:1}:1}}:1}", "a key within a key"),
        (b"{a:" * 1000, "nested deeper than 64"),
        (b"[" * 100_000, "nested deeper than 64"),
        (b"'" + b"1" * 500 + b"',", "unexpected text after the value"),
        (b"," + b"1" * 500, "a value is missing"),
        (b"[" + b"1" * 500 + b",,]", "a value is missing"),
    ],
)
def test_not_json(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        fastjson.loads(data)


@given(st.binary(max_size=60))
@example(b'"\\ud800"')
@example(b"1e999")
@example(b"9" * 30)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        value = fastjson.loads(data)
    except ProtocolError:
        return
    fastjson.dumps(value)


@given(st.text(st.sampled_from("{}[]:,'\"\\ux01a/* \n-.eE"), max_size=30))
def test_almost_json_is_read_or_refused(text: str) -> None:
    try:
        value = fastjson.loads(text)
    except ProtocolError:
        return
    fastjson.dumps(value)


@given(queues)
def test_queues_as_keys(queue: MessageQueue) -> None:
    for text in (fastjson.dumps({queue: 1}), fastjson.dumps({queue: 1}, standard=True)):
        assert [fastjson.queue_key(key) for key in fastjson.loads(text)] == [queue]
    assert fastjson.queue_of(fastjson.loads(fastjson.dumps(queue))) == queue


@pytest.mark.parametrize(
    "text", ["1", "[]", "{}", '{"topic":1}', '{"topic":"t","queueId":"x"}', '{"topic":"t","queueId":1.5}']
)
def test_not_a_queue(text: str) -> None:
    with pytest.raises(ProtocolError):
        fastjson.queue_key(text)


def test_pretty_is_indented_and_sorted() -> None:
    text = fastjson.pretty({"b": {1: 2}, "a": [], "c": {}}).decode()
    assert text == '{\n\t"a":[],\n\t"b":{\n\t\t"1":2\n\t},\n\t"c":{}\n}'


def test_reads_a_file_of_the_java_broker() -> None:
    text = '{\n\t"dataVersion":{\n\t\t"counter":2\n\t},\n\t"offsetTable":{\n\t\t"T@g":{0:7,3:8\n\t\t}\n\t}\n}'
    assert fastjson.loads(text) == {"dataVersion": {"counter": 2}, "offsetTable": {"T@g": {"0": 7, "3": 8}}}

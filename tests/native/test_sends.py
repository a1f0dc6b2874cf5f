"""What happens once per message of a producer: the twin and the compiled code do the same."""

from __future__ import annotations

import gc
import pickle
import sys
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.message import Message, MessageQueue, SendResult, SendStatus
from tests.native.conftest import load_kernel
from tests.store.stores import kernels

KINDS = kernels()
SETTERS = tuple(
    vars(SendResult)[name]
    for name in "message_id queue_offset status queue offset_id transaction_id region trace_on recall_handle".split()
)


@dataclass
class Sink:
    is_done: bool = False
    told: list[Any] = field(default_factory=list)

    def done(self) -> bool:
        return self.is_done

    def set_result(self, result: Any) -> None:
        self.told.append(result)


@dataclass
class Limits:
    """Of what is in flight; and how much of it was given back when each sink was told."""

    sizes: list[int] = field(default_factory=list)
    count: int = 0

    def give_back(self, size: int, count: int = 1) -> None:
        self.sizes.append(size)
        self.count += count


@dataclass
class Asking(Sink):
    limits: Limits | None = None
    seen: int = -1

    def set_result(self, result: Any) -> None:
        super().set_result(result)
        assert self.limits is not None
        self.seen = self.limits.count


messages = st.builds(
    Message,
    st.sampled_from(["tea", "%RETRY%tea"]),
    st.binary(min_size=1, max_size=40),
    tags=st.sampled_from(["", "new"]),
    keys=st.sampled_from([(), ("k",)]),
    properties=st.sampled_from([{}, {"cups": "2"}]),
    flag=st.sampled_from([0, 0, 0, 7]),
    delay_level=st.sampled_from([0, 0, 0, 3]),
    wait_stored=st.booleans(),
    sharding_key=st.sampled_from(["", "s"]),
    transaction_id=st.sampled_from(["", "", "t"]),
)
late = messages.map(lambda message: Message(message.topic, message.body, delay=1)) | messages.map(
    lambda message: Message(message.topic, message.body, deliver_at=1)
)


def entry(kind: str, message: Message, sink: Any, limits: Any = None) -> Any:
    made = load_kernel(kind).SendEntry(message, sink, limits, "key", None, 2.0, 5.5, 77)
    if not made.weight:
        made.weight = 300
    return made


@pytest.mark.parametrize("kind", KINDS)
@given(messages | late)
def test_what_is_known_of_a_message_from_the_beginning(kind: str, message: Message) -> None:
    made, twin = (load_kernel(one).SendEntry(message, None, 1, "key", None, 2.0, 5.5, 77) for one in (kind, "twin"))
    for name in type(twin).__slots__:
        assert getattr(made, name) == getattr(twin, name), name
    assert made.limit == 3.5
    assert (made.weight == 0) == bool(message.tags or message.keys or message.properties or message.sharding_key)
    with pytest.raises(AttributeError):
        made.no_such_field = 1


@pytest.mark.parametrize("kind", KINDS)
@given(
    st.lists(st.tuples(messages, st.sampled_from(["", "", "", "done", "settled"])), max_size=30),
    st.integers(1, 1500),
    st.integers(1, 10),
)
def test_what_leaves_together(kind: str, given_: list[tuple[Message, str]], bytes_max: int, count_max: int) -> None:
    def taken(one: str) -> list[Any]:
        entries = [entry(one, message, Sink(state == "done")) for message, state in given_]
        for made, (_, state) in zip(entries, given_, strict=True):
            made.settled = state == "settled"
        numbers = {id(made): number for number, made in enumerate(entries)}
        waiting, steps = deque(entries), []
        while waiting:
            found, gone, weight = load_kernel(one).front_entries(waiting, bytes_max, count_max)
            assert found or gone
            assert weight == sum(made.weight for made in [*found, *gone])
            steps.append([[numbers[id(made)] for made in part] for part in (found, gone)])
        assert load_kernel(one).front_entries(waiting, bytes_max, count_max) == ([], [], 0)
        return steps

    steps = taken(kind)
    assert steps == taken("twin")
    assert sorted(number for step in steps for part in step for number in part) == list(range(len(given_)))
    for found, _ in steps:
        assert len(found) <= count_max
        several = [given_[number][0] for number in found]
        assert len(several) < 2 or len({message.wait_stored for message in several}) == 1


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.tuples(messages, st.sampled_from(["", "", "done", "settled"]), st.sampled_from("ab")), max_size=20))
def test_each_is_told_once_and_its_limits_get_back_what_it_took(
    kind: str, given_: list[tuple[Message, str, str]]
) -> None:
    kernel = load_kernel(kind)
    limits = {"a": Limits(), "b": Limits()}
    sinks = [Asking(state == "done", limits=limits[name]) for _, state, name in given_]
    entries = [entry(kind, message, sink, limits[name]) for (message, _, name), sink in zip(given_, sinks, strict=True)]
    for made, (_, state, _) in zip(entries, given_, strict=True):
        made.settled = state == "settled"
    still_open = set(entries)
    kernel.settle_entries(entries, list(range(len(entries))), still_open)
    for number, (sink, (_, state, _)) in enumerate(zip(sinks, given_, strict=True)):
        assert sink.told == ([number] if state == "" else [])
    assert still_open == {made for made, (_, state, _) in zip(entries, given_, strict=True) if state == "settled"}
    assert all(made.settled for made in entries)
    for name, whose_limits in limits.items():
        own = [len(message.body) for message, state, whose in given_ if state != "settled" and whose == name]
        assert whose_limits.count == len(own)
        assert sum(whose_limits.sizes) == sum(own)
        seen = {sink.seen for sink in sinks if sink.told and sink.limits is whose_limits}
        assert seen <= {len(own)}, "who is told finds all the room that the burst had taken"
    with pytest.raises(ValueError, match="messages have"):
        kernel.settle_entries(entries, [None] * (len(entries) + 1), still_open)


@pytest.mark.parametrize("kind", KINDS)
@given(st.text("0123456789ABCDEFé", max_size=30), st.integers(0, 0xFFFF), st.integers(0, 300))
def test_ids_count_in_their_last_four_digits(kind: str, beginning: str, first: int, count: int) -> None:
    made = load_kernel(kind).unique_ids(beginning, first, count)
    assert made == [f"{beginning}{(first + number) % 65536:04X}" for number in range(count)]


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(0, 50))
def test_objects_are_filled_as_their_constructor_would(kind: str, count: int) -> None:
    queue = MessageQueue("tea", "a", 3)
    ids, offsets = [f"id-{n}" for n in range(count)], list(range(7, 7 + count))
    shared = (SendStatus.OK, queue, "o", "t", "r", False, "h")
    made = load_kernel(kind).filled_objects(SendResult, SETTERS, (ids, offsets), shared, count)
    assert made == [
        SendResult(
            status=SendStatus.OK,
            message_id=ids[n],
            queue=queue,
            queue_offset=offsets[n],
            offset_id="o",
            transaction_id="t",
            region="r",
            trace_on=False,
            recall_handle="h",
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_objects_are_not_filled_with_what_does_not_fit(kind: str) -> None:
    fill = load_kernel(kind).filled_objects
    with pytest.raises(ValueError, match="one setter for each"):
        fill(SendResult, SETTERS, (["a"],), (), 1)
    with pytest.raises(ValueError, match="too short"):
        fill(SendResult, SETTERS[:1], (["a"],), (), 2)
    with pytest.raises(TypeError, match="descriptor of a slot"):
        fill(SendResult, (len,), (["a"],), (), 1)
    with pytest.raises(TypeError):
        fill(MessageQueue, SETTERS[:1], (["a"],), (), 1)  # the slot of another class


# -- messages made quickly -----------------------------------------------------------------------------------------------

VALUES = st.one_of(
    st.sampled_from(
        [
            "",
            "tea",
            "a tag",
            "täg",
            "*",
            "%RETRY%g",
            " x",
            "a||b",
            b"",
            b"body",
            bytearray(b"b"),
            memoryview(b"m"),
            None,
        ]
    ),
    st.sampled_from([(), ("k",), ["k"], "k1 k2", {}, {"a": "b"}, {"a": 1}, 0, 1, -1, True, False, 0.0, 1.5, 1 << 40]),
    st.builds(timedelta, seconds=st.integers(0, 5)),
)
NAMES = tuple(field.name for field in fields(Message))


@given(
    st.lists(VALUES, max_size=14),
    st.dictionaries(st.sampled_from([*NAMES, "colour"]), VALUES, max_size=6),
    st.booleans(),
)
def test_a_message_made_quickly_is_the_one_that_the_constructor_makes(
    values: list[object], named: dict[str, object], usual: bool
) -> None:
    load_kernel("native").quick_messages(Message, NAMES)
    if usual:
        values[:2] = ["tea", b"cup"]
        named = {name: value for name, value in named.items() if name not in ("topic", "body")}
    assert made_by(Message, values, named) == made_by(by_constructor, values, named)


def by_constructor(*values: Any, **named: Any) -> Message:
    message = object.__new__(Message)
    Message.__init__(message, *values, **named)
    return message


def made_by(make: Callable[..., Message], values: list[object], named: dict[str, object]) -> object:
    try:
        made = make(*values, **named)
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    found = [getattr(made, name) for name in NAMES]
    return found, [type(value) for value in found], repr(made)


@given(VALUES, st.dictionaries(st.sampled_from(NAMES[2:]), VALUES, max_size=3))
def test_an_entry_reads_a_message_as_its_twin_does(topic: object, named: dict[str, Any]) -> None:
    load_kernel("native").quick_messages(Message, NAMES)
    try:
        message = Message(topic, b"cup", **named)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return
    made, twin = (
        load_kernel(one).SendEntry(message, None, None, None, None, 0.0, 1.0, 2) for one in ("native", "twin")
    )
    assert [getattr(made, name) for name in ("size", "weight", "joins", "plain")] == [
        getattr(twin, name) for name in ("size", "weight", "joins", "plain")
    ]


def test_a_message_made_quickly_is_a_message_in_every_other_respect() -> None:
    load_kernel("native").quick_messages(Message, NAMES)

    class Letter(Message):
        __slots__ = ()

    made = Message("tea", b"cup", tags="green")
    assert pickle.loads(pickle.dumps(made)) == made
    assert replace(made, tags="black") == Message("tea", b"cup", "black")
    assert made.properties is not Message("tea", b"cup").properties
    assert type(Letter("tea", b"cup")) is Letter
    assert Letter("tea", b"cup").wait_stored is True
    with pytest.raises(FrozenInstanceError):
        made.topic = "coffee"  # type: ignore[misc]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'body'"):
        Message("tea")  # type: ignore[call-arg]
    watched = sys.getrefcount(NAMES), sys.getrefcount(made.body)
    for _ in range(100):
        Message("tea", made.body)
    assert (sys.getrefcount(NAMES), sys.getrefcount(made.body)) == watched
    with pytest.raises(TypeError, match="not the class of messages"):
        load_kernel("native").quick_messages(Letter, NAMES)


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.tuples(st.sampled_from(["tea", "".join(["t", "ea"]), "milk"]), st.floats(0, 100)), max_size=12))
def test_entries_in_a_row_are_sorted_by_topic(kind: str, wanted: list[tuple[str, float]]) -> None:
    kernel = load_kernel(kind)
    entries = [kernel.SendEntry(Message(topic, b"x"), None, None, None, None, 0.0, due, 0) for topic, due in wanted]
    found, deadline = kernel.entries_by_topic(entries)
    assert [entry for _, part in found for entry in part] == entries
    assert all(entry.message.topic == topic for topic, part in found for entry in part)
    assert all(one[0] != other[0] for one, other in pairwise(found))
    assert deadline == min((due for _, due in wanted), default=float("inf"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_to_be_looked_at_is_not_plain(kind: str) -> None:
    entry = load_kernel(kind).SendEntry
    assert entry(Message("tea", b"x"), None, None, None, None, 0.0, 1.0, 0).plain
    for message in (
        Message("tea", b""), Message("tea", bytes(5000)), Message("%RETRY%g", b"x"), Message("tea", b"x", "tag"),
        Message("tea", b"x", keys="k"), Message("tea", b"x", properties={"a": "b"}), Message("tea", b"x", flag=1),
        Message("tea", b"x", delay=1), Message("tea", b"x", deliver_at=1), Message("tea", b"x", delay_level=1),
        Message("tea", b"x", transaction_id="t"), Message("tea", b"x", sharding_key="s"),
    ):  # fmt: skip
        assert not entry(message, None, None, None, None, 0.0, 1.0, 0).plain, message
    assert not entry(Message("tea", b"x"), None, None, "key", None, 0.0, 1.0, 0).plain
    assert not entry(Message("tea", b"x"), None, None, None, MessageQueue("tea", "b", 0), 0.0, 1.0, 0).plain


@pytest.mark.parametrize("kind", KINDS)
def test_a_callback_is_told_once_and_what_it_raises_stops_nobody(kind: str) -> None:
    kernel = load_kernel(kind)
    told: list[tuple[Any, Any]] = []
    raised: list[BaseException | None] = []

    def tell(result: Any, error: Any) -> None:
        told.append((result, error))
        if result == 1:
            raise RuntimeError("spilled")

    limits = Limits()
    sinks = [kernel.CallbackSink(tell, lambda: raised.append(sys.exc_info()[1])) for _ in range(5)]
    gone = RuntimeError("gone")
    sinks[3].set_exception(gone)
    entries = [kernel.SendEntry(Message("tea", b"x"), sink, limits, None, None, 0.0, 1.0, 0) for sink in sinks]
    found, left, _ = kernel.front_entries(deque(entries), 10_000, 10)
    assert (found, left) == ([*entries[:3], entries[4]], [entries[3]])
    assert [sink.done() for sink in sinks] == [False, False, False, True, False]
    kernel.settle_entries(entries, list(range(5)), set(entries))
    assert told == [(None, gone), (0, None), (1, None), (2, None), (4, None)]
    assert [str(error) for error in raised] == ["spilled"]
    assert all(sink.done() for sink in sinks)
    assert limits.count == 5
    with pytest.raises(SystemExit):
        kernel.CallbackSink(lambda result, error: sys.exit(), list).set_result(1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_that_leads_to_itself_is_collected_after_its_way(kind: str) -> None:
    kernel = load_kernel(kind)

    class Watched:
        pass

    message, watched = Message("tea", b"cup"), Watched()
    sent = [kernel.SendEntry(message, None, Limits(), None, None, 0.0, 1.0, 0) for _ in range(2)]
    assert gc.is_tracked(message) is (kind == "twin")
    message.properties["self"] = message, watched  # type: ignore[index]
    gone = weakref.ref(watched)
    sent.pop()
    sent.pop()
    assert gc.is_tracked(message)
    del message, watched
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_leads_to_nothing_is_spared_by_the_collector(kind: str) -> None:
    kernel = load_kernel(kind)
    values = SendStatus.OK, MessageQueue("tea", "a", 3), "o", "t", "r", False, "h"
    (result,) = kernel.filled_objects(SendResult, SETTERS, (["id"], [7]), values, 1, True)
    assert gc.is_tracked(result) is (kind == "twin")
    assert pickle.loads(pickle.dumps(result)) == replace(result)
    (result,) = kernel.filled_objects(SendResult, SETTERS, (["id"], [7]), values, 1)
    assert gc.is_tracked(result)
    with_more = Message("tea", b"cup", properties={"a": "b"})
    made = kernel.SendEntry(with_more, None, Limits(), None, None, 0.0, 1.0, 0)
    assert gc.is_tracked(with_more)
    assert gc.is_tracked(made)

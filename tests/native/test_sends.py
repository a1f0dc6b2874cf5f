"""What happens once per message of a producer: the twin and the compiled code do the same."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
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

"""Cutting a long list into batches."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.client.consumer.pull_consumer import AsyncPullConsumer
from kappamq.client.producer.batching import cut, size_of
from kappamq.client.producer.outgoing import together
from kappamq.client.producer.producer import AsyncProducer
from kappamq.config.client import ClientConfig
from kappamq.errors import IllegalMessage
from kappamq.message import Message
from kappamq.protocol.records import properties
from tests.client.loop import on_loop
from tests.client.real import real_cluster

CONFIG = ClientConfig(nameservers=("a:1",))
ID = "7F00000138AF0FF046834CB5BA830000"


@given(st.lists(st.integers(1, 900), max_size=60), st.integers(1, 10))
def test_every_batch_fits_and_nothing_is_lost(sizes: list[int], count_max: int) -> None:
    messages = [Message("tea", bytes(size), keys=f"k{number}") for number, size in enumerate(sizes)]
    parts = list(cut(messages, 3000, count_max))
    assert [message for part in parts for message in part] == messages
    for part in parts:
        assert 1 <= len(part) <= count_max
        assert len(together(part, [ID] * len(part), 0, CONFIG).body) <= 3000
    for one, following in itertools.pairwise(parts):  # none is smaller than it need be
        assert len(one) == count_max or sum(map(size_of, one)) + size_of(following[0]) > 3000


def test_an_endless_stream_is_cut_as_it_comes() -> None:
    taken = []

    def stream():
        for number in itertools.count():
            taken.append(number)
            yield Message("tea", b"x")

    parts = cut(stream(), 1 << 20, 10)
    assert len(next(parts)) == 10
    assert len(taken) == 11


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (Message("cake", b"x"), "one topic, this one has 'tea' and 'cake'"),
        (Message("tea", b"x", delay_level=3), "cannot be delayed"),
        (Message("tea", b"x", transaction_id="t"), "transaction"),
        (Message("tea", b"x", wait_stored=False), "wait_stored"),
        (Message("tea", bytes(5000)), "one message takes about .* a batch holds 3000"),
        (Message("%RETRY%g", b"x"), "retry topic"),
    ],
    ids=["topics", "delay", "transaction", "wait", "large", "retry"],
)
def test_what_cannot_be_in_a_batch_is_told_after_the_good_ones_before_it(bad: Message, text: str) -> None:
    good = [Message("tea", b"%d" % n) for n in range(3)]
    parts = cut([*good, bad, *good], 3000, 100)
    assert next(parts) == good
    with pytest.raises(IllegalMessage, match=text):
        next(parts)


def test_a_batch_has_at_least_one_message() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        next(cut([], 100, 0))
    assert list(cut([], 100, 1)) == []


names = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=("Cs",)), min_size=1, max_size=20)


@given(
    st.binary(min_size=1, max_size=50),
    names.map(str.strip).filter(lambda tag: tag not in ("", "*") and "||" not in tag),
    st.lists(names.map(lambda text: "".join(text.split())).filter(bool), max_size=3),
    st.dictionaries(
        names.filter(lambda name: name.strip() and name not in properties.RESERVED), names.filter(str.strip)
    ),
)
def test_the_estimated_size_is_never_too_small(body: bytes, tag: str, keys: list[str], extra: dict[str, str]) -> None:
    message = Message("tea", body, tags=tag, keys=tuple(keys), properties=extra)
    assert len(together([message], [ID], 0, CONFIG).body) <= size_of(message)


@on_loop
async def test_keys_tags_and_properties_of_each_message_are_kept(tmp_path: Path) -> None:
    messages = [
        Message("tea", b"%d" % n, tags=f"t{n % 3}", keys=(f"k{n}", "all"), properties={"n": str(n)}, flag=n)
        for n in range(250)
    ]
    async with real_cluster(tmp_path) as cluster, AsyncProducer(**cluster.options()) as producer:
        (queue, *_) = await producer.queues("tea")
        results = [
            result
            for part in producer.in_batches(iter(messages), count_max=40)
            for result in await producer.send_batch(part, queue=queue)
        ]
        assert [result.queue_offset for result in results] == list(range(250))
        async with AsyncPullConsumer(**cluster.options(), group="g") as consumer:
            received = [message async for message in consumer.read(queue, 0)]
        assert [(one.body, one.tags, one.keys, one.properties["n"], one.flag, one.message_id) for one in received] == [
            (sent.body, sent.tags, sent.keys, sent.properties["n"], sent.flag, result.message_id)
            for sent, result in zip(messages, results, strict=True)
        ]
        assert [one.offset_id for one in received] == [result.offset_id for result in results]

"""Dead letters, with real servers: ours by default, Apache's with INTEROP_TARGETS=apache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kappamq.client import Admin, AsyncDeadLetters, Consumer, DeadLetters, Producer
from kappamq.client.admin.dead_letters import RESENT_FROM, DeadLetter
from kappamq.errors import InvalidParameter, QueryNotFound
from kappamq.message import Message, ReceivedMessage, Redeliver
from kappamq.testing import BrokerKit
from tests.client.fake import fake_cluster
from tests.interop.targets import Target
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(180)

Fresh = Callable[[str], str]


class Dying:
    """A topic, and a group that cannot deal with what is in it."""

    def __init__(self, server: Target, fresh: Fresh, count: int) -> None:
        self.nameserver, self.kind = server.nameserver, server.kind
        self.topic, self.group = fresh("T"), fresh("G")
        self.sent = []
        with Admin(self.nameserver) as admin, Producer(self.nameserver) as producer:
            admin.create_topic(self.topic, queues=2)
            for number in range(count):
                message = Message(
                    self.topic, b"order %d" % number, tags="new", keys=("k", f"k{number}"), properties={"cup": "blue"}, flag=7
                )  # fmt: skip
                self.sent.append(producer.send(message))
        with (
            Consumer(
                self.nameserver,
                group=self.group,
                topics=self.topic,
                consume_from="first",
                listener=lambda message: Redeliver(level=-1),
            ),
            self.letters() as letters,
        ):
            eventually(lambda: letters.count() == count, timeout=60)

    def letters(self) -> DeadLetters:
        return DeadLetters(self.nameserver, group=self.group)

    def received(self, topic: str, group: str, count: int) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        with Consumer(
            self.nameserver, group=group, topics=topic, consume_from="first", listener=lambda m: found.append(m)
        ):
            eventually(lambda: len(found) >= count, timeout=60)
        return found


@pytest.fixture
def dying(server: Target, fresh: Fresh) -> Callable[[int], Dying]:
    return lambda count: Dying(server, fresh, count)


def test_they_are_listed_in_pages_with_where_they_came_from(dying: Callable[[int], Dying]) -> None:
    here = dying(5)
    with here.letters() as letters:
        assert letters.topic == f"%DLQ%{here.group}"
        page = letters.page(2)
        seen = [page.letters]
        while page.next is not None:
            page = letters.page(2, after=page)
            seen.append(page.letters)
        assert [len(part) for part in seen if part] == [2, 2, 1]
        assert letters.page(after=page).letters == ()
        listed = [letter for part in seen for letter in part]
        assert listed == list(letters)
        assert {letter.origin_message_id for letter in listed} == {result.message_id for result in here.sent}
        results = {result.message_id: result for result in here.sent}
        for letter in listed:
            assert (letter.origin_topic, letter.group, letter.tries) == (here.topic, here.group, 0)
            assert letter.origin_offset_id == results[letter.origin_message_id].offset_id
            assert letter.own_properties == {"cup": "blue"}
        moment = max(letter.message.stored_ms for letter in listed) + 60_000
        assert letters.page(begin=moment).letters == ()
        assert letters.page(begin=listed[0].message.stored_ms).letters == tuple(listed)
        with pytest.raises(InvalidParameter, match="at least 1"):
            letters.page(0)


def test_one_is_found_by_any_of_its_ids(dying: Callable[[int], Dying]) -> None:
    here = dying(2)
    with here.letters() as letters:
        first, second = letters
        for name in (first.id, first.origin_message_id):
            assert eventually(lambda name=name: found(letters, name)) == first  # type: ignore[misc]
        history = eventually(lambda: (way := letters.history(first.id)) and len(way) == 2 and way)
        assert [message.topic for message in history] == [here.topic, letters.topic]
        assert history[0].offset_id == first.origin_offset_id
        assert second.id not in {message.offset_id for message in history}
        with pytest.raises(QueryNotFound, match="no dead letter"):
            letters.get("0" * 32)
        with pytest.raises(QueryNotFound, match=f"is in {here.topic}"):
            letters.get(first.origin_offset_id)


def found(letters: DeadLetters, name: str) -> DeadLetter | None:
    """Brokers enter ids into their index a moment after they store a message."""
    try:
        return letters.get(name)
    except QueryNotFound:
        return None


def test_what_is_sent_again_is_as_it_was_and_only_sent_once(dying: Callable[[int], Dying]) -> None:
    here = dying(1)
    with here.letters() as letters:
        (letter,) = letters
        assert letters.resent(letter) is None
        result = letters.resend(letter)
        assert (result.ok, result.message_id, result.queue.topic) == (True, letter.origin_message_id, here.topic)
        eventually(lambda: letters.resent(letter))
        twice = letters.resend(letter)
        assert (twice.queue, twice.queue_offset, twice.offset_id) == (
            result.queue,
            result.queue_offset,
            result.offset_id,
        )
        both = here.received(here.topic, f"{here.group}-other", 2)
        first, again = sorted(both, key=lambda message: RESENT_FROM in message.properties)
        assert (again.body, again.tags, again.keys, again.flag) == (first.body, first.tags, first.keys, first.flag)
        assert (again.message_id, again.properties["cup"]) == (first.message_id, "blue")
        assert again.properties[RESENT_FROM] == letter.id
        assert again.reconsume_times == 0
        assert letters.resend(letter, again=True).offset_id != result.offset_id
        assert len(here.received(here.topic, f"{here.group}-third", 3)) == 3


def test_a_tag_that_we_would_not_send_stays_as_it_is() -> None:
    """Other clients check less."""
    with BrokerKit() as kit, kit.producer() as producer:
        odd = Message("tea", b"x")
        object.__setattr__(odd, "tags", "a||b")
        producer.send(odd)
        refuse = kit.consumer(
            group="g", topics="tea", consume_from="first", listener=lambda message: Redeliver(level=-1)
        )
        with refuse, DeadLetters(config=kit.client_config, group="g") as letters:
            eventually(lambda: letters.count() == 1)
            (letter,) = letters
            letters.resend(letter)
            again = eventually(lambda: letters.resent(letter))
            assert again is not None
            assert (again.body, again.tags) == (b"x", "a||b")


def test_only_the_group_that_failed_gets_it_again(dying: Callable[[int], Dying]) -> None:
    here = dying(1)
    with here.letters() as letters:
        (letter,) = letters
        result = letters.resend(letter, only_group=True)
        assert result.queue.topic == f"%RETRY%{here.group}"
        (again,) = here.received(here.topic, here.group, 1)
        assert (again.topic, again.body, again.message_id) == (here.topic, b"order 0", letter.origin_message_id)
        assert len(here.received(here.topic, f"{here.group}-other", 1)) == 1
        eventually(lambda: letters.resent(letter, topic=result.queue.topic))
        assert letters.resend(letter, only_group=True).offset_id == result.offset_id


def test_a_group_that_never_failed_has_none(server: Target, fresh: Fresh) -> None:
    with DeadLetters(server.nameserver, group=fresh("G")) as letters:
        assert letters.count() == 0
        assert letters.page().letters == ()
        assert list(letters) == []
        with pytest.raises(QueryNotFound, match="no dead letter"):
            letters.get("7F000001000000000000000000000000")


def test_one_without_an_origin_needs_a_topic(server: Target, fresh: Fresh) -> None:
    """Somebody has sent it there by hand."""
    group, topic = fresh("G"), fresh("T")
    with Admin(server.nameserver) as admin, Producer(server.nameserver) as producer:
        for name in (f"%DLQ%{group}", topic):
            admin.create_topic(name, queues=1)
        producer.send(Message(f"%DLQ%{group}", b"by hand"))
    with DeadLetters(server.nameserver, group=group) as letters:
        (letter,) = letters
        assert (letter.origin_topic, letter.origin_offset_id) == ("", "")
        with pytest.raises(InvalidParameter, match="pass `topic`"):
            letters.resend(letter)
        assert letters.resend(letter, topic=topic).queue.topic == topic


def test_the_history_of_a_message_that_was_tried_three_times() -> None:
    def fail(message: ReceivedMessage) -> None:
        raise ValueError("never")

    with BrokerKit() as broker:
        with (
            broker.producer() as producer,
            broker.consumer(group="g", topics="t", listener=fail, consume_from="first", reconsume_max=3),
        ):
            sent = producer.send(Message("t", b"x", keys="k"))
            for _ in range(4):
                broker.clock.advance("2h")
        assert len(broker.messages("%DLQ%g")) == 1
        with DeadLetters(config=broker.client_config, group="g") as letters:
            (letter,) = letters
            assert (letter.tries, letter.origin_topic) == (3, "t")
            way = letters.history(letter)
            assert [message.topic for message in way] == ["t", "%RETRY%g", "%RETRY%g", "%RETRY%g", "%DLQ%g"]
            assert [message.reconsume_times for message in way] == [0, 1, 2, 3, 4]
            assert {message.message_id for message in way} == {sent.message_id}


def test_the_asyncio_face(dying: Callable[[int], Dying]) -> None:
    here = dying(3)

    async def main() -> None:
        async with AsyncDeadLetters(here.nameserver, group=here.group) as letters:
            assert await letters.count() == 3
            assert len([letter async for letter in letters]) == 3
            (one,) = (await letters.page(1)).letters
            assert (await letters.resend(one)).ok

    asyncio.run(main())


def test_a_page_over_several_brokers_is_in_order() -> None:
    """Each has a queue of its own; which one a dead letter lies in is nobody's business."""

    async def main() -> None:
        async with fake_cluster(brokers=2, **{"%DLQ%g": 1}) as cluster:
            for number in range(5):
                broker = cluster.brokers[number % 2]
                broker.put("%DLQ%g", 0, b"%d" % number)
                broker.log[-1].stored_ms = 1000 + number
            async with AsyncDeadLetters(**cluster.options(), group="g") as letters:
                page = await letters.page(3)
                assert [letter.message.body for letter in page.letters] == [b"0", b"1", b"2"]
                page = await letters.page(3, after=page)
                assert [letter.message.body for letter in page.letters] == [b"3", b"4"]

    asyncio.run(main())

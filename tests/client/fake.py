"""Name servers and brokers that do, over real sockets, as much of the protocol as the client's own logic needs.

What no real broker does on command is scripted: `broker.script(code, ...)` replaces the next answers to a request code.
Not a model of a broker: what a broker really answers is tested against ours and against Apache's.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

from kappamq.message import MessageQueue
from kappamq.protocol.bodies.clients import ConsumerData, ConsumerList, HeartbeatData, LockBatch, LockBatchResponse
from kappamq.protocol.bodies.topics import BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, FrameDecoder, reply, request
from kappamq.protocol.headers.client import (
    GetConsumerList,
    GetMaxOffset,
    NotifyConsumersChanged,
    OffsetResponse,
    PullMessage,
    PullMessageResponse,
    QueryConsumerOffset,
    SendBack,
    SendMessageResponse,
    SendMessageV2,
    UnregisterClient,
    UpdateConsumerOffset,
)
from kappamq.protocol.headers.nameserver import GetRoute
from kappamq.protocol.leader_hint import with_leader
from kappamq.protocol.records import batch
from kappamq.protocol.records.record import Record
from kappamq.protocol.records.tags import Subscription, tag_code

_OF_THE_MASTER = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
)
Answer = Frame | Awaitable[Frame | None] | None
Handler = Callable[["Peer", Frame], Answer]


class Peer:
    """One connection, seen from the server."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.answers: list[Frame] = []

    def send(self, frame: Frame) -> None:
        if not self.writer.is_closing():
            self.writer.write(frame.encode())

    def drop(self) -> None:
        self.writer.transport.abort()


class FakeServer:
    """Answers requests by their code, remembers them, and can be taken down and brought back on its port."""

    def __init__(self) -> None:
        self.port = 0
        self.requests: list[Frame] = []
        self.peers: dict[Peer, None] = {}  # in the order of their coming
        self._scripted: dict[int, deque[Handler]] = defaultdict(deque)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        for peer in list(self.peers):
            peer.drop()
        await asyncio.sleep(0)

    def script(self, code: RequestCode, *answers: Handler | int) -> None:
        """Let the next requests of `code` be answered so: a response code, or a function."""
        for answer in answers:
            self._scripted[code].append(answer if callable(answer) else _code(answer))

    def seen(self, code: RequestCode) -> list[Frame]:
        return [frame for frame in self.requests if frame.code == code and not frame.is_response]

    def handle(self, peer: Peer, frame: Frame) -> Answer:
        raise NotImplementedError

    def lost(self, peer: Peer) -> None:
        pass

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer, decoder = Peer(writer), FrameDecoder()
        self.peers[peer] = None
        try:
            while data := await reader.read(1 << 20):
                for frame in decoder.feed(data):
                    self.requests.append(frame)
                    if frame.is_response:
                        peer.answers.append(frame)
                    else:
                        self._answer(peer, frame)
        except ConnectionError:
            pass
        finally:
            self.peers.pop(peer, None)
            self.lost(peer)
            writer.close()

    def _answer(self, peer: Peer, frame: Frame) -> None:
        scripted = self._scripted[frame.code]
        result = scripted.popleft()(peer, frame) if scripted else self.handle(peer, frame)
        if isinstance(result, Awaitable):
            task = asyncio.ensure_future(self._answer_later(peer, frame, result))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif result is not None and not frame.is_oneway:
            peer.send(result)

    async def _answer_later(self, peer: Peer, frame: Frame, result: Awaitable[Frame | None]) -> None:
        answer = await result
        if answer is not None and not frame.is_oneway:
            peer.send(answer)


def _code(code: int) -> Handler:
    return lambda peer, frame: reply(frame, code, f"scripted {code}")


def never(peer: Peer, frame: Frame) -> None:
    """Answer nothing."""


def hang_up(peer: Peer, frame: Frame) -> None:
    """Close the connection instead of answering."""
    peer.drop()


class FakeBroker(FakeServer):
    """Keeps messages in lists, offsets in a dict, and knows its clients by their heartbeats."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.broker_id: int | None = 0  # as the name server knows it; None: not registered
        self.leader: str | None = None  # whom it names as the master while it is none
        self.pulled_by: list[PullMessage] = []
        self.suggested = 0
        self.queues: dict[tuple[str, int], list[Record]] = defaultdict(list)
        self.first: dict[tuple[str, int], int] = defaultdict(int)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.groups: dict[str, dict[str, tuple[Peer, ConsumerData]]] = defaultdict(dict)
        self.heard: dict[tuple[str, str], float] = {}  # (group, client id) -> loop time of the last heartbeat
        self.client_s = 120.0
        self.producers: set[str] = set()
        self.log: list[Record] = []
        self.spoil: dict[tuple[str, int, int], Callable[[bytes], bytes]] = {}  # what damage makes of a record
        self.locks: dict[tuple[str, MessageQueue], tuple[str, float]] = {}  # -> client id, loop time of the renewal
        self.lock_s = 60.0
        self.sent_back: list[SendBack] = []
        self._arrived: dict[asyncio.Future[None], None] = {}  # in the order of their coming
        self._handlers: dict[int, Handler] = {
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.SEND_BATCH_MESSAGE: self._send,
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.GET_MAX_OFFSET: self._max_offset,
            RequestCode.GET_MIN_OFFSET: self._min_offset,
            RequestCode.LITE_PULL_MESSAGE: self._pull,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
        }

    def handle(self, peer: Peer, frame: Frame) -> Answer:
        if self.broker_id != 0 and frame.code in _OF_THE_MASTER:
            return reply(frame, ResponseCode.SERVICE_NOT_AVAILABLE, with_leader("not the master now", self.leader))
        handler = self._handlers.get(frame.code)
        return handler(peer, frame) if handler else reply(frame, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "fake")

    def lost(self, peer: Peer) -> None:
        for group, members in self.groups.items():
            gone = [client for client, (known, _) in members.items() if known is peer]
            for client in gone:
                del members[client]
            if gone:
                self._notify(group)

    def put(self, topic: str, queue_id: int, *bodies: bytes, tag: str = "", **extra: str) -> None:
        """Store messages as if somebody had sent them."""
        tags = f"TAGS\x01{tag}\x02" if tag else ""
        text = tags + "".join(f"{name}\x01{value}\x02" for name, value in extra.items())
        for body in bodies:
            self._store(topic, queue_id, body, text)

    def stored(self, topic: str) -> list[bytes]:
        return [
            record.body for (name, _), records in sorted(self.queues.items()) if name == topic for record in records
        ]

    def _store(
        self, topic: str, queue_id: int, body: bytes, text: str, sys_flag: int = 0, reconsume_times: int = 0
    ) -> int:
        records = self.queues[topic, queue_id]
        offset = self.first[topic, queue_id] + len(records)
        record = Record(
            topic=topic,
            body=body,
            properties=text,
            queue_id=queue_id,
            queue_offset=offset,
            log_offset=len(self.log) * 1000,
            sys_flag=sys_flag,
            reconsume_times=reconsume_times,
            born_host=b"\x7f\0\0\1",
            store_host=b"\x7f\0\0\1",
            store_port=self.port,
        )
        records.append(record)
        self.log.append(record)
        for waiter in self._arrived:
            if not waiter.done():
                waiter.set_result(None)
        self._arrived.clear()
        return offset

    def _send(self, peer: Peer, frame: Frame) -> Frame:
        header = SendMessageV2.decode(frame.ext)
        members = [batch.Member(frame.body, header.properties or "", header.flag)]
        if frame.code == RequestCode.SEND_BATCH_MESSAGE:
            members = batch.split(frame.body)
        offsets = [
            self._store(
                header.topic,
                header.queue_id,
                member.body,
                member.properties,
                header.sys_flag,
                header.reconsume_times or 0,
            )
            for member in members
        ]
        ids = ",".join(f"{self.name}-{offset}" for offset in offsets)
        return reply(
            frame, header=SendMessageResponse(message_id=ids, queue_id=header.queue_id, queue_offset=offsets[0])
        )

    async def _pull(self, peer: Peer, frame: Frame) -> Frame:
        asked = PullMessage.decode(frame.ext)
        self.pulled_by.append(asked)
        wanted = Subscription.parse(asked.subscription or self._expression(asked.consumer_group, asked.topic))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + asked.hold_ms / 1000
        if asked.sys_flag & 1:
            self.offsets[asked.consumer_group, asked.topic, asked.queue_id] = asked.commit_offset
        while True:
            records, first = self.queues[asked.topic, asked.queue_id], self.first[asked.topic, asked.queue_id]
            end, start = first + len(records), asked.queue_offset
            if not first <= start <= end:
                return self._pulled(frame, ResponseCode.PULL_OFFSET_MOVED, first if start < first else end, first, end)
            part = records[start - first :][: asked.count_max]
            if part:
                found = [r for r in part if wanted.may_match(tag_code(r.property_map().get("TAGS")))]
                code = ResponseCode.SUCCESS if found else ResponseCode.PULL_RETRY_IMMEDIATELY
                body = b"".join(self._spoilt(record) for record in found)
                return self._pulled(frame, code, start + len(part), first, end, body)
            waiter: asyncio.Future[None] = loop.create_future()
            self._arrived[waiter] = None
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return self._pulled(frame, ResponseCode.PULL_NOT_FOUND, start, first, end)

    def _spoilt(self, record: Record) -> bytes:
        spoil = self.spoil.get((record.topic, record.queue_id, record.queue_offset))
        return record.encode() if spoil is None else spoil(record.encode())

    def _pulled(self, frame: Frame, code: int, following: int, first: int, end: int, body: bytes = b"") -> Frame:
        header = PullMessageResponse(
            suggested_broker_id=self.suggested, next_offset=following, min_offset=first, max_offset=end
        )
        return reply(frame, code, header=header, body=body)

    def _expression(self, group: str, topic: str) -> str:
        for _, data in self.groups[group].values():
            for subscription in data.subscriptions:
                if subscription.topic == topic:
                    return subscription.expression
        return "*"

    def _heartbeat(self, peer: Peer, frame: Frame) -> Frame:
        told = HeartbeatData.decode(frame.body)
        self.producers |= {producer.group for producer in told.producers}
        for data in told.consumers:
            new = told.client_id not in self.groups[data.group]
            self.groups[data.group][told.client_id] = (peer, data)
            self.heard[data.group, told.client_id] = asyncio.get_running_loop().time()
            if new:
                self._notify(data.group)
        return reply(frame)

    def _unregister(self, peer: Peer, frame: Frame) -> Frame:
        header = UnregisterClient.decode(frame.ext)
        if header.producer_group:
            self.producers.discard(header.producer_group)
        if header.consumer_group and self.groups[header.consumer_group].pop(header.client_id, None):
            self._notify(header.consumer_group)
        return reply(frame)

    def _notify(self, group: str) -> None:
        for peer, _ in self.groups[group].values():
            peer.send(request(NotifyConsumersChanged(consumer_group=group), oneway=True))

    def _members(self, peer: Peer, frame: Frame) -> Frame:
        group = GetConsumerList.decode(frame.ext).consumer_group
        members, oldest = self.groups[group], asyncio.get_running_loop().time() - self.client_s
        for client in [client for client in members if self.heard.get((group, client), oldest) < oldest]:
            del members[client]
        if not members:
            return reply(frame, ResponseCode.SYSTEM_ERROR, "no consumer for this group")
        return reply(frame, body=ConsumerList(consumer_ids=list(members)).encode())

    def _query_offset(self, peer: Peer, frame: Frame) -> Frame:
        asked = QueryConsumerOffset.decode(frame.ext)
        offset = self.offsets.get((asked.consumer_group, asked.topic, asked.queue_id))
        if offset is None:
            return reply(frame, ResponseCode.QUERY_NOT_FOUND, "not found")
        return reply(frame, header=OffsetResponse(offset=offset))

    def _update_offset(self, peer: Peer, frame: Frame) -> Frame:
        told = UpdateConsumerOffset.decode(frame.ext)
        self.offsets[told.consumer_group, told.topic, told.queue_id] = told.commit_offset
        return reply(frame)

    def _lock(self, peer: Peer, frame: Frame) -> Frame:
        wanted, now = LockBatch.decode(frame.body), asyncio.get_running_loop().time()
        granted = set()
        for queue in wanted.queues:
            owner, renewed = self.locks.get((wanted.consumer_group, queue), ("", 0.0))
            if owner in ("", wanted.client_id) or now - renewed > self.lock_s:
                self.locks[wanted.consumer_group, queue] = (wanted.client_id, now)
                granted.add(queue)
        return reply(frame, body=LockBatchResponse(locked=granted).encode())

    def _unlock(self, peer: Peer, frame: Frame) -> Frame:
        given = LockBatch.decode(frame.body)
        for queue in given.queues:
            if self.locks.get((given.consumer_group, queue), ("", 0.0))[0] == given.client_id:
                del self.locks[given.consumer_group, queue]
        return reply(frame)

    def _send_back(self, peer: Peer, frame: Frame) -> Frame:
        """Into the retry topic, or to the dead letters, at once: delays are not this fake's business."""
        header = SendBack.decode(frame.ext)
        self.sent_back.append(header)
        record = self.log[header.log_offset // 1000]
        dead = header.delay_level < 0 or record.reconsume_times >= (header.max_reconsume_times or 0)
        text = record.properties
        if "RETRY_TOPIC" not in text:
            text += f"RETRY_TOPIC\x01{record.topic}\x02"
        topic = ("%DLQ%" if dead else "%RETRY%") + header.group
        self._store(topic, 0, record.body, text, record.sys_flag, record.reconsume_times + (not dead))
        return reply(frame)

    def _max_offset(self, peer: Peer, frame: Frame) -> Frame:
        asked = GetMaxOffset.decode(frame.ext)
        where = asked.topic, asked.queue_id
        return reply(frame, header=OffsetResponse(offset=self.first[where] + len(self.queues[where])))

    def _min_offset(self, peer: Peer, frame: Frame) -> Frame:
        asked = GetMaxOffset.decode(frame.ext)
        return reply(frame, header=OffsetResponse(offset=self.first[asked.topic, asked.queue_id]))


class FakeNameServer(FakeServer):
    """Tells where the topics of its brokers are. `topics`: topic -> broker name -> number of queues."""

    def __init__(self, brokers: list[FakeBroker], topics: dict[str, dict[str, int]]) -> None:
        super().__init__()
        self.brokers = brokers
        self.topics = topics
        self.read_queues: dict[str, int] = {}  # where they differ from those to write

    def handle(self, peer: Peer, frame: Frame) -> Answer:
        if frame.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            topic = GetRoute.decode(frame.ext).topic
            if topic not in self.topics or not self._groups(self.topics[topic]):
                return reply(frame, ResponseCode.TOPIC_NOT_EXIST, f"No topic route info for {topic}")
            return reply(frame, body=self.route(topic).encode())
        if frame.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            brokers = {data.broker_name: data for data in self._groups({broker.name for broker in self.brokers})}
            return reply(frame, body=ClusterInfo(brokers=brokers, clusters={"c": set(brokers)}).encode())
        if frame.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return reply(frame, body=TopicList(topics=list(self.topics)).encode())
        return reply(frame, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "fake")

    def route(self, topic: str) -> TopicRouteData:
        queues = self.topics[topic]
        return TopicRouteData(
            queues=[QueueData(name, self.read_queues.get(topic, count), count, 6) for name, count in queues.items()],
            brokers=self._groups(queues),
        )

    def _groups(self, names: Collection[str]) -> list[BrokerData]:
        found: dict[str, BrokerData] = {}
        for broker in self.brokers:
            if broker.name in names and broker.broker_id is not None:
                group = found.setdefault(broker.name, BrokerData(cluster="c", broker_name=broker.name, addresses={}))
                group.addresses[broker.broker_id] = broker.address
        return list(found.values())


class FakeCluster:
    def __init__(self, brokers: list[FakeBroker], nameservers: list[FakeNameServer]) -> None:
        self.brokers = brokers
        self.nameservers = nameservers

    @property
    def broker(self) -> FakeBroker:
        return self.brokers[0]

    @property
    def address(self) -> str:
        return ";".join(server.address for server in self.nameservers)

    def create(self, topic: str, queues: int = 2, read_queues: int | None = None) -> None:
        for nameserver in self.nameservers:
            nameserver.topics[topic] = dict.fromkeys((broker.name for broker in self.brokers), queues)
            nameserver.read_queues[topic] = queues if read_queues is None else read_queues

    def options(self, **others: Any) -> dict[str, Any]:
        """For a client of this cluster; times short enough for a test that waits for them."""
        fast = {"rebalance_ms": 200, "commit_ms": 50, "pull_hold_ms": 500, "pull_pause_on_error_ms": 20}
        return {"nameserver": self.address, **fast, **others}


def promote(*group: FakeBroker) -> None:
    """The first of these is the master of their group from now on, and registered as such; the others follow it."""
    for number, broker in enumerate(group):
        broker.broker_id, broker.leader = number, group[0].address


@asynccontextmanager
async def fake_cluster(
    brokers: int = 1, nameservers: int = 1, members: int = 1, **topics: int
) -> AsyncIterator[FakeCluster]:
    """`members`: of each group; all of them have what one has, at once."""
    made = []
    for number in range(brokers):
        group = [FakeBroker(f"broker-{number}") for _ in range(members)]
        for broker_id, broker in enumerate(group):
            broker.broker_id, broker.queues, broker.first, broker.log, broker._arrived = (
                broker_id, group[0].queues, group[0].first, group[0].log, group[0]._arrived
            )  # fmt: skip
        made += group
    cluster = FakeCluster(made, [FakeNameServer(made, {}) for _ in range(nameservers)])
    servers: list[FakeServer] = [*cluster.brokers, *cluster.nameservers]
    for server in servers:
        await server.start()
    for topic, queues in topics.items():
        cluster.create(topic, queues)
    try:
        yield cluster
    finally:
        for server in servers:
            await server.stop()

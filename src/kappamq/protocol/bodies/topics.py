"""JSON bodies about topics: settings, routes, and registration by a broker."""

from __future__ import annotations

import struct
import zlib
from dataclasses import field
from typing import Any, Final, Self

from kappamq.errors import ProtocolError
from kappamq.protocol import fastjson
from kappamq.protocol.bodies.body import Body, wire
from kappamq.protocol.codes import VERSION, VERSION_QUEUE_MAPPING, VERSION_REGISTER_BODY

PERMISSION_PRIORITY: Final = 8
PERMISSION_READ: Final = 4
PERMISSION_WRITE: Final = 2
PERMISSION_INHERIT: Final = 1

TOPIC_QUEUES_MAX: Final = 65_536
"""So many queues a broker may have of a topic. Clients make an object of each one, so a larger count is refused, not believed."""
REGISTRATION_BYTES_MAX: Final = 64 << 20
"""A compressed registration is never decompressed beyond this: about 500,000 topics."""

_LENGTH = struct.Struct(">i")


class DataVersion(Body):
    """When and how often a table changed; equal versions mean equal tables."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(self.state_version, now_ms, self.counter + 1)


class TopicConfig(Body):
    name: str = wire("topicName", default="")
    read_queues: int = wire("readQueueNums", default=16)
    write_queues: int = wire("writeQueueNums", default=16)
    permission: int = wire("perm", default=PERMISSION_READ | PERMISSION_WRITE)
    filter_type: str = wire("topicFilterType", default="SINGLE_TAG")
    sys_flag: int = wire("topicSysFlag", default=0)
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


class TopicTable(Body):
    """All topics of a broker: the content of a registration, and of topics.json."""

    topics: dict[str, TopicConfig] = wire("topicConfigTable", default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    mapping_data_version: DataVersion | None = None
    mapping_infos: dict[str, Any] = wire("topicQueueMappingInfoMap", default_factory=dict)
    mapping_details: dict[str, Any] = wire("topicQueueMappingDetailMap", default_factory=dict)


class TopicConfigList(Body):
    topics: list[TopicConfig] = wire("topicConfigList", default_factory=list)


class QueueData(Body):
    """The number of queues of a topic on one broker."""

    broker_name: str = ""
    read_queues: int = wire("readQueueNums", default=0)
    write_queues: int = wire("writeQueueNums", default=0)
    permission: int = wire("perm", default=0)
    sys_flag: int = wire("topicSysFlag", default=0)


class BrokerData(Body):
    """The addresses of a broker group, by broker id; 0 is the master."""

    cluster: str = ""
    broker_name: str = ""
    addresses: dict[int, str] = wire("brokerAddrs", default_factory=dict)
    zone: str | None = wire("zoneName", default=None)
    acting_master: bool = wire("enableActingMaster", default=False)


class TopicRouteData(Body):
    queues: list[QueueData] = wire("queueDatas", default_factory=list)
    brokers: list[BrokerData] = wire("brokerDatas", default_factory=list)
    filter_servers: dict[str, list[str]] = wire("filterServerTable", default_factory=dict)
    order_conf: str | None = wire("orderTopicConf", default=None)
    mappings: dict[str, Any] | None = wire("topicQueueMappingByBroker", default=None)


class ClusterInfo(Body):
    brokers: dict[str, BrokerData] = wire("brokerAddrTable", default_factory=dict)
    clusters: dict[str, set[str]] = wire("clusterAddrTable", default_factory=dict)


class TopicList(Body):
    topics: list[str] = wire("topicList", default_factory=list)
    broker_address: str | None = wire("brokerAddr", default=None)


class KVTable(Body):
    table: dict[str, str] = field(default_factory=dict)


class BrokerMembers(Body):
    cluster: str = ""
    broker_name: str = ""
    addresses: dict[int, str] = wire("brokerAddrs", default_factory=dict)


class BrokerMemberGroup(Body):
    group: BrokerMembers | None = wire("brokerMemberGroup", default=None)


class RegisterBrokerBody(Body):
    """What a broker registers at a name server."""

    topics: TopicTable = wire("topicConfigSerializeWrapper", default_factory=TopicTable)
    filter_servers: list[str] = wire("filterServerList", default_factory=list)

    def encode_compressed(self) -> bytes:
        """Return the compact form, which lacks the system flags and the order flag of topics."""
        parts = [_counted(self.topics.data_version.encode()), _LENGTH.pack(len(self.topics.topics))]
        for topic in self.topics.topics.values():
            attributes = fastjson.dumps(topic.attributes).decode()
            line = f"{topic.name} {topic.read_queues} {topic.write_queues} {topic.permission} {topic.filter_type} "
            parts.append(_counted((line + attributes).encode()))
        parts += (_counted(fastjson.dumps(self.filter_servers)), _LENGTH.pack(len(self.topics.mapping_infos)))
        parts += (_counted(fastjson.dumps(info)) for info in self.topics.mapping_infos.values())
        return zlib.compress(b"".join(parts), 9)

    @classmethod
    def decode_any(
        cls, data: bytes, *, compressed: bool = False, version: int = VERSION, loose_bytes_max: int | None = None
    ) -> Self:
        """Decode a registration in the form its header names. Raises ProtocolError."""
        if not data:
            return cls()
        if compressed:
            return cls._decode_compressed(data, version, loose_bytes_max)
        if version < VERSION_REGISTER_BODY:
            return cls(topics=TopicTable.decode(data, loose_bytes_max=loose_bytes_max))
        return cls.decode(data, loose_bytes_max=loose_bytes_max)

    @classmethod
    def _decode_compressed(cls, data: bytes, version: int, loose_bytes_max: int | None) -> Self:
        stream = zlib.decompressobj()
        try:
            plain = stream.decompress(data, REGISTRATION_BYTES_MAX)
        except zlib.error as error:
            raise ProtocolError(f"the compressed registration cannot be decompressed: {error}") from None
        if not stream.eof:
            raise ProtocolError(
                f"the compressed registration is truncated or longer than {REGISTRATION_BYTES_MAX} bytes"
            )
        reader = _Sections(plain)
        body = cls()
        body.topics.data_version = DataVersion.decode(reader.bytes(), loose_bytes_max=loose_bytes_max)
        for _ in range(reader.number()):
            topic = _topic_of_line(reader.bytes(), loose_bytes_max)
            body.topics.topics[topic.name] = topic
        servers = fastjson.loads(reader.bytes() or b"[]", loose_bytes_max=loose_bytes_max)
        if not isinstance(servers, list) or not all(isinstance(server, str) for server in servers):
            raise ProtocolError("the filter servers of the compressed registration are not a list of strings")
        body.filter_servers = servers
        if version >= VERSION_QUEUE_MAPPING:
            for _ in range(reader.number()):
                info = fastjson.loads(reader.bytes(), loose_bytes_max=loose_bytes_max)
                if not isinstance(info, dict) or not isinstance(info.get("topic"), str):
                    raise ProtocolError("a queue mapping of the compressed registration names no topic")
                body.topics.mapping_infos[info["topic"]] = info
        return body


class _Sections:
    """The parts of a decompressed registration, each after its length."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        if len(self._data) - self._at < _LENGTH.size:
            raise ProtocolError("the compressed registration ends too early")
        (value,) = _LENGTH.unpack_from(self._data, self._at)
        self._at += _LENGTH.size
        # Every counted item has at least a length field, so no valid count is larger than this.
        if not 0 <= value <= len(self._data) - self._at:
            raise ProtocolError(f"the compressed registration has an impossible count of {value}")
        return int(value)

    def bytes(self) -> bytes:
        length = self.number()
        self._at += length
        return self._data[self._at - length : self._at]


def _counted(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _topic_of_line(line: bytes, loose_bytes_max: int | None) -> TopicConfig:
    try:
        name, read, write, permission, filter_type, *attributes = line.decode().split(" ", 5)
        topic = TopicConfig(name, int(read), int(write), int(permission), filter_type)
    except (ValueError, UnicodeDecodeError):
        raise ProtocolError(f"a topic of the compressed registration cannot be decoded: {line[:60]!r}") from None
    if attributes and attributes[0]:
        parsed = fastjson.loads(attributes[0], loose_bytes_max=loose_bytes_max)
        if not isinstance(parsed, dict):
            raise ProtocolError(f"attributes of topic {name!r} in the compressed registration are not an object")
        topic.attributes = {key: str(value) for key, value in parsed.items() if value is not None}
    return topic

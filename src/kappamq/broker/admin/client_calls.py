"""Requests of operators that only a client can answer: passed on over the connection that the client has opened."""

from __future__ import annotations

import logging
from typing import Any

from kappamq.broker.clients.registry import Client, Clients
from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.upkeep.slices import Worker
from kappamq.errors import BrokerError, Busy, ConsumeTimeout, NotConnected, ProtocolError, RequestTimeout
from kappamq.net.requests.beside import Beside
from kappamq.net.requests.sizes import VALUE_BYTES, check_values
from kappamq.protocol import address
from kappamq.protocol.bodies.admin import ConsumerStatus
from kappamq.protocol.codes import VERSION_CALLABLE, RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.frame import request as request_frame
from kappamq.protocol.headers.admin import GetConsumerStatusByBroker
from kappamq.protocol.headers.client import ConsumeDirectly, GetClientStatus, GetRunningInfo
from kappamq.protocol.records.ids import parse_offset_id
from kappamq.protocol.records.record import decode as decode_record
from kappamq.state.groups import Groups
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

_CALL_S = 10.0
_STATUS_S = 5.0
_STATUS_BYTES_MAX = 2 << 20  # about 20,000 queues
_VERSION_STATUS = 28  # the first client version that reports its offsets


class ClientCalls:
    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        worker: Worker,
        beside: Beside,
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._worker = worker
        self._beside = beside
        self.call_s = _CALL_S

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.status,
        }

    async def running_info(self, request: Request[GetRunningInfo]) -> Frame:
        header = request.header
        return await self._pass_on(request, header.consumer_group, header.client_id, dict(request.fields), request.body)

    async def consume(self, request: Request[ConsumeDirectly]) -> Frame:
        """Have a client consume one message now, whatever its offset says; the message is named by its offset id."""
        header = request.header
        body, ext = request.body, dict(request.fields)
        topic_name = header.topic
        if header.message_id:
            try:
                log_offset = parse_offset_id(header.message_id).log_offset
            except ProtocolError as error:
                raise BrokerError(f"msgId names no record of a broker's log: {error}") from error
            body = await self._worker(self._store.record, log_offset)
            if body is None:
                raise BrokerError(f"there is no message at log offset {log_offset} (any more)")
            topic_name = decode_record(body).topic
        topic, group = self._topics.get(topic_name or ""), self._groups.table.get(header.consumer_group)
        ext["brokerName"] = self._broker_name
        if topic is not None:
            ext["topicSysFlag"] = str(topic.sys_flag)
        if group is not None:
            ext["groupSysFlag"] = str(group.sys_flag)
        return await self._pass_on(request, header.consumer_group, header.client_id or "", ext, body)

    async def _pass_on(
        self, request: Request[Any], group: str, client_id: str, ext: dict[str, str], body: bytes
    ) -> Frame:
        client = self._clients.find(group, client_id)
        if client is None:
            raise BrokerError(f"The Consumer <{group}> <{client_id}> not online")
        if client.version < VERSION_CALLABLE:
            raise BrokerError(
                f"The Consumer <{client_id}> version {client.version} is too low to be asked: it needs 3.1.8 or newer"
            )
        try:
            answer = await client.connection.request(Frame(request.code, ext=ext, body=body), self.call_s)
        except RequestTimeout as error:
            raise ConsumeTimeout(f"consumer <{group}> <{client_id}> Timeout: {error}") from error
        except NotConnected as error:
            raise BrokerError(f"The Consumer <{group}> <{client_id}> has just gone: {error}") from error
        passed = request.reply(answer.code, answer.remark, body=answer.body)
        passed.ext = answer.ext
        return passed

    # -- offsets as the clients have them ----------------------------------------------------------------------------------

    async def status(self, request: Request[GetConsumerStatusByBroker]) -> Frame:
        """Ask each client of a group, or the one at `clientAddr`, for its offsets in a topic."""
        header = request.header
        group = self._clients.consumers.get(header.group)
        if group is None or not group.members:
            raise BrokerError(f"No Any Consumer online in the consumer group: [{header.group}]")
        answer = ConsumerStatus()
        for client in list(group.members.values()):
            if header.client_address and address.join(*client.connection.peer) != header.client_address:
                continue
            if client.version < _VERSION_STATUS:
                raise BrokerError(f"the client does not support this feature. version={client.version}")
            status = await self._status_of(client, header)
            if status is not None:
                answer.clients[client.client_id] = status.offsets
        return request.reply(body=await self._beside.run(request.connection, answer.encode))

    async def _status_of(self, client: Client, header: GetConsumerStatusByBroker) -> ConsumerStatus | None:
        question = request_frame(
            GetClientStatus(topic=header.topic, group=header.group, client_address=header.client_address)
        )
        try:
            answer = await client.connection.request(question, min(_STATUS_S, self.call_s))
            if answer.code != 0:
                return None
            # A peer's answer is not to be trusted any more than its requests.
            return await self._beside.run(client.connection, _status, answer.body, size=len(answer.body))
        except (Busy, RequestTimeout, NotConnected, ProtocolError) as error:
            log.info("client %s did not report its offsets: %s", client.client_id, error)  # the others still may
            return None


def _status(body: bytes) -> ConsumerStatus:
    """Worker: parse a client's answer about its offsets."""
    if len(body) > _STATUS_BYTES_MAX:
        raise ProtocolError(f"its answer has {len(body)} bytes, {_STATUS_BYTES_MAX} at most")
    check_values(body, _STATUS_BYTES_MAX // VALUE_BYTES)
    return ConsumerStatus.decode(body)  # queues are keys, which is not standard JSON: parsing is slow

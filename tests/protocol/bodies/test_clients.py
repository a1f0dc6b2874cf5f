"""Bodies about clients: golden texts of the Java classes."""

from __future__ import annotations

import pytest

from kappamq.errors import ProtocolError
from kappamq.message import MessageQueue
from kappamq.protocol.bodies import clients as bodies_clients
from kappamq.protocol.bodies.body import Body
from kappamq.protocol.bodies.clients import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    LockBatch,
    LockBatchResponse,
    MessageModel,
    ProducerData,
    ResetOffset,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from kappamq.protocol.bodies.topics import DataVersion
from tests.protocol.round_trips import there_and_back_tests

test_there_and_back, test_any_json_is_read_or_refused = there_and_back_tests(bodies_clients)

MQ = MessageQueue("T", "b-a", 0)
MQ_TEXT = b'{"brokerName":"b-a","queueId":0,"topic":"T"}'


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            HeartbeatData(
                "ip@1",
                [ProducerData("PG")],
                [
                    ConsumerData(
                        "CG",
                        ConsumeType.CONSUME_PASSIVELY,
                        MessageModel.CLUSTERING,
                        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
                        [SubscriptionData("T", "A || B", "TAG", {"A"}, {65}, 1794770739243)],
                    )
                ],
            ),
            b'{"clientID":"ip@1","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
            b'"consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING","subscriptionDataSet":'
            b'[{"classFilterMode":false,"codeSet":[65],"expressionType":"TAG","subString":"A || B",'
            b'"subVersion":1794770739243,"tagsSet":["A"],"topic":"T"}],"unitMode":false}],"heartbeatFingerprint":0,'
            b'"producerDataSet":[{"groupName":"PG"}],"withoutSub":false}',
        ),
        (
            LockBatch("g", "c", {MQ}),
            b'{"clientId":"c","consumerGroup":"g","mqSet":[' + MQ_TEXT + b'],"onlyThisBroker":false}',
        ),
        (LockBatchResponse({MQ}), b'{"lockOKMQSet":[' + MQ_TEXT + b"]}"),
        (ResetOffset({MQ: 5}), b'{"offsetTable":{' + MQ_TEXT + b":5}}"),
        (
            SubscriptionGroupTable({"g": SubscriptionGroupConfig("g")}, {}, DataVersion()),
            b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"forbiddenTable":{},"subscriptionGroupTable":'
            b'{"g":{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
            b'"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"g",'
            b'"groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,'
            b'"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}}}',
        ),
    ],
)
def test_golden(body: Body, text: bytes) -> None:
    assert body.encode() == text
    assert type(body).decode(text) == body


def test_reset_offset_of_cpp_clients() -> None:
    body = ResetOffset({MQ: 5})
    assert body.encode_list() == b'{"offsetTable":[{"brokerName":"b-a","offset":5,"queueId":0,"topic":"T"}]}'
    assert ResetOffset.decode(body.encode_list()) == body
    with pytest.raises(ProtocolError, match="row without an offset"):
        ResetOffset.decode(b'{"offsetTable":[{"topic":"T"}]}')


def test_queue_keys_as_texts() -> None:
    assert ResetOffset.decode(ResetOffset({MQ: 5}).encode(standard=True)) == ResetOffset({MQ: 5})

"""Bodies for administrators: golden texts of the Java classes."""

from __future__ import annotations

import pytest

from kappamq.message import MessageQueue
from kappamq.protocol.bodies import admin as bodies_admin
from kappamq.protocol.bodies.admin import (
    BrokerStatsData,
    Connection,
    ConsumeDirectlyResult,
    ConsumeOffset,
    ConsumerOffsets,
    ConsumerRunningInfo,
    ConsumerStatus,
    ConsumeStats,
    ConsumeStatus,
    ProcessQueueInfo,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    TopicOffset,
    TopicStatsTable,
)
from kappamq.protocol.bodies.body import Body
from tests.protocol.round_trips import there_and_back_tests

test_there_and_back, test_any_json_is_read_or_refused = there_and_back_tests(bodies_admin)

MQ = MessageQueue("T", "b-a", 0)
MQ_TEXT = b'{"brokerName":"b-a","queueId":0,"topic":"T"}'
ZEROS = b'{"avgpt":0.0,"sum":0,"tps":0.0}'


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            TopicStatsTable({MQ: TopicOffset(0, 5)}),
            b'{"offsetTable":{'
            + MQ_TEXT
            + b':{"lastUpdateTimestamp":0,"maxOffset":5,"minOffset":0}},"topicPutTps":0.0}',
        ),
        (
            ConsumeStats({MQ: ConsumeOffset()}),
            b'{"consumeTps":0.0,"offsetTable":{' + MQ_TEXT + b':{"brokerOffset":0,"consumerOffset":0,'
            b'"lastTimestamp":0,"pullOffset":0}}}',
        ),
        (
            ConsumerRunningInfo(queues={MQ: ProcessQueueInfo()}, statuses={"T": ConsumeStatus()}),
            b'{"mqPopTable":{},"mqTable":{' + MQ_TEXT + b':{"cachedMsgCount":0,"cachedMsgMaxOffset":0,'
            b'"cachedMsgMinOffset":0,"cachedMsgSizeInMiB":0,"commitOffset":0,"droped":false,"lastConsumeTimestamp":0,'
            b'"lastLockTimestamp":0,"lastPullTimestamp":0,"locked":false,"transactionMsgCount":0,'
            b'"transactionMsgMaxOffset":0,"transactionMsgMinOffset":0,"tryUnlockTimes":0}},"properties":{},'
            b'"statusTable":{"T":{"consumeFailedMsgs":0,"consumeFailedTPS":0.0,"consumeOKTPS":0.0,"consumeRT":0.0,'
            b'"pullRT":0.0,"pullTPS":0.0}},"subscriptionSet":[],"userConsumerInfo":{}}',
        ),
        (ConsumerStatus({MQ: 1}), b'{"consumerTable":{},"messageQueueTable":{' + MQ_TEXT + b":1}}"),
        (
            ProducerConnection([Connection("x", "1.1.1.1:1", "JAVA", 400)]),
            b'{"connectionSet":[{"clientAddr":"1.1.1.1:1","clientId":"x","language":"JAVA","version":400}]}',
        ),
        (
            ProducerTable({"g": [ProducerInfo("c", "ip", "JAVA", 1, 2)]}),
            b'{"data":{"g":[{"clientId":"c","language":"JAVA","lastUpdateTimestamp":2,"remoteIP":"ip","version":1}]}}',
        ),
        (
            BrokerStatsData(),
            b'{"statsDay":' + ZEROS + b',"statsHour":' + ZEROS + b',"statsMinute":' + ZEROS + b"}",
        ),
        (
            ConsumeDirectlyResult(),
            b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":0}',
        ),
        (
            ConsumerOffsets({"T@g": {3: 8, 0: 7}}),
            b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"offsetTable":{"T@g":{0:7,3:8}}}',
        ),
    ],
)
def test_golden(body: Body, text: bytes) -> None:
    assert body.encode() == text
    assert type(body).decode(text) == body


def test_total_lag() -> None:
    assert ConsumeStats({MQ: ConsumeOffset(9, 4), MessageQueue("T", "b", 1): ConsumeOffset(3, 3)}).total_lag == 5

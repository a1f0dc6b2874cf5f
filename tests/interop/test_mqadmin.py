"""The operator's tool of Apache RocketMQ: what it prints about our broker is true."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.interop import jars
from tests.interop.apache import MqadminFailed, Printed, mqadmin
from tests.interop.conftest import VARIANTS, Variant
from tests.interop.messages import offset_id
from tests.interop.probe import JsonLines, java_probe
from tests.interop.targets import BROKER, CLUSTER, Target
from tests.waiting import eventually

TOPIC, QUEUES = "mqadmin_orders", 6
BEHIND, FINISHED = "mqadmin_behind", "mqadmin_finished"
FIRST, LATER = 42, 12  # messages sent before and after the group BEHIND stopped
LOADED = 200  # at least so many messages went through the load topic when the commands start
VERSION = "V5_3_3"


class Scene:
    """A broker under load with a known topic and known groups, and what each command printed about it."""

    def __init__(self, target: Target, home: Path) -> None:
        self.target, self.home = target, home
        self.runners = ThreadPoolExecutor(3)  # a command mostly waits for its own shutdown
        self.sent: list[dict[str, Any]] = []
        self.loaded = 0

    def run(self, command: str, *arguments: str) -> Printed:
        return mqadmin(self.target.nameserver, command, *arguments)

    def start(self, command: str, *arguments: str) -> "Future[Printed]":
        return self.runners.submit(self.run, command, *arguments)


@pytest.fixture(scope="module")
def scene(
    target: Target, java_clients: Callable[[Variant], JsonLines], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    home = tmp_path_factory.mktemp("mqadmin")
    scene = Scene(target, home)
    java = java_clients(VARIANTS[0])
    created = scene.run("updateTopic", "-c", CLUSTER, "-t", TOPIC, "-r", str(QUEUES), "-w", str(QUEUES)).text
    assert f"create topic to {target.broker} success" in created
    assert f"readQueueNums={QUEUES}, writeQueueNums={QUEUES}, perm=RW-" in created

    def send(count: int) -> None:
        first = len(scene.sent)
        for n in range(first, first + count):
            message = {"body": f"order {n}", "tags": "A", "keys": f"key-{n}"}
            scene.sent += java("send_to", topic=TOPIC, queueId=n % QUEUES, messages=[message])

    send(FIRST)
    for group in (BEHIND, FINISHED):
        java("push_start", topic=TOPIC, group=group)
        assert len(java("push_got", id=group, count=FIRST, millis=20_000)) == FIRST
    java("push_stop", id=BEHIND)
    send(LATER)
    assert len(java("push_got", id=FINISHED, count=LATER, millis=20_000)) == LATER

    # A steady load in a process of its own, sent and consumed, while the commands run.
    over = threading.Event()

    def load(probe: JsonLines) -> None:
        probe("send", topic="mqadmin_load", mode="sync", messages=[{"body": "x" * 100}])
        probe("push_start", topic="mqadmin_load", group="mqadmin_load")
        while not over.wait(0.05):
            probe("send", topic="mqadmin_load", mode="sync", messages=[{"body": "x" * 100}] * 20)
            scene.loaded += len(probe("push_got", id="mqadmin_load", count=0, millis=0))

    with java_probe(jars.CLIENT_5, target.nameserver, home, "mqadminload", binary=True) as probe:
        loader = threading.Thread(target=load, args=(probe,))
        loader.start()
        try:
            eventually(lambda: scene.loaded >= LOADED or not loader.is_alive(), timeout=30, text="load")
            yield scene
        finally:
            over.set()
            loader.join()
            java("push_stop", id=FINISHED)
            scene.runners.shutdown()


@pytest.fixture(scope="module")
def printed(scene: Scene) -> dict[str, "Future[Printed]"]:
    """Every reading command, all started at once: each takes seconds, nearly all of them its own."""
    message = scene.sent[17]
    last_id, last_offset_id = message["msgId"], message["offsetMsgId"]
    time.sleep(5)  # Apache takes a sample of its counters every second and needs some for a rate
    return {
        "clusterList": scene.start("clusterList"),
        "clusterList -m": scene.start("clusterList", "-m"),
        "topicList": scene.start("topicList"),
        "topicList -c": scene.start("topicList", "-c"),
        "topicRoute": scene.start("topicRoute", "-t", TOPIC),
        "topicStatus": scene.start("topicStatus", "-t", TOPIC),
        "brokerStatus": scene.start("brokerStatus", "-b", scene.target.broker),
        "queryMsgById offset": scene.start("queryMsgById", "-t", TOPIC, "-i", last_offset_id),
        "queryMsgById unique": scene.start("queryMsgById", "-t", TOPIC, "-i", last_id),
        "queryMsgByUniqueKey": scene.start("queryMsgByUniqueKey", "-t", TOPIC, "-i", last_id),
        "queryMsgByKey": scene.start("queryMsgByKey", "-t", TOPIC, "-k", "key-17"),
        "consumerProgress": scene.start("consumerProgress"),
        "consumerProgress -g": scene.start("consumerProgress", "-g", BEHIND),
    }


Output = dict[str, "Future[Printed]"]


def test_cluster_list(scene: Scene, printed: Output) -> None:
    (row,) = printed["clusterList"].result().table()
    assert (row["Cluster Name"], row["Broker Name"], row["BID"]) == (CLUSTER, BROKER, "0")
    assert row["Addr"] == scene.target.broker
    assert row["Version"] == VERSION
    assert row["ACTIVATED"] == "true"
    assert leading_number(row["InTPS(LOAD)"]) > 0
    assert leading_number(row["OutTPS(LOAD)"]) > 0
    assert 0 < float(row["SPACE"]) < 1
    assert 0 <= float(row["Hour"]) < 1  # since the oldest message


def test_cluster_list_of_totals(scene: Scene, printed: Output) -> None:
    (row,) = printed["clusterList -m"].result().table()
    assert (row["Cluster Name"], row["Broker Name"]) == (CLUSTER, BROKER)
    assert int(row["InTotalToday"]) >= FIRST + LATER + LOADED
    assert int(row["OutTotalToday"]) >= 2 * FIRST + LATER + LOADED


def test_topic_list(printed: Output) -> None:
    topics = printed["topicList"].result().lines()
    assert len(topics) == len(set(topics))
    assert {TOPIC, "mqadmin_load", f"%RETRY%{BEHIND}", f"%RETRY%{FINISHED}", "TBW102"} <= set(topics)
    with_groups = printed["topicList -c"].result().lines()
    mine = {tuple(line.split()) for line in with_groups if TOPIC in line.split()}
    assert {(CLUSTER, TOPIC, BEHIND), (CLUSTER, TOPIC, FINISHED)} <= mine


def test_topic_route(scene: Scene, printed: Output) -> None:
    text = printed["topicRoute"].result().text
    route = json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', text))  # numeric keys are bare there
    assert route["brokerDatas"] == [
        {
            "brokerAddrs": {"0": scene.target.broker},
            "brokerName": BROKER,
            "cluster": CLUSTER,
            "enableActingMaster": False,
        }
    ]
    assert route["queueDatas"] == [
        {"brokerName": BROKER, "perm": 6, "readQueueNums": QUEUES, "topicSysFlag": 0, "writeQueueNums": QUEUES}
    ]


def test_topic_status(scene: Scene, printed: Output, java_clients: Callable[[Variant], JsonLines]) -> None:
    rows = printed["topicStatus"].result().table()
    expected = (FIRST + LATER) // QUEUES
    assert [(row["Broker Name"], row["QID"], row["Min Offset"], row["Max Offset"]) for row in rows] == [
        (BROKER, str(queue), "0", str(expected)) for queue in range(QUEUES)
    ]
    for row in rows:
        pulled = java_clients(VARIANTS[0])("pull", topic=TOPIC, queueId=int(row["QID"]), offset=expected - 1)
        assert row["Last Updated"] == local_time(pulled["messages"][0]["storeTimestamp"])


def test_broker_status(scene: Scene, printed: Output) -> None:
    facts = printed["brokerStatus"].result().facts()
    assert facts["brokerVersionDesc"] == VERSION
    assert facts["brokerVersion"] == "479"
    assert leading_number(facts["putTps"]) > 0
    assert leading_number(facts["getTransferredTps"]) > 0
    assert int(facts["msgPutTotalTodayNow"]) >= FIRST + LATER + LOADED
    assert int(facts["msgGetTotalTodayNow"]) >= 2 * FIRST + LATER + LOADED
    assert int(facts["commitLogMinOffset"]) == 0
    last = max(int(each["offsetMsgId"][-16:], 16) for each in scene.sent)
    assert int(facts["commitLogMaxOffset"]) > last
    assert abs(int(facts["bootTimestamp"]) / 1000 - time.time()) < 1800
    assert 0 <= leading_number(facts["commitLogDiskRatio"]) < 1
    assert facts["brokerActive"] == "true"


@pytest.mark.parametrize("command", ["queryMsgById offset", "queryMsgById unique", "queryMsgByUniqueKey"])
def test_query_message_by_id(scene: Scene, printed: Output, command: str) -> None:
    sent = scene.sent[17]
    answer = printed[command].result()
    facts = answer.facts()
    log_offset = int(sent["offsetMsgId"][-16:], 16)
    assert (facts["Topic"], facts["Tags"], facts["Keys"]) == (TOPIC, "[A]", "[key-17]")
    assert (facts["Queue ID"], facts["Queue Offset"]) == (str(17 % QUEUES), str(17 // QUEUES))
    assert facts["CommitLog Offset"] == str(log_offset)
    assert offset_id(scene.target.broker, log_offset) == sent["offsetMsgId"]
    assert facts["Store Host"] == scene.target.broker
    assert facts["Born Host"].startswith("127.0.0.1:")
    assert facts["Reconsume Times"] == "0"
    assert f"UNIQ_KEY={sent['msgId']}" in facts["Properties"]
    # Two commands that run at once write the same file, one after the other.
    body = Path(facts["Message Body Path"])
    eventually(lambda: body.read_text() == "order 17", text=f"{body} holds the body")
    # Both groups are past this message.
    tracks = re.findall(r"MessageTrack \[consumerGroup=(\w+), trackType=(\w+),", answer.text)
    assert {(FINISHED, "CONSUMED")} <= set(tracks)
    assert (BEHIND, "NOT_ONLINE") in tracks or (BEHIND, "CONSUMED") in tracks


def test_query_message_by_key(scene: Scene, printed: Output) -> None:
    (row,) = printed["queryMsgByKey"].result().table()
    assert (row["Message ID"], row["QID"], row["Offset"]) == (
        scene.sent[17]["msgId"],
        str(17 % QUEUES),
        str(17 // QUEUES),
    )


def test_consumer_progress(scene: Scene, printed: Output) -> None:
    rows = {row["Topic"] + row["QID"]: row for row in printed["consumerProgress -g"].result().table()}
    facts = printed["consumerProgress -g"].result().facts()
    for queue in range(QUEUES):
        row = rows[f"{TOPIC}{queue}"]
        consumed, stored = FIRST // QUEUES, (FIRST + LATER) // QUEUES
        assert (row["Broker Name"], row["Broker Offset"], row["Consumer Offset"], row["Diff"]) == (
            BROKER,
            str(stored),
            str(consumed),
            str(stored - consumed),
        )
        # The store time of the last message that the group has consumed
        last = scene.sent[(consumed - 1) * QUEUES + queue]
        assert last["queueOffset"] == consumed - 1
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", row["LastTime"])
    assert facts["Consume Diff Total"] == str(LATER)


def test_consumer_progress_of_all_groups(scene: Scene, printed: Output) -> None:
    lines = {line.split()[0]: line.split() for line in printed["consumerProgress"].result().lines()}
    behind = lines[BEHIND]  # nobody is online, so version, type and model are blank
    assert (behind[1], behind[-1]) == ("0", str(LATER))
    finished = {row["Group"]: row for row in printed["consumerProgress"].result().table()}[FINISHED]
    assert (finished["Count"], finished["Version"]) == ("1", "V4_9_8")
    assert (finished["Type"], finished["Model"]) == ("PUSH", "CLUSTERING")
    # The client tells the broker how far it is every 5 s, so the last messages may show up later.
    eventually(
        lambda: {row["Group"]: row for row in scene.run("consumerProgress").table()}[FINISHED]["Diff Total"] == "0",
        timeout=30,
        pause=0.5,
        text="the group that has read everything",
    )


def test_update_and_delete_topic(scene: Scene, java_clients: Callable[[Variant], JsonLines]) -> None:
    java, name = java_clients(VARIANTS[2]), "mqadmin_changing"
    scene.run("updateTopic", "-c", CLUSTER, "-t", name, "-r", "2", "-w", "2")
    assert java("queues", topic=name) == [f"{BROKER}:0", f"{BROKER}:1"]
    java("send", topic=name, mode="sync", messages=[{"body": "before", "keys": "k"}])
    # More queues, by the broker's address and with a restriction: readable only
    changed = scene.run("updateTopic", "-b", scene.target.broker, "-t", name, "-r", "5", "-w", "3", "-p", "4").text
    assert "readQueueNums=5, writeQueueNums=3, perm=R--" in changed
    status = scene.start("topicStatus", "-t", name)
    route = scene.run("topicRoute", "-t", name).text
    assert '"perm":4' in route
    assert '"readQueueNums":5' in route
    assert '"writeQueueNums":3' in route
    assert [row["QID"] for row in status.result().table()] == ["0", "1", "2", "3", "4"]
    deleted = scene.run("deleteTopic", "-c", CLUSTER, "-t", name).text
    assert f"delete topic [{name}] from cluster [{CLUSTER}] success" in deleted
    assert f"delete topic [{name}] from NameServer success" in deleted
    topics = scene.start("topicList")
    with pytest.raises(MqadminFailed, match="CODE: 17 "):
        scene.run("topicRoute", "-t", name)
    assert name not in topics.result().lines()


def test_what_does_not_exist_is_said_so(scene: Scene) -> None:
    absent = scene.start("queryMsgById", "-t", TOPIC, "-i", offset_id(scene.target.broker, (1 << 40) + 5))
    with pytest.raises(MqadminFailed, match="CODE: 17 "):
        scene.run("topicStatus", "-t", "mqadmin_nobody")
    with pytest.raises(MqadminFailed):
        absent.result()


def leading_number(text: str) -> float:
    """`661.57(0,0ms)` or `1400.19 12.3 0.0`: the newest of the rates."""
    match = re.match(r"[\d.]+(E-?\d+)?", text)
    assert match, text
    return float(match[0])


def local_time(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds // 1000)
    return f"{moment:%Y-%m-%d %H:%M:%S},{milliseconds % 1000:03}"

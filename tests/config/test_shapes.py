"""Roles, ids and groups as broker.conf names them, together."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.config import shapes
from kappamq.config.apache import BrokerSettings, broker_settings, changed, is_known, rendered
from kappamq.config.broker import BrokerConfig
from kappamq.config.copies import CopiesConfig
from kappamq.errors import ConfigError, NoPermission

ROOT = {"store": {"root": Path("/data")}}
PEERS = "n0-a-host:10912;n1-10.0.0.2:10912;n2-[::1]:10912"
RAFT = {"enableDLegerCommitLog": "true", "dLegerGroup": "g", "dLegerPeers": PEERS, "dLegerSelfId": "n1"}
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": "10.0.0.1:10912"}


def settings(given: dict[str, str]) -> BrokerSettings:
    return broker_settings(given, defaults=ROOT)[0]


def cautions(given: dict[str, str]) -> list[str]:
    made = settings(given)
    return [caution.name for caution in shapes.cautions(made.broker, made.copies)]


def test_a_slave_as_rocketmq_writes_it() -> None:
    made = settings({**SLAVE, "slaveReadEnable": "true", "haMaxGapNotInSync": "2097152", "slaveTimeout": "500"})
    copies = made.copies
    assert (copies.is_slave, made.broker.broker_id, copies.master_address) == (True, 1, "10.0.0.1:10912")
    assert (copies.read_from_slaves, copies.lag_bytes_max, copies.slave_timeout_ms) == (True, 2 << 20, 500)
    shown = rendered(made)
    assert (shown["brokerRole"], shown["haMasterAddress"], shown["haListenPort"]) == (
        "SLAVE",
        "10.0.0.1:10912",
        "10912",
    )
    assert settings({"brokerRole": "SLAVE", "brokerId": "2", "namesrvAddr": "h:1"}).copies.master_address is None
    assert settings({"haMasterAddress": "null"}).copies.master_address is None, "as Java tools write what is not set"


def test_how_many_copies_are_waited_for() -> None:
    two, one, alone = (
        settings({"brokerRole": "SYNC_MASTER"}),
        settings({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "1"}),
        settings({"inSyncReplicas": "3"}),
    )
    assert [made.copies.copies_awaited for made in (two, one, alone)] == [1, 0, 0]
    assert [rendered(made)["inSyncReplicas"] for made in (two, one, alone)] == ["2", "1", "1"]


def test_a_raft_group_as_rocketmq_writes_it() -> None:
    made = settings(RAFT)
    assert made.copies.group == "g"
    assert made.copies.members == {"n0": "a-host:10912", "n1": "10.0.0.2:10912", "n2": "[::1]:10912"}
    assert made.copies.member == "n1"
    shown = rendered(made)
    assert (shown["enableDLegerCommitLog"], shown["dLegerPeers"], shown["dLegerSelfId"]) == ("true", PEERS, "n1")
    assert settings({name: text for name, text in shown.items() if name in RAFT}).copies == made.copies
    assert rendered(settings({}))["enableDLegerCommitLog"] == "false"
    assert "dLegerPeers" not in rendered(settings({}))


def test_without_its_switch_a_raft_group_of_rocketmqs_names_has_no_effect_and_ours_has() -> None:
    for given in ({**RAFT, "enableDLegerCommitLog": "false"}, {"dLegerSelfId": "n7", "dLegerPeers": "n1-h:1"}):
        made, findings = broker_settings(given, defaults=ROOT)
        assert made.copies == CopiesConfig()
        assert set(findings.ignored) == set(given) - {"enableDLegerCommitLog"}
    ours = {"copies.group": "g", "copies.members": PEERS, "copies.member": "n0"}
    assert settings(ours).copies.is_raft
    with pytest.raises(ConfigError, match=r"enableDLegerCommitLog=false contradicts copies\.group"):
        settings({**ours, "enableDLegerCommitLog": "false"})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({**SLAVE, "brokerId": "0"}, "brokerRole=SLAVE needs brokerId > 0"),
        ({"brokerRole": "SLAVE", "brokerId": "1"}, "does not know its master: set haMasterAddress"),
        ({"brokerId": "1"}, "brokerRole=ASYNC_MASTER needs brokerId=0, and it is 1"),
        ({"brokerRole": "SYNC_MASTER", "brokerId": "2"}, "brokerRole=SYNC_MASTER needs brokerId=0"),
        ({**SLAVE, "haMasterAddress": "10.0.0.1"}, "host:port.*set by haMasterAddress"),
        ({"haListenPort": "10909"}, "haListenPort=10909 is a port that the broker on 10911 uses itself"),
        ({**RAFT, "brokerRole": "SLAVE"}, "role=slave contradicts group"),
        ({**RAFT, "brokerId": "1"}, "brokerId=1 cannot be honoured in a Raft group"),
        ({**RAFT, "dLegerSelfId": "n9"}, r"one of the group's members \(n0, n1, n2\); got 'n9'"),
        ({**RAFT, "dLegerPeers": "n1-h:1;n2-h:2"}, "3 or 5 members, or 1 to which others are added later; got 2"),
        ({**RAFT, "dLegerPeers": "n1-h:1;n1-h:2"}, "n1 is there twice"),
        ({**RAFT, "dLegerPeers": "h:1"}, "dLegerPeers must be id-host:port"),
        ({"enableDLegerCommitLog": "true"}, "needs dLegerGroup, dLegerPeers and dLegerSelfId"),
        (
            {"replicationSecret": "abcdefgh", "copies.secret": "abcdefghi"},
            "copies.secret contradicts replicationSecret: both set the same",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_the_words_of_the_file(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        settings(given)


def test_the_secret_is_shown_nowhere() -> None:
    for name in ("replicationSecret", "copies.secret"):
        made = settings({name: "hush-hush"})
        assert made.copies.secret == "hush-hush"
        assert "hush" not in str(rendered(made))
        assert "hush" not in repr(made.copies)
    with pytest.raises(ConfigError) as caught:
        settings({"replicationSecret": "hush-hush", "copies.secret": "hush-here"})
    assert "hush" not in str(caught.value)
    with pytest.raises(NoPermission) as refused:
        changed(settings({"replicationSecret": "hush-hush"}), {"replicationSecret": "hush-here"})
    assert "hush" not in str(refused.value)


def test_names_for_the_command_line() -> None:
    assert all(map(is_known, ("brokerRole", "enableDLegerCommitLog", "replicationSecret", "copies.window_bytes")))


def test_what_is_allowed_and_told() -> None:
    assert cautions({}) == ["CopiesOpen"], "RocketMQ's default listens on all addresses"
    assert cautions({"bindAddress": "127.0.0.1"}) == cautions({"replicationSecret": "hush-hush"}) == []
    assert cautions(SLAVE) == [], "nobody copies from a slave"
    here = {"bindAddress": "localhost"}
    assert cautions({**here, "brokerRole": "SYNC_MASTER"}) == []
    assert cautions({**here, "brokerRole": "SYNC_MASTER", "inSyncReplicas": "1"}) == ["NoCopyAwaited"]
    assert cautions({**here, **RAFT, "brokerRole": "SYNC_MASTER"}) == ["RoleWithoutEffect"]
    assert cautions({**here, **RAFT, "dLegerPeers": "n1-h:1"}) == ["SingleVoter"]


def test_a_caution_says_what_and_what_to_do() -> None:
    (caution,) = shapes.cautions(BrokerConfig(), CopiesConfig())
    assert str(caution).startswith(
        "port 10912 gives a copy of all messages to anyone who can connect to it; set replicationSecret"
    )
    (unbound,) = shapes.cautions(BrokerConfig(port=0), CopiesConfig())
    assert "port+1" in str(unbound)

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kappamq.config import apache
from kappamq.config.apache import BrokerSettings, broker_settings, changed, nameserver_settings, rendered
from kappamq.config.apache_features import BROKER_UNSET
from kappamq.config.apache_names import BROKER_SETTINGS
from kappamq.config.problems import Written
from kappamq.errors import ConfigError, InvalidParameter, KappaError, NoPermission

ROOT = {"store": {"root": Path("/data")}}

# As shipped with RocketMQ, with the usual additions.
USUAL = """
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
namesrvAddr=127.0.0.1:9876;127.0.0.1:9877
brokerIP1=10.1.2.3
listenPort=20911
storePathRootDir=/data/store
storePathCommitLog=/data/store/commitlog
sendMessageThreadPoolNums=64
"""


def settings(**given_properties: str) -> BrokerSettings:
    return broker_settings(given_properties, defaults=ROOT)[0]


def test_a_usual_file_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(USUAL)
    made, findings = broker_settings(apache.read_file(path))
    assert (made.broker.name, made.broker.port, made.broker.advertise) == ("broker-a", 20911, "10.1.2.3")
    assert made.broker.nameservers == ("127.0.0.1:9876", "127.0.0.1:9877")
    assert (made.store.retention_hours, made.store.flush, made.store.root) == (48, "async", Path("/data/store"))
    assert findings.ignored == ("sendMessageThreadPoolNums",)
    assert findings.unknown == ()
    assert "sendMessageThreadPoolNums" in findings.lines()[0]


def test_unknown_names_are_named_with_a_guess() -> None:
    _, findings = broker_settings({"brokerNmae": "x", "teapot": "y"}, defaults=ROOT)
    assert findings.unknown == ("brokerNmae (did you mean brokerName?)", "teapot")
    assert "teapot" in findings.lines()[0]


def test_switches_of_absent_features_are_told_once_for_each_feature_and_shown_as_off() -> None:
    given_properties = {
        "enableCompaction": "true", "enablePopLog": "true", "appendAckAsync": "true", "preferredLeaderId": "g",
    }  # fmt: skip
    made, findings = broker_settings(given_properties, defaults=ROOT)
    assert findings.lines() == [
        "without effect: enableCompaction=true (compacted topics are not supported)",
        "without effect: enablePopLog=true, appendAckAsync=true (POP consumption is not supported)",
        "RocketMQ properties without effect here: preferredLeaderId",
    ]
    shown = rendered(made)
    assert (shown["enableCompaction"], shown["enablePopLog"], shown["preferredLeaderId"]) == ("false", "false", "g")


def test_tls_to_name_servers_has_two_names_that_must_agree(tmp_path: Path) -> None:
    for name in ("useTLS", "tls.enable"):
        assert settings(**{name: "true"}).net.tls_outgoing
    assert settings(**{"useTLS": "true", "tls.enable": "true"}).net.tls_outgoing
    path = tmp_path / "broker.conf"
    path.write_text("useTLS=true\ntls.enable=false\n")
    with pytest.raises(ConfigError, match=r"line 2: tls\.enable=false contradicts useTLS=true"):
        broker_settings(apache.read_file(path), defaults=ROOT)
    # What --set says wins over the file, whichever of the names it uses.
    made, _ = broker_settings(
        {**apache.read_file(path), "tls.enable": Written("true", "--set tls.enable")}, defaults=ROOT
    )
    assert made.net.tls_outgoing


def test_credentials_of_absent_features_are_not_shown() -> None:
    made = settings(initAuthenticationUser='{"username":"a","password":"hush"}')
    assert "hush" not in str(rendered(made))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nothing.conf: No such file"):
        apache.read_file(tmp_path / "nothing.conf")
    with pytest.raises(ConfigError, match="cannot read"):
        apache.read_file(tmp_path)
    (tmp_path / "bad.conf").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bad\.conf: not UTF-8"):
        apache.read_file(tmp_path / "bad.conf")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("brokerRole", "MASTER", "brokerRole must be ASYNC_MASTER or SYNC_MASTER or SLAVE"),
        ("brokerId", "-1", "broker_id must be a number from 0.*set by brokerId"),
        ("aclEnable", "true", "the broker would be open"),
        ("enableDLegerCommitLog", "yes", "enableDLegerCommitLog must be true or false"),
        ("inSyncReplicas", "17", "set by inSyncReplicas"),
        ("enableControllerMode", "true", "a controller that elects masters is not supported"),
        ("enableAutoInSyncReplicas", "true", "never lowered in silence"),
        ("storePathCommitLog", "/other", "is always /data/commitlog"),
        ("listenPort", "1", "port-2 .*set by listenPort"),
        ("listenPort", "abc", "listenPort must be an integer"),
        ("mappedFileSizeCommitLog", "1048576", "set by mappedFileSizeCommitLog"),
        ("net.idle_s", "soon", "net.idle_s must be a number"),
        ("tls.server.mode", "enforcing", "tls_cert"),
        ("net.proxies_trusted", "10.1.2.300", "'10.1.2.300' is not a network: expected something like 10.1.0.0/16"),
    ],
)
def test_what_cannot_be_honoured_is_an_error(name: str, value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        settings(**{name: value})


def test_a_link_to_itself_is_left_to_the_store(tmp_path: Path) -> None:
    """Which says what is wrong with it; here it only has to be the place that was named."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.symlink_to(checkpoint)
    for given_properties in ({}, {"storeCheckpoint": str(checkpoint)}):
        broker_settings(given_properties, defaults={"store": {"root": tmp_path}})
    with pytest.raises(ConfigError, match="is always"):
        broker_settings({"storeCheckpoint": "/other"}, defaults={"store": {"root": tmp_path}})


def test_our_own_names_reach_every_field() -> None:
    made = settings(
        **{
            "store.flush_interval_ms": "7",
            "store.delete_unexpired_ratio": "0.5",
            "store.delete_hours": "1;2",
            "net.idle_s": "1.5",
            "net.tls_mode": "disabled",
            "net.proxies_trusted": "10.1.2.3; fd00::/8",
            "broker.long_polling": "false",
            "broker.advertise": "h",
            "broker.nameservers": "a:1;b:2",
        }
    )
    assert (made.store.flush_interval_ms, made.store.delete_unexpired_ratio, made.store.delete_hours) == (
        7,
        0.5,
        (1, 2),
    )
    assert (made.net.idle_s, made.net.tls_mode) == (1.5, "disabled")
    assert [str(network) for network in made.net.proxies_trusted] == ["10.1.2.3/32", "fd00::/8"]
    assert (made.broker.long_polling, made.broker.advertise, made.broker.nameservers) == (False, "h", ("a:1", "b:2"))
    assert broker_settings({"broker.teapot": "1"}, defaults=ROOT)[1].unknown


def test_defaults_lose_and_overrides_win() -> None:
    made, _ = broker_settings(
        {"listenPort": "20000", "brokerName": "file"},
        defaults={"store": {"root": Path("/a")}, "broker": {"name": "default", "region": "default"}},
        overrides={"broker": {"port": 30000}},
    )
    assert (made.broker.name, made.broker.region, made.broker.port) == ("file", "default", 30000)
    with pytest.raises(ConfigError, match="no data directory"):
        broker_settings({})


def test_deleting_what_has_not_expired_only_when_the_operator_says_so() -> None:
    assert settings().store.delete_unexpired_ratio is None
    assert settings(cleanFileForciblyEnable="true").store.delete_unexpired_ratio == 0.85
    assert settings(diskSpaceCleanForciblyRatio="80").store.delete_unexpired_ratio == 0.80
    both = settings(diskSpaceCleanForciblyRatio="80", cleanFileForciblyEnable="false")
    assert both.store.delete_unexpired_ratio is None


def test_changes_while_running() -> None:
    before = settings(brokerName="a")
    after = changed(
        before, {"fileReservedTime": "24", "autoCreateTopicEnable": "false", "cleanFileForciblyEnable": "true"}
    )
    assert (after.store.retention_hours, after.broker.auto_create_topic) == (24, False)
    assert after.store.delete_unexpired_ratio == 0.85
    assert rendered(after)["fileReservedTime"] == "24"
    assert before.store.retention_hours == 72


@pytest.mark.parametrize(
    ("name", "value", "kind", "text"),
    [
        ("listenPort", "20000", NoPermission, "restart"),
        ("storePathRootDir", "/elsewhere", NoPermission, "restart"),
        ("pullMessageThreadPoolNums", "3", NoPermission, "no effect"),
        ("teapot", "1", InvalidParameter, "unknown property teapot"),
        ("fileReservedTim", "1", InvalidParameter, "did you mean fileReservedTime"),
        ("fileReservedTime", "x", InvalidParameter, "integer"),
        ("fileReservedTime", "-1", InvalidParameter, "retention_hours"),
        ("cleanFileForciblyEnable", "maybe", InvalidParameter, "true or false"),
        ("aclEnable", "true", InvalidParameter, "authentication"),
        ("brokerRole", "SYNC_MASTER", NoPermission, "restart"),
        ("enableDLegerCommitLog", "true", NoPermission, "restart"),
        ("enableCompaction", "true", NoPermission, "enableCompaction=true has no effect.*compacted topics"),
    ],
)
def test_changes_that_are_refused_change_nothing(name: str, value: str, kind: type[KappaError], text: str) -> None:
    before = settings()
    with pytest.raises(kind, match=text):
        changed(before, {"traceOn": "true", name: value})
    assert before == settings()


def test_sending_everything_back_unchanged_is_fine() -> None:
    before = settings(brokerName="a", sendMessageThreadPoolNums="1")
    assert rendered(changed(before, rendered(before))) == rendered(before)


def test_rendered_properties_build_the_same_settings() -> None:
    before = settings(
        brokerName="a",
        deleteWhen="03;05",
        namesrvAddr="h:1",
        flushDiskType="SYNC_FLUSH",
        diskSpaceCleanForciblyRatio="80",
    )
    again, findings = broker_settings(rendered(before))
    assert (again.store, again.net) == (before.store, before.net)
    assert rendered(again) == rendered(before)
    assert not findings.unknown


def test_secrets_are_not_shown() -> None:
    made = settings(**{"tls.server.certPath": "c", "tls.server.keyPath": "k", "tls.server.keyPassword": "hush"})
    assert made.net.tls_key_password == "hush"
    assert "hush" not in str(rendered(made))


def test_name_server_settings() -> None:
    made, findings = nameserver_settings(
        {"listenPort": "19876", "kvConfigPath": "/ns/kvConfig.json", "defaultThreadPoolNums": "3", "x": "1"}
    )
    assert (made.nameserver.port, made.nameserver.root) == (19876, Path("/ns"))
    assert (findings.ignored, findings.unknown) == (("defaultThreadPoolNums",), ("x",))
    shown = apache.rendered_nameserver(made)
    assert (shown["listenPort"], shown["kvConfigPath"]) == ("19876", "/ns/kvConfig.json")
    assert (shown["enableControllerInNamesrv"], shown["writeBufferHighWaterMark"]) == ("false", "0")
    with pytest.raises(ConfigError, match="controller that elects masters is not supported"):
        nameserver_settings({"enableControllerInNamesrv": "true"})


@pytest.mark.parametrize("name", ["listenPort", "aclEnable", "sendMessageThreadPoolNums", "store.root", "abortFile"])
def test_known_names(name: str) -> None:
    assert apache.is_known(name)


def test_unknown_name() -> None:
    assert not apache.is_known("store.teapot")
    assert not apache.is_known("listenport")
    assert apache.unknown_name("listenport") == "listenport (did you mean listenPort?)"


@example({"tls.client.trustCertPath": "~0"})
@given(
    st.dictionaries(
        st.sampled_from(sorted({*BROKER_SETTINGS, *sorted(BROKER_UNSET)[:5]})), st.text(max_size=12), max_size=4
    )
)
def test_any_values_are_taken_or_refused_with_a_config_error(given_properties: dict[str, str]) -> None:
    try:
        broker_settings(given_properties, defaults=ROOT)
    except ConfigError:
        pass

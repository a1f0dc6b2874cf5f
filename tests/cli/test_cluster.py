"""`kappamq cluster`: a table of brokers, once and live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.naming.registration import Registration
from kappamq.broker.naming.role_now import FixedRole
from kappamq.cli import cluster as cluster_command
from kappamq.client.admin.admin import AsyncAdmin
from kappamq.errors import RequestTimeout
from kappamq.local import Local, LocalThread
from tests.cli.conftest import run_kappamq, small_local
from tests.waiting import eventually


def test_a_broker_is_shown(kappamq: Any, cluster: Local) -> None:
    (row,) = kappamq("cluster", "-o", "json").json
    assert (row["group"], row["id"], row["role"], row["address"]) == ("broker-a", 0, "master", cluster.broker)
    assert (row["cluster"], row["term"], row["lag"], row["in_sync"], row["problem"]) == ("DefaultCluster", *[None] * 4)
    assert row["log_end"] >= 0
    ran = kappamq("cluster")
    head, line = (" ".join(text.split()) for text in ran.out.strip().splitlines())
    assert head == "group id role address version term log end lag in sync"
    assert line.startswith(f"broker-a 0 master {cluster.broker} ")
    assert line.endswith("- -"), "no lag of a master"
    assert ran.err == ""


def test_followed(kappamq: Any) -> None:
    rows = kappamq("cluster", "--follow", "--count", "2", "--interval", "0.1", "-o", "json").json
    assert [row["group"] for row in rows] == ["broker-a", "broker-a"]
    assert all(len(row["time"]) == 8 for row in rows)
    text = kappamq("cluster", "-f", "-c", "2", "--interval", "0.1").out
    assert text.count("broker-a") == 2, "where there is no terminal, one table after the other"


async def _told(registration: Registration) -> None:
    registration.role_changed()


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    thread = LocalThread(small_local(tmp_path))
    with thread as local:
        nameserver = local.nameserver
        # The broker registers as a slave from now on: so its group has no master.
        registration = local.running_broker.registration
        registration._role = FixedRole(1)
        thread.submit(_told(registration)).result(10)
        eventually(lambda: "has no master" in run_kappamq("cluster", "-n", nameserver).err)
    followed = run_kappamq("cluster", "-n", nameserver, "-f", "-c", "1", "--timeout", "1")
    assert followed.exit_code == 0, "it goes on, since a name server may come back"
    assert "name server" in followed.out
    once = run_kappamq("cluster", "-n", nameserver, "--timeout", "1")
    assert once.exit_code == 4


def test_members_are_changed_in_raft_groups_only(kappamq: Any) -> None:
    for arguments in (
        ("add", "broker-a", "n3", "127.0.0.1:1"),
        ("remove", "broker-a", "n3"),
        ("replace", "broker-a", "n3", "127.0.0.1:1"),
    ):
        ran = kappamq("member", *arguments)
        assert "is not in a Raft group" in ran.err
    for words in (("transfer-leader",), ("broker", "transfer-leader")):
        assert "is not in a Raft group" in kappamq(*words, "broker-a").err
    assert "is not in a Raft group" in kappamq("broker", "replace", "broker-a", "n3", "127.0.0.1:1").err
    assert '"kind": "IllegalOperation"' in kappamq("-o", "json", "broker", "transfer-leader", "broker-a").err
    assert "there is no broker group nothing" in kappamq("member", "remove", "nothing", "n3").err


def test_a_removal_stands_though_nobody_says_how_many_vote_then(kappamq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def removed(self: AsyncAdmin, *arguments: Any) -> None:
        pass

    async def silent(self: AsyncAdmin) -> list[Any]:
        raise RequestTimeout("no name server answered in time")

    monkeypatch.setattr(AsyncAdmin, "change_members", removed)
    monkeypatch.setattr(AsyncAdmin, "members", silent)
    ran = kappamq("member", "remove", "broker-a", "n3")
    assert (ran.exit_code, ran.out) == (0, "n3 is no member of broker-a any more: stop it if it still runs\n")
    assert "how many of broker-a vote now is not known: no name server answered in time" in ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("member", "add", "broker-a", "n3", "foo"), 2, "'foo' is not an address like"),
        (("member", "replace", "broker-a", "n3", "foo:x"), 2, "is not an address like"),
        (("member", "add", "broker-a", "n 3", "127.0.0.1:1"), 2, "an id must be"),
        (("member", "remove", "broker-a", "n 3"), 2, "an id must be"),
        (("transfer-leader", "broker-a", "--to", "n 3"), 2, "an id must be"),
        (("transfer-leader", "nothing"), 5, "there is no broker group nothing; there is broker-a"),
        (("member", "add", "nothing", "n3", "127.0.0.1:1"), 5, "there is no broker group nothing; there is broker-a"),
    ],
)
def test_wrong_names_and_addresses(kappamq: Any, arguments: tuple[str, ...], code: int, text: str) -> None:
    ran = kappamq(*arguments, "-o", "json")
    assert ran.exit_code == code, ran
    assert text in ran.problem["error"]


def test_members_are_named_and_others_numbered() -> None:
    member, broker = {"member": "n1", "id": 0}, {"member": None, "id": 0}
    assert [
        ("id" in shown, "member" in shown) for shown in map(cluster_command._columns, ([member], [broker], []))
    ] == [
        (False, True),
        (True, False),
        (True, False),
    ]
    assert {"id", "member"} <= set(cluster_command._columns([member, broker]))

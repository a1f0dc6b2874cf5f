from __future__ import annotations

from typing import Any

import pytest

from kappamq.config.copies import SLAVE, SYNC_MASTER, CopiesConfig
from kappamq.errors import ConfigError

MEMBERS = {"n0": "h:1", "n1": "h:2"}
TWO: dict[str, Any] = {"group": "g", "members": MEMBERS, "member": "n0"}
THREE: dict[str, Any] = {**TWO, "members": {**MEMBERS, "n2": "h:3"}}


@pytest.mark.parametrize(
    ("config", "awaited"),
    [
        (CopiesConfig(), 0),
        (CopiesConfig(in_sync=3), 0),
        (CopiesConfig(role=SYNC_MASTER), 1),
        (CopiesConfig(role=SYNC_MASTER, in_sync=1), 0),
        (CopiesConfig(role=SYNC_MASTER, in_sync=3), 2),
        (CopiesConfig(role=SLAVE, in_sync=3), 0),
    ],
)
def test_only_a_synchronous_master_waits_for_copies(config: CopiesConfig, awaited: int) -> None:
    assert config.copies_awaited == awaited


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"role": "SLAVE"}, "role must be one of"),
        ({"in_sync": -1}, "in_sync"),
        ({"port": 70_000}, "port"),
        ({"master_address": "here"}, "master_address"),
        ({"slave_timeout_ms": 0}, "slave_timeout_ms"),
        ({"window_bytes": 1}, "window_bytes"),
        ({"members": {"a": "nowhere"}}, r"members\[a\]"),
        ({"group": "g", "members": {"a": "h:1"}, "member": "b"}, "one of the group's members"),
        ({"members": {"a": "h:1"}}, "group is not set"),
        ({"secret": "short"}, "secret must have 8 to 256 characters; got 5"),
        ({"group": " ", "members": {"a": "h:1"}, "member": "a"}, "group must be a name"),
        ({**TWO, "members": {**MEMBERS, "n2": "h:1"}}, "h:1 is given to several"),
        ({**TWO, "members": {**MEMBERS, "n 2": "h:3"}}, "'n 2'"),
        (TWO, "3 or 5 members, or 1 to which others are added later; got 2"),
        ({**TWO, "members": {f"n{n}": f"h:{n + 1}" for n in range(4)}}, "got 4"),
        ({**TWO, "members": {f"n{n}": f"h:{n + 1}" for n in range(7)}}, "got 7"),
        ({**THREE, "role": SLAVE}, "role=slave contradicts group"),
        ({**THREE, "port": 9}, r"port=9 contradicts members\[n0\], which says 1"),
    ],
)
def test_what_cannot_be_is_refused_with_the_name_of_the_field(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        CopiesConfig(**wrong)


def test_where_copies_connect() -> None:
    assert CopiesConfig().port_beside(10911) == 10912
    assert CopiesConfig(port=7).port_beside(10911) == 7
    assert CopiesConfig(**THREE).port_beside(10911) == 1
    assert (CopiesConfig(**THREE).is_raft, CopiesConfig().is_raft) == (True, False)
    assert CopiesConfig(group="g", members={"n0": "h:1"}, member="n0").is_raft, (
        "a first voter, to which others are added"
    )


def test_the_secret_is_in_no_text() -> None:
    assert "hush" not in repr(CopiesConfig(secret="hush-hush"))
    with pytest.raises(ConfigError) as caught:
        CopiesConfig(secret="hush")
    assert "hush" not in str(caught.value)

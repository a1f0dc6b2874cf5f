"""Names, ids, ports and properties of every shape."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kappamq.config.apache import broker_settings
from kappamq.config.problems import Written
from kappamq.errors import ConfigError
from kappamq.processes import plan
from kappamq.processes.plan import Place, Shape


def labels(**shape: Any) -> list[str]:
    return [place.label for place in plan.places(Shape(**shape))]


def test_who_there_is() -> None:
    assert labels(brokers=2) == ["broker-a master", "broker-b master"]
    assert labels(brokers=2, slaves=1) == [
        *("broker-a master", "broker-a slave 1"),
        *("broker-b master", "broker-b slave 1"),
    ]
    assert labels(raft=3) == ["broker-a n0", "broker-a n1", "broker-a n2"]
    assert plan.places(Shape(), "shop")[0].name == "shop-a"


def test_folders_stay_whatever_the_shape() -> None:
    """A store becomes master, slave or member of a group without a byte being moved."""
    folders = [[place.folder for place in plan.places(shape, name)] for shape, name in BOTH]
    assert folders[0] == folders[1] == ["a-0", "a-1", "a-2"]


BOTH = [(Shape(slaves=2), "one"), (Shape(raft=3), "two")]


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ({"brokers": 0}, "brokers must be a number from 1 to 16; got 0"),
        ({"brokers": 17}, "got 17"),
        ({"slaves": 5}, "slaves must be a number from 0 to 4"),
        ({"raft": 2}, "3 or 5 members; got 2"),
        ({"raft": 3, "slaves": 1}, "choose --raft or --slaves"),
        ({"synchronous": False}, "asynchronous copies need slaves"),
    ],
)
def test_shapes_that_cannot_be(shape: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Shape(**shape)


@pytest.mark.parametrize(
    "shape", [Shape(brokers=2), Shape(slaves=2), Shape(slaves=1, synchronous=False), Shape(raft=5)]
)
def test_what_is_written_is_what_a_broker_starts_with(shape: Shape, tmp_path: Path) -> None:
    found = plan.places(shape)
    ports = {place: 20_000 + 10 * number for number, place in enumerate(found)}
    for place in found:
        said = plan.properties(place, shape, ports, "127.0.0.1", {"fileReservedTime": "5"})
        made, findings = broker_settings(said, defaults={"store": {"root": tmp_path}})
        assert findings.lines() == []
        assert (made.broker.name, made.broker.port, made.store.retention_hours) == (place.name, ports[place], 5)
        copies = made.copies
        assert copies.port_beside(made.broker.port) == ports[place] + 1
        if shape.raft:
            assert (copies.group, copies.member, len(copies.members)) == (place.name, place.member, shape.raft)
        elif place.number:
            assert (made.broker.broker_id, copies.is_slave) == (place.number, True)
            assert copies.master_address == f"127.0.0.1:{ports[found[0]] + 1}"
        else:
            assert made.broker.broker_id == 0
            assert copies.copies_awaited == (1 if shape.slaves and shape.synchronous else 0)


def test_what_the_shape_decides_is_refused_where_it_was_written() -> None:
    given = {"brokerRole": Written("SLAVE", "broker.conf", 3)}
    with pytest.raises(ConfigError, match=r"brokerRole=SLAVE \(broker.conf, line 3\) is decided by --slaves here"):
        plan.check_given(Shape(), given)
    for name in plan.DECIDED:
        with pytest.raises(ConfigError, match=re.escape(f"{name}=1 is decided by --")):
            plan.check_given(Shape(), {name: "1"})


def test_more_copies_than_there_are_brokers_are_refused() -> None:
    plan.check_given(Shape(slaves=2), {"inSyncReplicas": "3"})
    plan.check_given(Shape(slaves=1, synchronous=False), {"inSyncReplicas": "3"})
    with pytest.raises(
        ConfigError, match=r"inSyncReplicas=3 asks for more copies than there are brokers of one name \(2\)"
    ):
        plan.check_given(Shape(slaves=1), {"inSyncReplicas": "3"})


def test_a_master_is_stopped_after_those_that_copy_from_it() -> None:
    master, slave = plan.places(Shape(slaves=1))
    other = Place("broker-b", 0, "master", "b-0")
    assert plan.stop_order([master, slave, other], {master, other}) == [[slave], [master, other]]

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.errors import StoreError, StoreLocked
from kappamq.processes.folders import check_several, check_shape, check_single, command, left_out
from kappamq.processes.plan import Shape, places
from kappamq.store.lock import StoreLock
from tests.processes.test_stores import founded, stored, voted


def made(root: Path, *names: str, config: str = "") -> Path:
    for name in names:
        (root / "brokers" / name).mkdir(parents=True)
    if names:
        (root / "brokers" / "a-0.conf").write_text(config)
    return root


@pytest.mark.parametrize(
    ("names", "config", "options"),
    [
        ("a-0 b-0", "brokerRole=ASYNC_MASTER", "--brokers 2"),
        ("a-0", "brokerRole=ASYNC_MASTER", "--brokers 1"),
        ("a-0 a-1", "brokerRole=SYNC_MASTER", "--slaves 1"),
        ("a-0 a-1 b-0 b-1", "brokerRole=ASYNC_MASTER", "--brokers 2 --slaves 1 --async"),
        ("a-0 a-1 a-2", "enableDLegerCommitLog=true", "--slaves 2"),  # what a refused start may have left there
    ],
)
def test_the_command_that_serves_a_directory(tmp_path: Path, names: str, config: str, options: str) -> None:
    assert command(made(tmp_path, *names.split(), config=config)) == f"kappamq up --data {tmp_path} {options}"


def test_a_plain_start_beside_several_brokers_is_refused(tmp_path: Path) -> None:
    check_single(tmp_path)
    made(tmp_path, "a-0", "a-1")
    with pytest.raises(StoreError, match=r"the stores of 2 brokers.*--slaves 1`, or choose another --data"):
        check_single(tmp_path)
    (tmp_path / "commitlog").mkdir()  # an earlier version did begin one there
    check_single(tmp_path)


def test_the_advice_to_move_is_given_only_where_there_is_room(tmp_path: Path) -> None:
    check_several(made(tmp_path, "a-0"))
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(StoreError) as told:
        check_several(tmp_path)
    assert "Do not mix them" in str(told.value)
    assert "becomes the first broker's" not in str(told.value)
    (tmp_path / "brokers" / "a-0").rmdir()
    with pytest.raises(StoreError, match=r"move what is in it to .*brokers/a-0, where it becomes"):
        check_several(tmp_path)


def test_a_group_is_started_with_the_members_it_has(tmp_path: Path) -> None:
    three = ["n0", "n1", "n2"]
    for number in range(3):
        voted(tmp_path / "brokers" / f"a-{number}", f"n{number}", three)
    check_shape(tmp_path, Shape(raft=3))
    with pytest.raises(
        StoreError, match=r"a Raft group with the 3 members n0, n1, n2.*--raft 3`; `kappamq member add`"
    ):
        check_shape(tmp_path, Shape(raft=5))
    for other in (Shape(slaves=1), Shape(brokers=2), Shape()):
        with pytest.raises(StoreError, match=f"start it with `kappamq up --data {tmp_path} --raft 3`, or choose"):
            check_shape(tmp_path, other)
    assert left_out(tmp_path, places(Shape(raft=3))) == []


def test_members_that_were_removed_or_added(tmp_path: Path) -> None:
    for number in range(3):
        voted(tmp_path / "brokers" / f"a-{number}", f"n{number}", ["n0", "n1", "n2"])
    for number in range(2):
        voted(tmp_path / "brokers" / f"a-{number}", f"n{number}", ["n0", "n1"], term=2)
    check_shape(tmp_path, Shape(raft=3))
    assert [place.member for place in left_out(tmp_path, places(Shape(raft=3)))] == ["n2"]
    voted(tmp_path / "brokers" / "a-1", "n1", ["n0", "n1", "n3"], term=3)
    assert command(tmp_path) == f"kappamq up --data {tmp_path} --raft 5"
    assert [place.member for place in left_out(tmp_path, places(Shape(raft=5)))] == ["n2", "n4"]
    voted(tmp_path / "brokers" / "a-1", "n1", ["n0", "n1", "n7"], term=4)
    with pytest.raises(StoreError, match="start each with `kappamq broker -c FILE`"):
        check_shape(tmp_path, Shape(raft=5))


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("founded_by", [1, 2, 3])
def test_a_group_whose_founding_was_interrupted_is_started_with_all_its_members(
    tmp_path: Path, size: int, founded_by: int
) -> None:
    members = [f"n{number}" for number in range(size)]
    for number in range(size):
        (tmp_path / "brokers" / f"a-{number}").mkdir(parents=True)
    for number in range(founded_by):
        founded(tmp_path / "brokers" / f"a-{number}", f"n{number}", members)
    shape = Shape(raft=size)
    check_shape(tmp_path, shape)
    assert left_out(tmp_path, places(shape)) == []
    assert command(tmp_path) == f"kappamq up --data {tmp_path} --raft {size}"


def test_messages_of_a_master_do_not_become_those_of_a_group(tmp_path: Path) -> None:
    made(tmp_path, "a-0", "a-1", "a-2", config="brokerRole=SYNC_MASTER")
    check_shape(tmp_path, Shape(raft=3))  # nothing was stored yet
    stored(tmp_path / "brokers" / "a-0")
    stored(tmp_path / "brokers" / "a-1")
    with pytest.raises(
        StoreError, match=r"the 2 copies of the store of a, .*: start them with `kappamq up .* --slaves 1`"
    ):
        check_shape(tmp_path, Shape(raft=3))
    check_shape(tmp_path, Shape(slaves=2))


def test_a_store_in_use_is_told_before_anything_is_written(tmp_path: Path) -> None:
    made(tmp_path, "a-0", "a-1")
    with StoreLock(tmp_path / "brokers" / "a-1"), pytest.raises(StoreLocked, match="a-1 is in use by process"):
        check_shape(tmp_path, Shape(slaves=1))
    check_shape(tmp_path, Shape(slaves=1))

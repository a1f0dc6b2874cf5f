from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.errors import StoreError
from kappamq.processes.folders import check_several, check_single, command


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
        ("a-0 a-1 a-2", "enableDLegerCommitLog=true", "--raft 3"),
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

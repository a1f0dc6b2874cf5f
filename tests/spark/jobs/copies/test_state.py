"""What a job stores before it begins, and what a later run may not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.errors import ConfigError, StoreError
from kappamq.spark.jobs.copies.state import JobState


def test_a_job_goes_on_as_it_began(tmp_path: Path) -> None:
    state = JobState(tmp_path, "nightly")
    with state.opened():
        assert state.agreed({"target": "t"}, "replay") is None
        begun = state.begin({"target": "t"}, "replay", plan={"x": [1]})
    with JobState(tmp_path, "nightly").opened():
        found = state.agreed({"target": "t"}, "replay")
    assert found == begun
    assert found is not None
    assert found["plan"] == {"x": [1]}
    assert found["owner"].startswith("replay-")


def test_owners_differ(tmp_path: Path) -> None:
    owners = set()
    for name in ("a", "b"):
        state = JobState(tmp_path, name)
        with state.opened():
            owners.add(state.begin({}, "dedup")["owner"])
    assert len(owners) == 2


@pytest.mark.parametrize(
    ("asked", "kind", "said"),
    [
        ({"target": "u"}, "replay", "target 't', and now it is 'u'"),
        ({"target": "t"}, "dedup", "job 'replay'"),
        ({}, "replay", "target 't'"),
    ],
)
def test_another_job_of_the_same_name_is_refused(tmp_path: Path, asked: dict[str, str], kind: str, said: str) -> None:
    state = JobState(tmp_path, "nightly")
    with state.opened():
        state.begin({"target": "t"}, "replay")
        with pytest.raises(ConfigError, match=said):
            state.agreed(asked, kind)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        JobState(tmp_path, "nightly").opened(),
        pytest.raises(StoreError, match="another process"),
        JobState(tmp_path, "nightly").opened(),
    ):
        pass


@pytest.mark.parametrize("text", ["x{", "[]", "{}", '{"version": 2}', '{"version": 1, "owner": 5, "asked": {}}'])
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    state = JobState(tmp_path, "nightly")
    with state.opened():
        (state.folder / "job.json").write_text(text)
        with pytest.raises(StoreError, match=r"job\.json cannot be read"):
            state.agreed({}, "replay")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="--state"), JobState(tmp_path / "file", "nightly").opened():
        pass
    with pytest.raises(ConfigError, match="name"):
        JobState(tmp_path, "no/name")

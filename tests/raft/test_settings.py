from __future__ import annotations

import pytest

from kappamq.raft.settings import RaftSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"beat_ms": 0},
        {"beat_ms": 300},
        {"election_min_ms": 1001},
        {"late_ms": 50},
        {"late_ms": 600},
        {"append_bytes_max": 9 << 20},
        {"append_bytes_max": 0},
        {"caught_up_bytes": -1},
    ],
)
def test_numbers_that_do_not_go_together(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RaftSettings(**wrong)


def test_the_defaults_do() -> None:
    assert RaftSettings().election_max_ms == 1000

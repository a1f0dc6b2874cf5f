"""The compiled kernel and its twin give the same answers. The long runs are tests.native.fuzz and tests.native.sanitize."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from kappamq.native import pure
from kappamq.native.pure_queues import Topic
from tests.native import frames
from tests.native.build import PORTABLE, build_kernel
from tests.native.conftest import load_kernel
from tests.native.fuzz import Difference, Round, load_extension, run_round
from tests.needs import needs

FOUND = [
    int(line.split()[0])
    for line in Path(__file__).with_name("seeds.txt").read_text().splitlines()
    if line[:1].isdigit()
]
FIRST = 10_000_000  # far from the seeds that the long runs begin with


@pytest.mark.parametrize("part", range(10))
def test_no_difference(native: ModuleType, part: int) -> None:
    fed = fast = ended = 0
    seed = FIRST + part * 1000
    while fed < 2000:
        history = run_round((native, pure), seed)
        fed += history.fed
        fast += history.both.get("fast_frames")
        ended += history.ended
        seed += 1
    assert fast > fed / 8, "the fuzzer makes too few frames that a kernel takes"
    assert ended > 4, "the fuzzer ends too few transactions"


@pytest.mark.parametrize("seed", FOUND)
def test_a_difference_once_found_stays_away(native: ModuleType, seed: int) -> None:
    run_round((native, pure), seed)


def test_a_difference_is_seen(native: ModuleType) -> None:
    """Who guards the guard: a twin that is wrong about one thing is found out within a few rounds."""

    class Wrong(pure.Kernel):
        def _enter_keys(self, topic: Topic, properties: bytes, log_offset: int, store_ms: int) -> None:
            super()._enter_keys(topic, properties.replace(b" k", b"_k"), log_offset, store_ms)

    wrong = ModuleType("wrong")
    wrong.__dict__.update(vars(pure), Kernel=Wrong)
    with pytest.raises(Difference):
        for seed in range(40):
            run_round((native, wrong), seed)


def test_a_round_is_its_seed() -> None:
    twin = load_kernel("twin")
    first, second = (Round((twin, twin), 7) for _ in range(2))
    first.run(60)
    second.run(60)
    assert first.segments == second.segments
    assert first.both.get("fast_frames") == second.both.get("fast_frames") > 0
    assert frames.frame(first.r) == frames.frame(second.r)


@pytest.mark.slow
@needs("compiler")
def test_without_what_only_this_processor_has(tmp_path: Path) -> None:
    portable = load_extension(str(build_kernel(tmp_path, PORTABLE)))
    for seed in range(15):
        run_round((portable, pure), FIRST + 20_000 + seed)

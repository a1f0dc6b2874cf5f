from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Callable

import pytest

from kappamq import event_loop
from kappamq.event_loop import OLD_GARBAGE, IdleCollections, loop_factory, run


async def name_of_the_loop() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_uvloop_where_it_is_installed() -> None:
    pytest.importorskip("uvloop")
    assert run(name_of_the_loop()).startswith("uvloop")


def test_asyncio_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory() is None
    assert run(name_of_the_loop()).startswith("asyncio")


def test_errors_come_out() -> None:
    async def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        run(fail())


def test_what_is_loaded_is_not_looked_at_again() -> None:
    """In a process of its own: the collector's settings belong to all of it."""
    code = (
        "import gc; from kappamq import event_loop; import kappamq.broker.broker\n"
        "async def main(): event_loop.spare_garbage_collections()\n"
        "event_loop.run(main())\n"
        "assert gc.get_freeze_count() > 10_000, gc.get_freeze_count()\n"
        "assert gc.get_threshold() == event_loop.GARBAGE_THRESHOLDS\n"
        "assert gc.isenabled()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_large_request_does_not_stop_all_threads_for_long() -> None:
    """A collection visits all objects of its generations: there are few of them in the young ones."""
    code = (
        "import gc; from kappamq import event_loop\n"
        "visited = []\n"
        "def collects(phase, info):\n"
        "    if phase == 'start': visited.append(sum(len(gc.get_objects(n)) for n in range(info['generation'] + 1)))\n"
        "async def main():\n"
        "    event_loop.spare_garbage_collections()\n"
        "    gc.callbacks.append(collects)\n"
        "    return [[] for _ in range(300_000)]\n"
        "event_loop.run(main())\n"
        "assert len(visited) > 50, visited\n"
        "assert max(visited) < 20_000, max(visited)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class Timers:
    """A loop of which only the timers are asked for."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def call_later(self, seconds: float, then: Callable[[], None]) -> None:
        self.waiting.append(then)

    def fire(self) -> None:
        waiting, self.waiting = self.waiting, []
        for then in waiting:
            then()


def test_old_garbage_is_collected_in_an_idle_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "LONG_S", 1e9)  # nothing of this process is to be frozen
    timers, used = Timers(), 0.0
    collections = IdleCollections(timers, cpu_s=lambda: used)  # type: ignore[arg-type]
    collections.start()
    gc.collect()
    timers.fire()
    young = gc.get_count()[2]
    for _ in range(OLD_GARBAGE):
        gc.collect(1)
    assert gc.get_count()[2] >= young + OLD_GARBAGE
    used += 0.2
    timers.fire()
    assert gc.get_count()[2] >= OLD_GARBAGE, "somebody was computing"
    timers.fire()
    assert gc.get_count()[2] < OLD_GARBAGE
    assert len(timers.waiting) == 1, "it looks again"


@pytest.mark.parametrize("much", [0, 1000])
def test_what_an_idle_collection_has_visited_for_long_is_left_alone_until_there_is_much_more(much: int) -> None:
    """In a process of its own: the collector is one for all of it. However much there is already, no more than so much is added unseen."""
    code = (
        "import gc, weakref; from kappamq import event_loop\n"
        "class Node: pass\n"
        "class Timers:\n"
        "    def call_later(self, seconds, then): self.then = then\n"
        "def ring():\n"
        "    one, other = Node(), Node()\n"
        "    one.next, other.next = other, one\n"
        "    return one\n"
        "gc.disable()\n"
        f"event_loop.LONG_S, event_loop.OLD_GARBAGE, event_loop.MUCH_GARBAGE = 0.0, 0, {much}\n"
        "event_loop.FROZEN_MORE = 10_000\n"
        "before = [[] for _ in range(50_000)]\n"
        "gc.collect(); gc.freeze()\n"
        "timers = Timers()\n"
        "collections = event_loop.IdleCollections(timers, cpu_s=lambda: 0.0)\n"
        "collections.start()\n"
        "at_first = gc.get_freeze_count()\n"
        "kept = [ring() for _ in range(1000)]\n"
        "timers.then()\n"
        "assert len(gc.get_objects()) < 1000, 'they are not visited again'\n"
        "seen = weakref.ref(kept[0]); kept.clear()\n"
        "timers.then()\n"
        "assert seen() is not None\n"
        "kept = [[] for _ in range(12_000)]\n"
        "timers.then(); timers.then()\n"
        "assert seen() is None, 'what became garbage meanwhile is found'\n"
        "assert gc.get_freeze_count() > at_first\n"
        "assert len(gc.get_objects()) < 1000"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

"""One way to change state: live tables, replayed tables and tables loaded from a snapshot are equal, and only `apply` writes one."""

from __future__ import annotations

import ast
import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kappamq
from kappamq.broker.admin.settings import Settings
from kappamq.broker.delivery.delay_levels import DelayPositions
from kappamq.broker.timers.progress import TimerMetrics, TimerProgress
from kappamq.broker.transactions.half_counts import HalfCounts
from kappamq.broker.transactions.reopened import Reopened
from kappamq.broker.upkeep.clock_watch import ClockTable
from kappamq.broker.upkeep.queue_ends import QueueEnds
from kappamq.config.apache import BrokerSettings
from kappamq.config.broker import BrokerConfig
from kappamq.config.net import NetConfig
from kappamq.events import Events
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.clients import SubscriptionData, SubscriptionGroupConfig
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.state.filters import ConsumerFilters
from kappamq.state.groups import Groups
from kappamq.state.locks import QueueLocks
from kappamq.state.member_places import MemberPlaces
from kappamq.state.offsets import Offsets
from kappamq.state.resets import PendingResets
from kappamq.state.scopes import Scopes
from kappamq.state.staged import StagedChunks
from kappamq.state.topics import Topics
from tests.state.node import Node
from tests.store.stores import config

ROOTS = {"__init__", "apply", "reset", "from_snapshot"}
FOLDS: dict[type, set[str]] = {
    Topics: {"table", "deleted", "_deleted_at", "version"},
    Groups: {"table", "forbidden", "version"},
    Offsets: {"_table", "version"},
    PendingResets: {"_resets", "heard"},
    QueueLocks: {"_groups", "_starts", "client_id", "found", "missed_before", "missed"},
    ConsumerFilters: {"_table"},
    QueueEnds: {"_ends"},
    MemberPlaces: {"_places"},
    ClockTable: {"clock_steps", "jumps"},  # not what was seen of this machine's clock
    DelayPositions: {"offsets", "version"},
    TimerProgress: {"due_ms", "log_offset", "moved_below", "late", "foreign_ms", "recalls", "passed", "built_behind"},
    Reopened: {"places"},
    Scopes: {"table", "open", "decided", "publishing", "dropped"},
    StagedChunks: {"table", "bytes", "count", "chunks", "waiting", "dropped"},
}
"""Every table that is a fold, and what of it the log decides; also attributes of what lies in it. The other tables are no folds:
settings are one node's, and what is only counted (timer metrics, open transactions) is counted again."""
NO_FOLDS = (Settings, TimerMetrics, HalfCounts)
CHANGING = {"add", "append", "clear", "discard", "move_to_end", "pop", "popitem", "remove", "setdefault", "update"}


# -- nothing but apply writes a table ------------------------------------------------------------------------------------------


def written(node: ast.AST) -> set[str]:
    """The attributes that a piece of code writes, of whatever object: `x.a = ...`, `x.a[k] = ...`, `del x.a[k]`, `x.a.pop()`."""
    found: set[str] = set()

    def target(place: ast.AST) -> None:
        if isinstance(place, ast.Tuple | ast.List):
            for part in place.elts:
                target(part)
        while isinstance(place, ast.Subscript):
            place = place.value
        if isinstance(place, ast.Attribute):
            found.add(place.attr)

    for inner in ast.walk(node):
        if isinstance(inner, ast.Assign | ast.Delete):
            for place in inner.targets:
                target(place)
        elif isinstance(inner, ast.AnnAssign | ast.AugAssign):
            target(inner.target)
        elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in CHANGING:
            target(inner.func.value)
    return found


def outside(source: str, attributes: set[str]) -> set[str]:
    """Methods of the class in `source` that write one of these, themselves or by a helper, and are not the ones that may."""
    (tree,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    methods = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    writing = {name for name, node in methods.items() if written(node) & attributes}
    calls = {
        name: {
            inner.attr for inner in ast.walk(node)
            if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self"
        }
        for name, node in methods.items()
    }  # fmt: skip
    while more := {name for name in methods if name not in ROOTS and calls[name] & (writing - ROOTS)} - writing:
        writing |= more
    called_by = {name: {caller for caller in methods if name in calls[caller]} for name in methods}
    # A private helper is fine as long as only those call it that may write.
    return {
        name for name in writing - ROOTS if not name.startswith("_") or not called_by[name] <= ROOTS | writing
    }  # fmt: skip


@pytest.mark.parametrize("table", FOLDS, ids=lambda table: table.__name__)
def test_only_apply_writes_a_table(table: type) -> None:
    assert outside(inspect.getsource(table), FOLDS[table]) == set()


@pytest.mark.parametrize(
    "method",
    [
        "def update(self, x): self.table[x] = 1",
        "def update(self, x): self.table.pop(x)",
        "def update(self, x): self._put(x)",
        "def update(self, x): self._twice(x)\n    def _twice(self, x): self._put(x)",
        "async def update(self, x): del self.table[x]",
        "def update(self, x): a, self.table = x",
        "def update(self, x): x.table += 1",
    ],
)
def test_a_table_that_writes_itself_is_found(method: str) -> None:
    source = (
        f"class T:\n    def apply(self, k, c): self._put(c)\n    def _put(self, c): self.table[c] = c\n    {method}\n"
    )
    assert "update" in outside(source, {"table"})
    assert outside(source.replace(method, ""), {"table"}) == set()


def test_every_table_of_a_broker_is_known_here() -> None:
    """And nobody but the state's own module applies a change or writes into somebody else's table."""
    root = Path(kappamq.__file__).parent
    tables: set[str] = set()
    for path in sorted([*(root / "state").glob("*.py"), *(root / "broker").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and {"kinds", "file"} <= {
                place.id
                for inner in node.body
                if isinstance(inner, ast.Assign)
                for place in inner.targets
                if isinstance(place, ast.Name)
            } | {
                inner.target.id
                for inner in node.body
                if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name)
            }:
                tables.add(node.name)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "apply":
                own = isinstance(node.func.value, ast.Name) and node.func.value.id in ("self", "table")
                assert own, f"{path}:{node.lineno} applies a change without a record"
            if isinstance(node, ast.Assign | ast.Delete):
                for place in node.targets:
                    inner_place: ast.AST = place
                    while isinstance(inner_place, ast.Subscript):
                        inner_place = inner_place.value
                    text = ast.unparse(inner_place)
                    assert not text.endswith(("topics.table", "groups.table", "offsets._table", "positions.offsets")), (
                        f"{path}:{node.lineno} writes a table"
                    )
    assert tables == {table.__name__ for table in (*FOLDS, *NO_FOLDS)}


# -- live, replayed, loaded ----------------------------------------------------------------------------------------------------


few = st.integers(0, 3)
names = few.map(lambda number: f"n{number}")


def step(name: str, *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(name), *parts)


STEPS = st.lists(
    st.one_of(
        step("topic", names, st.integers(1, 4)), step("topic gone", names), step("permission"), step("forget", st.just(0)),
        step("group", names, few), step("group gone", names), step("forbid", names, names, st.booleans()), step("used", names),
        step("commit", names, names, few, st.integers(0, 99)), step("record"), step("move", names, names, few),
        step("offsets gone", names), step("reset", names, names, few), step("pull", names, names, few, names, st.integers(0, 5)),
        step("reset gone", names), step("lock", names, names, few, st.integers(0, 100)), step("unlock", names, names, few),
        step("expire", st.integers(0, 300)), step("filter", names, names, names, few), step("look", st.integers(0, 9)),
        step("ends", names, few), step("ends gone", names), step("delay", few, st.integers(0, 99)), step("due", few, few),
        step("clock", st.integers(-5, 5)), step("reopened", few, few), step("scope", few), step("batch", few, few), step("chunk", few, few),
        step("wait", st.integers(1, 5)), step("write"), step("save"),
    ),
    max_size=30,
)  # fmt: skip


def do(node: Node, name: str, *given: Any) -> None:
    queue = [MessageQueue("t", "b", given[-1] if isinstance(given[-1], int) else 0)] if given else []
    end = node.store.kernel.append_offset
    doing: dict[str, Callable[..., Any]] = {
        "topic": lambda topic, queues: node.topics.update(TopicConfig(topic, queues, queues, 6)),
        "topic gone": node.topics.delete,
        "permission": node.topics.permission_changed,
        "forget": lambda _: node.topics.forget_deleted(1 << 40),
        "group": lambda group, retries: node.groups.update(SubscriptionGroupConfig(name=group, retry_times_max=retries)),
        "group gone": node.groups.delete,
        "forbid": node.groups.forbid,
        "used": node.groups.get,
        "commit": node.offsets.commit,
        "record": node.offsets.record_commits,
        "move": lambda group, topic, offset: node.offsets.move(group, topic, {0: offset, 1: offset}),
        "offsets gone": lambda topic: node.offsets.delete(topic=topic),
        "reset": lambda group, topic, offset: node.tables.resets.add(group, topic, {0: offset, 1: offset}),
        "pull": lambda group, topic, queue_id, client, offset: node.tables.resets.must_move(
            client, (group, topic, queue_id), offset, 1, 0.0
        ),
        "reset gone": lambda group: node.tables.resets.forget(group=group),
        "lock": lambda group, client, queue_id, now: node.tables.locks.lock(group, client, {MessageQueue("t", "b", queue_id)}, now),
        "unlock": lambda group, client, _queue_id: node.tables.locks.unlock(group, client, set(queue)),
        "expire": node.tables.locks.expire,
        "filter": lambda group, topic, text, version: node.tables.filters.subscribed(
            group, SubscriptionData(topic=topic, expression=f"a = '{text}'", expression_type="SQL92", version=version)
        ),
        "look": lambda now: node.tables.filters.tick(lambda group: {}, float(now)),
        "ends": lambda topic, ended: node.metadata.commit("queue-ends", {topic: {0: ended}}),
        "ends gone": node.tables.ends.forget,
        "delay": lambda level, offset: node.metadata.commit("delay", [level, offset]),
        "due": lambda due, wish: node.metadata.commit("timer", node.tables.timers.after(due * 1000, due, {f"w{wish}": wish * 1000})),
        "clock": lambda seconds: node.metadata.commit(
            "clock", {"step": [end, seconds * 1000, node.clock.message_ms()], "boot": "b", "offset": seconds, "ahead": 0}
        ),
        "reopened": lambda at, low: node.metadata.commit(*node.tables.reopened.change(at, low)),
        "scope": lambda scope: node.metadata.commit("scope", [f"n{scope}", f"owner {scope}", "b"]),
        "batch": lambda scope, number: do_batch(node, f"n{scope}", number),
        "chunk": lambda transaction, place: node.metadata.commit(
            "chunk-staged", [f"t{transaction}", "n0", transaction, [place, end, 7, 2, 100 + place, "t", 0]]
        ),
        "wait": node.clock.advance,
        "write": node.turn,
        "save": node.save,
    }  # fmt: skip
    doing[name](*given)


def do_batch(node: Node, scope: str, number: int) -> None:
    if node.tables.scopes.get(scope) is not None:
        node.metadata.commit("batch-begun", [scope, f"t{number}", number])


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_live_tables_equal_replayed_ones(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder))
        try:
            for name, *given_ in steps:
                do(node, name, *given_)
            node.turn()
            live = node.state()
            node.metadata.reset()
            assert all(not table.dirty for table in node.tables.all)
            node.load()
            assert node.state() == live, "reset and loaded"
            node.close()
            node = Node(Path(folder))
            assert (node.state(), node.notes) == (live, []), "snapshots and the log behind them"
            for path in (Path(folder) / "config").glob("*"):
                path.unlink()
            node.close()
            node = Node(Path(folder))
            assert (node.state(), node.notes) == (live, []), "the log alone"
        finally:
            node.close()


def test_tables_that_are_no_folds_can_be_reset(tmp_path: Path) -> None:
    store = config(tmp_path)
    node_settings = Settings(BrokerSettings(broker=BrokerConfig(), store=store, net=NetConfig()), lambda: 5, Events())
    node_settings.change({"maxTransferCountOnMessageInMemory": "7"})
    metrics = TimerMetrics(lambda: 5)
    metrics.add("t", 3)
    counts = HalfCounts(lambda: 5)
    counts.from_snapshot({"transactionCount": {"t": {"count": 3}}})
    made = [
        Settings(BrokerSettings(broker=BrokerConfig(), store=store, net=NetConfig()), lambda: 5, Events()),
        TimerMetrics(lambda: 5),
        HalfCounts(lambda: 5),
    ]
    for table, new in zip((node_settings, metrics, counts), made, strict=True):
        before = table.to_snapshot()
        table.reset()
        after, fresh = table.to_snapshot(), new.to_snapshot()
        assert after != before
        assert {key: value for key, value in after.items() if key != "dataVersion"} == {
            key: value for key, value in fresh.items() if key != "dataVersion"
        }
        table.from_snapshot(before)
        assert {key: value for key, value in table.to_snapshot().items() if key != "dataVersion"} == {
            key: value for key, value in before.items() if key != "dataVersion"
        }

"""Stage, decide, publish, for hypothesis: two brokers that are killed, lose power and lose answers; every batch counts once or never."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kappamq.broker.batches.participant import ASK_S
from kappamq.broker.delivery import agenda
from kappamq.config.broker import BrokerConfig
from kappamq.errors import KappaError
from kappamq.protocol.bodies.batches import ChunkList
from kappamq.protocol.codes import ResponseCode
from tests.broker.batches.batching import Batcher
from tests.broker.batches.crashing import TwoBrokers
from tests.broker.operating import make_topic, refused
from tests.broker.running import speaking
from tests.store.stores import kernels
from tests.waiting import eventually_async

COORDINATOR = "a"
QUEUES = 2
_TIMEOUT_MS = BrokerConfig().batch_transaction_timeout_ms


@dataclass
class Open:
    """What the model knows of the open transaction."""

    number: int
    transaction: str
    chunks: dict[str, list[list[int]]] = field(default_factory=dict)  # those that will be listed
    messages: list[tuple[str, int, bytes]] = field(default_factory=list)  # of them: broker, queue, body

    @property
    def rows(self) -> int:
        return len(self.messages)


class StageDecidePublish(RuleBasedStateMachine):
    nodes, queues = st.sampled_from(("a", "b")), st.integers(0, QUEUES - 1)
    kept = st.sampled_from((1.0, 0.0, 0.5))
    seeds = st.integers(0, 1 << 16)

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(agenda, "_LOOK_S", 0.01)  # how long it takes to see that the clock was moved
        self.home = Path(tempfile.mkdtemp(prefix="kappamq-machine-"))
        self.bodies = (b"%d" % number for number in itertools.count())
        self.decided: list[Open] = []
        self.open: Open | None = None
        self.former: Open | None = None  # an attempt that is over, and has not heard of it

    @initialize(kernel=st.sampled_from(kernels()))
    def begin_with(self, kernel: str) -> None:
        self.two = TwoBrokers(self.home, kernel, self.patch)
        self.run = self.two.run
        for node in self.two.nodes.values():
            self.run(make_topic(node.client, "t", QUEUES))
            self.run(self.speaker(node.name).open())

    def speaker(self, node: str = COORDINATOR) -> Batcher:
        return Batcher(self.two.nodes[node].client, coordinator=COORDINATOR)

    # -- what clients do ---------------------------------------------------------------------------------------------------

    @rule(anew=st.integers(0, 3))
    def begin(self, anew: int) -> None:
        """A new attempt takes the place of one that is open, now and then."""
        if self.open is not None and anew:
            return
        self.former = self.open or self.former
        transaction = self.run(self.speaker().begin(len(self.decided)))
        assert transaction is not None
        self.open = Open(len(self.decided), transaction)

    @precondition(lambda self: self.decided)
    @rule()
    def begin_what_is_decided(self) -> None:
        assert self.run(self.speaker().begin(len(self.decided) - 1)) is None

    @precondition(lambda self: self.open is not None)
    @rule(chunks=st.lists(st.tuples(nodes, queues, st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=4))
    def stage(self, chunks: list[tuple[str, int, int, int]]) -> None:
        """One chunk in four belongs to an attempt at a task that does not count: the decision does not list it."""
        assert self.open is not None
        for node, queue, rows, counts in chunks:
            bodies = [next(self.bodies) for _ in range(rows)]
            staged = self.speaker(node).stage(self.open.number, self.open.transaction, *bodies, queue_id=queue)
            chunk = self.run(staged)
            if counts:
                self.open.chunks.setdefault(node, []).append(chunk)
                self.open.messages += [(node, queue, body) for body in bodies]

    @precondition(lambda self: self.open is not None)
    @rule(node=nodes, queue=queues, rows=st.integers(1, 3), kept=kept, seed=seeds, turns=st.integers(0, 25))
    def crash_while_staging(self, node: str, queue: int, rows: int, kept: float, seed: int, turns: int) -> None:
        """If the answer came it holds; else the same is staged once more, and the decision lists only that."""
        assert self.open is not None
        one, bodies = self.open, [next(self.bodies) for _ in range(rows)]

        async def stage() -> list[int]:
            async with speaking(self.two.nodes[node].broker) as client:
                it = Batcher(client, coordinator=COORDINATOR)
                return await it.stage(one.number, one.transaction, *bodies, queue_id=queue)

        async def both() -> list[int]:
            asked = asyncio.create_task(stage())
            for _ in range(turns):
                await asyncio.sleep(0)
            await self.two.nodes[node].crash(Random(seed), kept)
            asked.cancel()
            try:
                return await asked
            except (asyncio.CancelledError, KappaError, AssertionError):
                return await stage()

        one.chunks.setdefault(node, []).append(self.run(both()))
        one.messages += [(node, queue, body) for body in bodies]

    @precondition(lambda self: self.former is not None)
    @rule(node=nodes)
    def a_former_attempt_goes_on(self, node: str) -> None:
        """It may stage, which nobody lists; it cannot decide, and its abort hits nobody else."""
        one, self.former = self.former, None
        assert one is not None
        chunk = self.run(self.speaker(node).stage(one.number, one.transaction, next(self.bodies)))
        if one.number < len(self.decided):
            return
        decision = self.speaker().decision(one.number, one.transaction, 1)
        body = ChunkList({node: [chunk]}).encode()
        failed = ResponseCode.TRANSACTION_FAILED
        self.run(refused(self.speaker().client, decision, failed, "is not open", body=body))
        assert not self.run(self.speaker().abort(one.number, one.transaction))

    @precondition(lambda self: self.decided)
    @rule(back=st.integers(0, 3))
    def abort_what_is_decided(self, back: int) -> None:
        one = self.decided[-1 - min(back, len(self.decided) - 1)]
        assert self.run(self.speaker().abort(one.number, one.transaction)), "it is decided, and stays so"

    @precondition(lambda self: self.open is not None)
    @rule()
    def decide(self) -> None:
        self.run(self.ask_to_decide())
        self.is_decided()

    @precondition(lambda self: self.open is not None)
    @rule(node=nodes, kept=kept, seed=seeds, turns=st.integers(0, 40))
    def crash_while_deciding(self, node: str, kept: float, seed: int, turns: int) -> None:
        """The answer is lost, and nobody knows how far it came: the same is asked once more."""

        async def both() -> None:
            asked = asyncio.create_task(self.ask_to_decide())
            for _ in range(turns):
                await asyncio.sleep(0)
            await self.two.nodes[node].crash(Random(seed), kept)
            asked.cancel()
            with suppress(
                asyncio.CancelledError, KappaError, AssertionError
            ):  # which of the brokers is it that has gone?
                await asked
            await self.ask_to_decide()

        self.run(both())
        self.is_decided()

    @precondition(lambda self: self.decided)
    @rule(back=st.integers(0, 3))
    def decide_again(self, back: int) -> None:
        """The same is answered as the first time, and another is refused; neither changes anything."""
        one = self.decided[-1 - min(back, len(self.decided) - 1)]
        self.run(self.ask_to_decide(one))
        other = self.speaker().decision(one.number, one.transaction, one.rows + 1, one.number)
        body = ChunkList(one.chunks).encode()
        self.run(refused(self.speaker().client, other, ResponseCode.ILLEGAL_OPERATION, "was decided with", body=body))

    @precondition(lambda self: self.open is not None)
    @rule()
    def abort(self) -> None:
        assert self.open is not None
        assert not self.run(self.speaker().abort(self.open.number, self.open.transaction))
        self.open = None

    @precondition(lambda self: self.open is not None)
    @rule()
    def time_passes(self) -> None:
        """Nobody decides for an hour."""
        self.two.clock.advance(ms=_TIMEOUT_MS + 1000)
        self.former = self.open

        async def aborted() -> None:
            await eventually_async(
                lambda: self.two.nodes[COORDINATOR].broker.delivery_tables.scopes.table["s"].open is None,
                text="the coordinator has given the transaction up",
            )

        self.run(aborted())
        self.open = None

    # -- what happens to brokers -------------------------------------------------------------------------------------------

    @rule(node=nodes, kept=kept, seed=seeds, turns=st.integers(0, 30))
    def crash(self, node: str, kept: float, seed: int, turns: int) -> None:
        """So many turns of the loop later: while chunks are published, perhaps."""

        async def crash() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            await self.two.nodes[node].crash(Random(seed), kept)

        self.run(crash())

    @rule(kept=kept, seed=seeds, turns=st.integers(0, 20))
    def crash_both(self, kept: float, seed: int, turns: int) -> None:
        async def both() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            await asyncio.gather(*(node.crash(Random(seed), kept) for node in self.two.nodes.values()))

        self.run(both())

    @rule()
    def some_time_passes(self) -> None:
        """Participants that have heard nothing ask."""
        self.two.clock.advance(ASK_S + 1)

    # -- what has to be true -----------------------------------------------------------------------------------------------

    async def ask_to_decide(self, what: Open | None = None) -> None:
        one = what or self.open
        assert one is not None
        async with speaking(self.two.nodes[COORDINATOR].broker) as client:
            header = self.speaker().decision(one.number, one.transaction, one.rows, one.number)
            answer = await client.ask(header, ChunkList(one.chunks).encode())
        assert answer.code == 0, answer.remark

    def is_decided(self) -> None:
        assert self.open is not None
        self.decided.append(self.open)
        self.open = None

    def teardown(self) -> None:
        try:
            if hasattr(self, "two"):
                self.run(self.settled())
                self.two.stop()
        finally:
            self.patch.undo()
            shutil.rmtree(self.home)

    async def settled(self) -> None:
        """Nothing is staged any more; each message of a decided batch is there once, in order, and no other."""
        self.two.clock.advance(ms=_TIMEOUT_MS + 1000)

        async def is_quiet() -> bool:
            self.two.clock.advance(ASK_S + 1)
            await asyncio.sleep(0)
            return not any(node.broker.delivery_tables.staged.table for node in self.two.nodes.values())

        await eventually_async(is_quiet, text="nothing is staged any more")
        for node in self.two.nodes.values():
            for queue in range(QUEUES):
                found = [record.body for record in await node.client.read("t", queue)]
                wanted = [
                    body
                    for one in self.decided
                    for broker, number, body in one.messages
                    if (broker, number) == (node.name, queue)
                ]
                assert Counter(found) == Counter(wanted), (node.name, queue)
                assert found == wanted, "batches in their order, chunks in that of the decision"


TestStageDecidePublish = StageDecidePublish.TestCase
TestStageDecidePublish.settings = settings(
    max_examples=12, stateful_step_count=25, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)

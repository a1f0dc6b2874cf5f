"""One simulated broker: a real `Node`, a simulated disk, and the driver that the contract of `kappamq.raft` requires."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kappamq.raft import (
    Append,
    AppendRecord,
    Confirmed,
    Cut,
    Effect,
    HoldAppends,
    LeaderReady,
    Log,
    MemberId,
    Message,
    Node,
    Persist,
    RaftSettings,
    Replicate,
    Role,
    RoleChanged,
    Seed,
    Send,
    TermRecord,
    Write,
)
from kappamq.sim.disk import Disk, Piece, piece_after

if TYPE_CHECKING:
    from kappamq.sim.cluster import Cluster

SETTINGS = RaftSettings(window_bytes=64, append_bytes_max=16, caught_up_bytes=8)
TICK_MS = 50.0
RECORD_SIZE = 3


class Broker:
    """Lives from `start` to `crash`; what an earlier life had scheduled is dropped."""

    make_node = Node

    def __init__(self, cluster: Cluster, me: MemberId, disk: Disk) -> None:
        self.cluster, self.me, self.disk = cluster, me, disk
        self.world, self.faults = cluster.world, cluster.faults
        self.life = 0
        self.alive = self.paused = False
        self.node: Node = None  # type: ignore[assignment]  # set by `start`
        self.serving = self.holding = False
        self._effects: deque[Effect] = deque()
        self._doing = False
        self._waiting: deque[Callable[[], None]] = deque()  # arrived while the ballot was being saved, or in a pause
        self._incoming: tuple[Piece, ...] = ()
        self._flushing = False
        self._generation = 0  # of flushes: each cut begins a new one

    @property
    def name(self) -> str:
        return self.me.name

    # A life

    def start(self) -> None:
        self.life += 1
        self.alive = True
        self._generation = 0
        self.paused = self.serving = self.holding = self._doing = self._flushing = False
        disk = self.disk
        log = Log(disk.terms(), disk.end, disk.confirmed)
        self.node = self.make_node(
            self.me, disk.ballot, log, now=self.world.now, dice=self.world.dice.random, settings=SETTINGS
        )
        self.cluster.checker.started(self)
        self._later(TICK_MS * self.world.dice.random(), self._tick)

    def crash(self) -> None:
        if not self.alive:
            return
        self.alive = self.serving = False
        self.life += 1
        self._effects.clear()
        self._waiting.clear()
        self.disk.crash(self.world.dice)

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        self.paused = False
        self._drain()

    def _later(self, delay: float, action: Callable[..., object], *arguments: object) -> None:
        self.world.after(delay, self._if_alive, self.life, action, arguments)

    def _if_alive(self, life: int, action: Callable[..., object], arguments: tuple[object, ...]) -> None:
        if life == self.life:
            action(*arguments)

    # Events for the node

    def hear(self, message: Message, pieces: tuple[Piece, ...]) -> None:
        if self.alive:
            self._event(self._step, message, pieces)

    def connection_lost(self, member: MemberId) -> None:
        if self.alive:
            self._event(lambda: self.node.connection_lost(member, self.world.now))

    def append(self, sizes: list[int]) -> None:
        """A client sends messages of these sizes."""
        if self._is_free and self.serving and not self.holding:
            disk = self.disk
            for size in sizes:
                self.write(piece_after(disk.end, size, self.node.term, disk.chain, self.world.dice.getrandbits(32)))
            self._do(self.node.appended(disk.end))
            self._flush()

    def order(self, wish: Callable[[Node], list[Effect]]) -> None:
        """An operator requests something. Raises Refused."""
        if self._is_free:
            self._do(wish(self.node))

    def trim(self) -> None:
        """Delete old files, below what a restart is sure to find confirmed."""
        if self._is_free:
            ends = [end for end in self.disk.ends if end <= self.disk.confirmed]
            if ends:
                offset = self.world.dice.choice(ends)
                self._do(self.node.trimmed(offset))
                self.disk.trim(offset, self.node.log.terms.base)

    def _step(self, message: Message, pieces: tuple[Piece, ...]) -> list[Effect]:
        self._incoming = pieces
        return self.node.step(message, self.world.now)

    def _tick(self) -> None:
        self._later(TICK_MS, self._tick)
        if not self._waiting:  # queue at most one late tick
            self._event(lambda: self.node.tick(self.world.now))

    @property
    def is_blocked(self) -> bool:
        """The ballot is being saved: the node must not be called."""
        return self.disk.unsaved is not None

    @property
    def _is_free(self) -> bool:
        return self.alive and not self.paused and not self.is_blocked and not self._waiting

    def _event(self, call: Callable[..., list[Effect]], *arguments: object) -> None:
        if self.paused or self.is_blocked or self._waiting:
            self._waiting.append(lambda: self._do(call(*arguments)))
        else:
            self._do(call(*arguments))

    def _drain(self) -> None:
        while self._waiting and not self.paused and not self.is_blocked:
            self._waiting.popleft()()

    # Effects

    def _do(self, effects: list[Effect]) -> None:
        self._effects.extend(effects)
        if self._doing:
            return
        self._doing = True
        while self._effects and not self.is_blocked:
            effect = self._effects.popleft()
            self._DO[type(effect)](self, effect)
        self._doing = False
        self.cluster.checker.stepped(self)

    def _persist(self, effect: Persist) -> None:
        self.disk.unsaved = effect.ballot
        self._later(self._disk_delay(), self._persisted)

    def _persisted(self) -> None:
        assert self.disk.unsaved is not None
        self.disk.ballot, self.disk.unsaved = self.disk.unsaved, None
        self._do([])
        self._drain()

    def _send(self, effect: Send) -> None:
        self.cluster.checker.said(self, effect.message)
        self.cluster.network.send(effect.message)

    def _replicate(self, effect: Replicate) -> None:
        if self.world.happens(0.8):
            self._do(self._transmit(*effect))
        else:  # a worker reads it
            self._later(self._disk_delay(), self._transmit_late, *effect)

    def _transmit_late(self, append: Append, wanted: int) -> None:
        leadership = self.node.leadership
        if leadership is not None and leadership.term == append.term and append.start >= self.disk.base.start:
            self._event(self._transmit, append, wanted)

    def _transmit(self, append: Append, wanted: int) -> list[Effect]:
        # If the first piece is longer than what is wanted, a driver may send more than that piece.
        pieces = self.disk.between(append.start, append.end if self.world.happens(0.1) else wanted)
        end = pieces[-1].end
        append = append.ending(end)
        self.cluster.network.send(append, pieces)
        return self.node.sent(append.target, append.stream, end)

    def _write(self, effect: Write) -> None:
        written = 0
        for piece in self._incoming:
            self.write(piece)
            written = piece.end
        assert written == effect.end, f"the bytes end at {written}, the message at {effect.end}"
        self._flush()

    def _append_record(self, effect: AppendRecord) -> None:
        disk = self.disk
        start = disk.end
        record = TermRecord(start, effect.term, effect.members)
        self.write(piece_after(start, RECORD_SIZE, effect.term, disk.chain, self.world.dice.getrandbits(32), record))
        self._do(self.node.record_appended(start, disk.end, effect.members, self.world.now))
        self._flush()

    def write(self, piece: Piece) -> None:
        self.disk.append(piece)
        self.cluster.checker.written(self, piece)

    def _cut(self, effect: Cut) -> None:
        self.disk.cutting = effect.offset
        self._generation = effect.generation
        self._later(self.faults.cut_ms * self.world.dice.random(), self._cut_is_done, effect)

    def _cut_is_done(self, effect: Cut) -> None:
        self.disk.shorten(effect.offset)
        self.disk.cutting = None
        self._event(lambda: self.node.cut_done(effect.generation, self.world.now))

    def _confirmed(self, effect: Confirmed) -> None:
        self.cluster.checker.confirmed(self, effect.offset)
        if self.world.happens(0.3):
            self.disk.confirmed = max(self.disk.confirmed, min(effect.offset, self.disk.synced))

    def _role_changed(self, effect: RoleChanged) -> None:
        self.serving = self.holding = False
        self.cluster.checker.role_changed(self, effect.role, effect.term)
        if effect.role is Role.LEADER:
            self.cluster.elected(self)

    def _leader_ready(self, effect: LeaderReady) -> None:
        self.serving = True

    def _hold_appends(self, effect: HoldAppends) -> None:
        self.holding = effect.holding

    def _seed(self, effect: Seed) -> None:
        self.cluster.seed(self, effect.member)

    _DO: dict[type[Effect], Callable[..., None]] = {
        Persist: _persist,
        Send: _send,
        Replicate: _replicate,
        Write: _write,
        AppendRecord: _append_record,
        Cut: _cut,
        Confirmed: _confirmed,
        RoleChanged: _role_changed,
        LeaderReady: _leader_ready,
        HoldAppends: _hold_appends,
        Seed: _seed,
    }

    # Flushes

    def _flush(self) -> None:
        """One at a time; it covers what is written when it starts."""
        if not self._flushing and self.disk.cutting is None and self.disk.synced < self.disk.end:
            self._flushing = True
            self._later(self._disk_delay(), self._flushed, self.disk.end, self._generation)

    def _flushed(self, end: int, generation: int) -> None:
        self._flushing = False
        if generation == self._generation:
            self.disk.synced = max(self.disk.synced, end)
        self._event(self.node.flushed, end, generation)
        self._flush()

    def _disk_delay(self) -> float:
        delay = self.faults.fsync_ms * self.world.dice.random()
        if not self.cluster.healing and self.faults.fsync_tail and self.world.happens(self.faults.fsync_tail):
            delay *= 100
        return delay

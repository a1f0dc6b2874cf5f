"""A group of nodes for dialogues: time passes and messages arrive when the script says so."""

from __future__ import annotations

from collections import deque

from kappamq.raft import (
    AppendRecord,
    Ballot,
    Confirmed,
    Cut,
    Effect,
    HoldAppends,
    LeaderReady,
    Log,
    MemberId,
    Members,
    Message,
    Node,
    Persist,
    RaftSettings,
    Refused,
    Replicate,
    RoleChanged,
    Seed,
    Send,
    TermRecord,
    Terms,
    Write,
)
from kappamq.raft.messages import (
    Append,
    Beat,
    Diverged,
    Join,
    Position,
    PreVote,
    PreVoteAnswer,
    Report,
    TimeoutNow,
    Vote,
    VoteAnswer,
)
from tests.dialogue import table

TICK_MS = 50
RECORD_BYTES = 10
SETTINGS = RaftSettings(window_bytes=100, append_bytes_max=50, caught_up_bytes=20)


def member(text: str) -> MemberId:
    name, _, incarnation = text.partition("#")
    return MemberId(name, int(incarnation or 1))


def members(texts: tuple[str, ...] | list[str]) -> Members:
    """`A B` are voters, `~C` is a learner."""
    voters = frozenset(member(text) for text in texts if text[0] != "~")
    return Members(voters, frozenset(member(text[1:]) for text in texts if text[0] == "~"))


def names(some: frozenset[MemberId] | set[MemberId]) -> str:
    return " ".join(sorted(map(str, some)))


def members_text(some: Members) -> str:
    return names(some.voters) + "".join(f" ~{learner}" for learner in sorted(some.learners))


def describe(message: Message) -> str:
    match message:
        case PreVote():
            return (
                f"would you vote for me in term {message.term}? my log ends at {message.end}, term {message.last_term}"
            )
        case PreVoteAnswer():
            return f"{'I would' if message.granted else 'I would not'}, term {message.term}"
        case Vote():
            forced = ", the leader wants it" if message.forced else ""
            return f"vote for me in term {message.term}, my log ends at {message.end}, term {message.last_term}{forced}"
        case VoteAnswer():
            return f"{'yes' if message.granted else 'no'}, term {message.term}"
        case Beat():
            stream = f"stream {message.stream} sent up to {message.sent}" if message.stream else "where are you?"
            return f"beat of term {message.term}, {stream}, confirmed {message.confirmed}"
        case Position():
            return f"my log ends at {message.end}, term {message.last_term}, flushed {message.flushed}"
        case Diverged():
            return f"not mine; my last term up to {message.last_term} is {message.point_term} and ends at {message.point_end}"
        case Append():
            records = "".join(f", term record at {record.start}" for record in message.records)
            what = (
                f"bytes {message.start}-{message.end}"
                if message.start < message.end
                else f"we agree up to {message.end}"
            )
            return f"{what} behind term {message.before_term}{records}; stream {message.stream}, confirmed {message.confirmed}"
        case Report():
            return f"written {message.written}, flushed {message.flushed}, stream {message.stream}, term {message.term}"
        case TimeoutNow():
            return f"stand for election, term {message.term}"
        case Join():
            return "I am somebody else: take me in"


class Group:
    """Everything of it happens at `now`, and dice show 0, 1/8, 2/8 ... for A, B, C: A is the first to lose patience."""

    def given_group(self, *voters: str, term: int = 0) -> None:
        self.now = 0.0
        self.queue: deque[Message] = deque()
        self.nodes: dict[str, Node] = {}
        self.bases: dict[str, Members] = {}
        self.said: list[str] = []
        self.late_flush: set[str] = set()
        for text in voters:
            if text[0] != "~":
                self._make(member(text), members(voters), Ballot(term, None), [])

    def given_led(self, *voters: str) -> None:
        """A is the leader, its term record is confirmed, and all know."""
        self.given_group(*voters)
        self.when_wait(500)
        self.when_settle()
        self.when_wait(100)
        self.when_settle()

    def given_log(self, name: str, *stretches: str, confirmed: int = 0) -> None:
        """Before the group has begun: `given log A 1:30 3:50` ends at 50, and the bytes from 30 on are of term 3."""
        node = self.nodes[name]
        term = max(node.term, *(int(stretch.split(":")[0]) for stretch in stretches))
        self._make(node.me, self.bases[name], Ballot(term, None), list(stretches), confirmed)

    def _make(self, me: MemberId, base: Members, ballot: Ballot, stretches: list[str], confirmed: int = 0) -> None:
        terms, end = Terms(TermRecord(0, 0, base)), 0
        for stretch in stretches:
            term, _, until = stretch.partition(":")
            if int(term):
                terms.append(TermRecord(end, int(term), base))
            end = int(until)
        self.bases[me.name] = base
        self._start(me, ballot, Log(terms, end, confirmed))

    def _start(self, me: MemberId, ballot: Ballot, log: Log) -> None:
        dice = (ord(me.name[0]) - ord("A")) / 8
        self.nodes[me.name] = Node(me, ballot, log, now=self.now, dice=lambda: dice, settings=SETTINGS)

    # What happens

    def when_wait(self, ms: int, *only: str) -> list[str]:
        """Time passes: all nodes, or only these, look at the clock every 50 ms. Messages wait. Beats are not told."""
        return self._passed(ms, *only) or [f"{self.now:.0f} ms"]

    def _passed(self, ms: int, *only: str) -> list[str]:
        for _ in range(0, ms, TICK_MS):
            self.now += TICK_MS
            for name in only or self.nodes:
                self._do(self.nodes[name], self.nodes[name].tick(self.now), quiet=True)
        return self._told()

    def when_live(self, ms: int, *without: str) -> list[str]:
        """Time passes, messages arrive and disks flush, but not at those without."""
        told: list[str] = []
        for _ in range(0, ms, 100):
            told += self._passed(100, *(name for name in self.nodes if name not in without))
            told += [line for line in self.when_settle(*without) if line != "nothing"]
        return told or ["nothing"]

    def when_stall(self, ms: int, name: str) -> list[str]:
        """The loop of one node stands still, and goes on with a tick."""
        self.now += ms
        self._do(self.nodes[name], self.nodes[name].tick(self.now))
        return self._told() or [f"{name}: nothing"]

    def when_deliver(self, *links: str) -> list[str]:
        """What waits arrives, in order: everything, or what is on these links (`A-B`). What is said then waits."""
        count = len(self.queue)
        for _ in range(count):
            message = self.queue.popleft()
            if links and f"{message.source.name}-{message.target.name}" not in links:
                self.queue.append(message)
                continue
            self._hear(message)
        return self._told() or ["nothing"]

    def when_settle(self, *without: str) -> list[str]:
        """Messages arrive and disks flush until nothing more is said. Nothing arrives at, or comes from, those without."""
        told: list[str] = []
        while self.queue:
            message = self.queue.popleft()
            if message.source.name not in without and message.target.name not in without:
                self._hear(message, quiet=True)
            if not self.queue:
                for name, node in self.nodes.items():
                    if name not in without and name not in self.late_flush:
                        self._do(node, node.flushed(node.log.end, node.log.generation), quiet=True)
                    if node.log.cutting:
                        self._do(node, node.cut_done(node.log.generation, self.now))
        told += self._told()
        return told or ["nothing"]

    def when_drop(self, *links: str) -> str:
        kept = [m for m in self.queue if links and f"{m.source.name}-{m.target.name}" not in links]
        dropped = len(self.queue) - len(kept)
        self.queue = deque(kept)
        return f"{dropped} lost"

    def when_repeat(self, *links: str) -> None:
        """What waits on these links will arrive twice."""
        self.queue.extend([m for m in self.queue if f"{m.source.name}-{m.target.name}" in links])

    def when_append(self, name: str, size: int) -> list[str]:
        node = self.nodes[name]
        self._do(node, node.appended(node.log.end + size))
        return self._told() or [f"{name}: log ends at {node.log.end}"]

    def when_flushed(self, name: str, offset: int, generation: int) -> list[str]:
        node = self.nodes[name]
        self._do(node, node.flushed(offset, generation))
        return self._told() or [f"{name}: nothing"]

    def when_flush(self, name: str) -> list[str]:
        node = self.nodes[name]
        return self.when_flushed(name, node.log.end, node.log.generation)

    def when_flushes_late(self, *late: str) -> None:
        """Those do not flush when things settle."""
        self.late_flush = set(late)

    def when_cut_done(self, name: str) -> list[str]:
        node = self.nodes[name]
        self._do(node, node.cut_done(node.log.generation, self.now))
        return self._told() or [f"{name}: nothing"]

    def when_crash(self, name: str, *, keeps: int = -1) -> str:
        """And restart at once, with the log as far as it was flushed, or as `keeps` says."""
        node = self.nodes[name]
        end = node.log.flushed if keeps < 0 else keeps
        records = [record for record in node.log.terms.records if record.start < end]
        log = Log(Terms(node.log.terms.base, records), end, min(node.log.confirmed, end))
        self._start(node.me, node.ballot, log)
        return f"{name}: log ends at {end}, term {node.term}"

    def when_wipe(self, name: str) -> str:
        """The disk is new: an empty log, no vote, and therefore another incarnation."""
        me = self.nodes[name].me
        self._make(MemberId(name, me.incarnation + 1), Members(), Ballot(0, None), [])
        return f"{name}: is {self.nodes[name].me} now"

    def when_start(self, name: str) -> str:
        """Somebody new."""
        self._make(member(name), Members(), Ballot(0, None), [])
        return f"{name}: is there"

    def when_connection_lost(self, name: str, other: str) -> list[str]:
        node = self.nodes[name]
        self._do(node, node.connection_lost(self.nodes[other].me, self.now))
        return self._told() or [f"{name}: nothing"]

    def when_trim(self, name: str, offset: int) -> list[str]:
        node = self.nodes[name]
        self._do(node, node.trimmed(offset))
        return self._told() or [f"{name}: log begins at {offset}"]

    def when_transfer(self, name: str, successor: str) -> list[str]:
        node = self.nodes[name]
        return self._wish(node, lambda: node.transfer(member(successor), self.now))

    def when_add(self, name: str, other: str) -> list[str]:
        node = self.nodes[name]
        return self._wish(node, lambda: node.add(member(other)))

    def when_remove(self, name: str, other: str) -> list[str]:
        node = self.nodes[name]
        return self._wish(node, lambda: node.remove(member(other), self.now))

    # What is seen

    def then_state(self) -> list[str]:
        rows = [
            (
                str(node.me),
                node.role.value,
                f"term {node.term}",
                f"leader {node.leader or '-'}",
                f"log {node.log.end}",
                f"flushed {node.log.flushed}",
                f"confirmed {node.log.confirmed}",
            )
            for node in self.nodes.values()
        ]
        return table(rows)

    def then_members(self, name: str) -> str:
        return members_text(self.nodes[name].members)

    def then_terms(self, name: str) -> str:
        log = self.nodes[name].log
        stretches = [f"term {record.term} from {record.start}" for record in log.terms.records]
        return ", ".join(stretches) + f", end {log.end}"

    def then_waiting(self) -> list[str]:
        return [f"{m.source} -> {m.target}: {describe(m)}" for m in self.queue] or ["nothing"]

    # The driver

    def _wish(self, node: Node, wish) -> list[str]:  # type: ignore[no-untyped-def]
        try:
            self._do(node, wish())
        except Refused as refused:
            return [f"{node.me}: refused: {refused}"]
        return self._told()

    def _hear(self, message: Message, quiet: bool = False) -> None:
        node = self.nodes.get(message.target.name)
        if node is not None:
            self._do(node, node.step(message, self.now), quiet)

    def _told(self) -> list[str]:
        said, self.said = self.said, []
        return said

    def _do(self, node: Node, effects: list[Effect], quiet: bool = False) -> None:
        todo = deque(effects)
        while todo:
            todo.extend(self._do_one(node, todo.popleft(), quiet))

    def _do_one(self, node: Node, effect: Effect, quiet: bool) -> list[Effect]:
        me, log = node.me, node.log
        match effect:
            case Persist(ballot):
                vote = f", vote for {ballot.voted_for}" if ballot.voted_for else ""
                self._say(f"{me}: saves term {ballot.term}{vote}")
            case Send(message):
                self.queue.append(message)
                if not quiet or not isinstance(message, (Beat, Report, Append)):
                    self._say(f"{me} -> {message.target}: {describe(message)}")
            case Replicate(whole, wanted):
                append = whole.ending(wanted)
                self.queue.append(append)
                if not quiet:
                    self._say(f"{me} -> {append.target}: {describe(append)}")
                return node.sent(append.target, append.stream, append.end)
            case AppendRecord(term, some):
                self._say(f"{me}: appends a record of term {term}, members {members_text(some)}")
                return node.record_appended(log.end, log.end + RECORD_BYTES, some, self.now)
            case Write(start, end):
                if not quiet:
                    self._say(f"{me}: writes {start}-{end}")
            case Cut(offset, generation):
                self._say(f"{me}: cuts the log to {offset}, generation {generation}")
            case Confirmed(offset):
                self._say(f"{me}: confirmed {offset}")
            case RoleChanged(role, term, leader):
                self._say(
                    f"{me}: {role.value}" + (f" of {leader}" if leader and leader != me else "") + f", term {term}"
                )
            case LeaderReady(term):
                self._say(f"{me}: ready in term {term}")
            case HoldAppends(holding):
                self._say(f"{me}: {'holds' if holding else 'lets in'} appends")
            case Seed(other):
                self._say(f"{me}: {other} needs a seed")
        return []

    def _say(self, text: str) -> None:
        self.said.append(text)

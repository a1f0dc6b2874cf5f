"""What two brokers exchange before the log flows, and the reasons to refuse a peer.

The follower sends `Hello`; the leader checks it and answers with `Welcome`, or with a `Refusal` that names both values, so that an
operator who reads either log sees what is wrong. If a secret is set, each side proves that it knows it, over the nonces of both,
before the leader reveals anything about the log.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, Final, Self

from kappamq.config.copies import MEMBER_ID
from kappamq.errors import KappaError, ProtocolError
from kappamq.protocol import address
from kappamq.replication.frames import BadStream

NONCE_BYTES: Final = 16
REFUSES: Final = "leader refuses"
"""The side of the proof for a refusal that costs the follower all its data."""
FINGERPRINT_BYTES: Final = 64
"""How many bytes of the log before the follower's end must be the same in both logs."""
_TEXT_BYTES_MAX: Final = 4 << 10  # members, delay levels
_SHORT_TEXT_BYTES_MAX: Final = 300
_SHORT_TEXTS: Final = frozenset(("address", "place", "nonce", "proof"))
_LOOKED_AT_ELSEWHERE: Final = frozenset(("who", "terms", "aside"))
"""Texts whose length is not limited here: their content is checked elsewhere, or they are a path of our own."""


class Refusal(KappaError):
    """This broker may not follow that one; the text gives the reason."""


class TooFarBehind(Refusal):
    """The follower's log ends before the leader's begins."""


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The greeting of a broker that wants to replicate: its identity, and the state of its log."""

    cluster: str
    name: str  # the name that all its copies share
    broker_id: int
    address: str  # for its clients
    segment_bytes: int
    delay_levels: str  # entries of delayed messages depend on them
    log_min: int
    end: int
    crc: int  # of the last FINGERPRINT_BYTES before `end`, or fewer in the first file
    nonce: str  # hex
    generation: int = 0
    copies_port: int = 0  # its port for other copies, at the host of `address`; 0: none

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        return cls(**known_fields(cls, values))

    def values(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """The leader's answer: the log flows from `start` on."""

    broker_id: int
    address: str
    term: int
    start: int
    end: int
    reports: str  # "flushed" or "written": report that at once, senders wait for it; "seldom": nothing waits
    proof: str = ""  # hex

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        return cls(**known_fields(cls, values))

    def values(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class MemberHello:
    """The greeting of a member of a Raft group to another one."""

    cluster: str
    name: str
    group: str
    members: str  # all of them, sorted
    member: str
    address: str  # for its clients
    segment_bytes: int
    delay_levels: str
    term: int
    end: int  # of its log
    group_id: str  # "": it does not belong to a group yet
    incarnation: int = 0  # 0: none yet; its first message shows which one it took
    broker_id: int = 0  # used while it does not lead; 0: not given
    now_ms: int = 0  # its clock; 0: not given
    hears_clocks: int = 0  # 1: it understands `nowMs` beside messages
    place: str = ""  # the address for copies
    nonce: str = ""
    proof: str = ""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        return cls(**known_fields(cls, values))

    def values(self) -> dict[str, Any]:
        return asdict(self)

    def of_incarnation(self, incarnation: int) -> Self:
        """The same greeting with this incarnation. Called for each message, and almost always unchanged."""
        return self if self.incarnation == incarnation else replace(self, incarnation=incarnation)

    @property
    def is_new(self) -> bool:
        """Whether the member has no history that founding a group could contradict."""
        return self.term == 0 and self.end == 0


def check_member(theirs: MemberHello, ours: MemberHello) -> None:
    """Check that both belong to one group. Raises Refusal, whose text is for the operators of both."""
    if (theirs.cluster, theirs.name, theirs.group) != (ours.cluster, ours.name, ours.group):
        raise Refusal(
            f"{theirs.cluster}/{theirs.name} of group {theirs.group} is no member of {ours.cluster}/{ours.name}, group {ours.group}: "
            f"brokerClusterName, brokerName and dLegerGroup must be the same on all members"
        )
    if not MEMBER_ID.fullmatch(theirs.member):
        raise Refusal("its dLegerSelfId is not one that a member can have: 1 to 64 letters, digits, _ and .")
    if theirs.is_new and ours.is_new and theirs.members != ours.members:
        raise Refusal(
            f"its members are {theirs.members}, ours {ours.members}: dLegerPeers must be the same on all members that found a group"
        )
    if theirs.member == ours.member:
        raise Refusal(f"both say that they are member {ours.member}: each needs a dLegerSelfId of its own")
    if theirs.segment_bytes != ours.segment_bytes:
        raise Refusal(
            f"its log files have {theirs.segment_bytes} bytes, ours {ours.segment_bytes}: mappedFileSizeCommitLog must be the same"
        )
    if theirs.delay_levels != ours.delay_levels:
        raise Refusal(
            f"its delay levels are {theirs.delay_levels!r}, ours {ours.delay_levels!r}: messageDelayLevel must be the same"
        )
    if theirs.group_id and ours.group_id and theirs.group_id != ours.group_id:
        raise Refusal(
            f"it belongs to another founding of group {ours.group} ({theirs.group_id}, ours {ours.group_id}): one of the data directories "
            f"is from somewhere else"
        )


def check(hello: Hello, ours: Hello) -> None:
    """Check that the broker with this greeting may follow us. Raises Refusal, whose text is for the operators of both."""
    if (hello.cluster, hello.name) != (ours.cluster, ours.name):
        raise Refusal(
            f"{hello.cluster}/{hello.name} cannot follow {ours.cluster}/{ours.name}: copies have the same cluster and broker name. Does "
            f"haMasterAddress name the wrong broker?"
        )
    if hello.broker_id == ours.broker_id:
        raise Refusal(
            f"both brokers of {ours.name} have the id {ours.broker_id}: each copy needs a brokerId of its own"
        )
    if hello.segment_bytes != ours.segment_bytes:
        raise Refusal(
            f"its log files have {hello.segment_bytes} bytes, the master's {ours.segment_bytes}: mappedFileSizeCommitLog must be the same"
        )
    if hello.delay_levels != ours.delay_levels:
        raise Refusal(
            f"its delay levels are {hello.delay_levels!r}, the master's {ours.delay_levels!r}: messageDelayLevel must be the same"
        )
    if hello.end > ours.end:
        raise Refusal(
            f"it holds the log up to {hello.end}, the master only up to {ours.end}: the master has lost messages that this copy still has. "
            f"Either make the copy the master (start it with brokerRole=ASYNC_MASTER and brokerId=0), or, to go on without these "
            f"messages, run `kappamq store cut --to {ours.end} --data DIR` on the copy while it is stopped: it keeps the bytes aside"
        )


def diverged(end: int) -> Refusal:
    return Refusal(
        f"the two logs differ before {end}: this broker has not always followed the same master. Look at which one holds what is "
        f"needed; then start the other with an empty data directory, or cut it where they still agree (`kappamq store cut`)"
    )


def whole(content: bytes) -> str:
    """Digest of a whole greeting. The proof covers it instead of the nonce alone, so that a relay cannot change anything in it."""
    return hashlib.sha256(content).hexdigest()


def caller_of(member: str) -> str:
    """The side of a proof for this member alone: no other one takes it, not even the caller itself."""
    return f"caller of {member}"


def called(member: str) -> str:
    """The side of the answer to that."""
    return f"called {member}"


def proof(secret: str, side: str, first: str, second: str) -> str:
    """Proof that one side knows the secret; it fits only these nonces and this side, so it cannot be replayed."""
    return hmac.new(secret.encode(), f"{side}:{first}:{second}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def is_proof(given: object, secret: str, side: str, first: str, second: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(
        given.encode("utf-8", "replace"), proof(secret, side, first, second).encode()
    )


def known_fields(cls: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a greeting; fields added by a later version are ignored. Raises BadStream."""
    taken: dict[str, Any] = {}
    for field in fields(cls):
        if field.name not in values:
            if field.default is MISSING:
                raise BadStream(f"a greeting without {field.name}")
            continue
        value = values[field.name]
        wanted = int if field.type == "int" else str
        if type(value) is not wanted or (isinstance(value, int) and not 0 <= value < 1 << 62):
            raise BadStream(f"a greeting whose {field.name} is {value!r:.80}")
        if isinstance(value, str) and field.name not in _LOOKED_AT_ELSEWHERE:
            _check_text(field.name, value)
        taken[field.name] = value
    return taken


def _check_text(name: str, value: str) -> None:
    """Check a text that is shown to operators and passed on to clients. Raises BadStream."""
    limit = _SHORT_TEXT_BYTES_MAX if name in _SHORT_TEXTS else _TEXT_BYTES_MAX
    try:
        size = len(value) if len(value) > limit else len(value.encode())
        if size > limit:
            raise BadStream(f"a greeting whose {name} has {size} bytes: {limit} are possible")
        if name == "address" and value:
            address.split(value)
    except (UnicodeEncodeError, ProtocolError):
        raise BadStream(f"a greeting whose {name} is {value!r:.80}") from None

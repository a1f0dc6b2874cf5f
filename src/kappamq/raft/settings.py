"""The numbers of the core. Times are liveness time, in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RaftSettings:
    beat_ms: int = 100  # shorter: a lost message matters less; each beat costs two messages a peer
    election_min_ms: int = 500  # a member that heard a leader this recently elects no other; shorter: stalls depose it
    election_max_ms: int = 1000  # the timeout is drawn between the two each time; closer together: more split votes
    late_ms: int = 250  # a longer pause between two calls is our own, and says nothing about the others
    window_bytes: int = 8 * MIB  # sent to a peer and not on its disk yet; smaller: a slow link is not used in full
    append_bytes_max: int = 1 * MIB  # per message; larger: beats wait longer behind it
    caught_up_bytes: int = 256 * KIB  # a learner that lags by at most this may become a voter

    def __post_init__(self) -> None:
        if not 0 < 2 * self.beat_ms <= self.election_min_ms <= self.election_max_ms:
            raise ValueError(
                f"two beats of {self.beat_ms=} must fit into {self.election_min_ms=} <= {self.election_max_ms=}"
            )
        # If `tick` is called too rarely, the node never notices silence.
        if not self.beat_ms <= self.late_ms <= self.election_min_ms:
            raise ValueError(f"{self.late_ms=} must lie between {self.beat_ms=} and {self.election_min_ms=}")
        if not 0 < self.append_bytes_max <= self.window_bytes or self.caught_up_bytes < 0:
            raise ValueError(
                f"{self.append_bytes_max=} must fit into {self.window_bytes=}, and {self.caught_up_bytes=} be >= 0"
            )

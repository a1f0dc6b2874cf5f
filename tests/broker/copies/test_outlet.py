from __future__ import annotations

from kappamq.broker.copies.outlet import Outlet


class Heard:
    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []

    def written(self, start: int, data: bytes) -> None:
        self.pieces.append((start, data))


def test_every_follower_gets_what_was_written() -> None:
    outlet = Outlet()
    outlet.written(0, b"nobody is there")
    first, second = Heard(), Heard()
    outlet.followers += [first, second]
    outlet.written(15, b"both")
    outlet.followers.remove(first)
    outlet.written(19, b"one")
    assert first.pieces == [(15, b"both")]
    assert second.pieces == [(15, b"both"), (19, b"one")]

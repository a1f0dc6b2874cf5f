import asyncio

from kappamq.sim.brokers.loop import Loop
from kappamq.sim.brokers.settings import Faults
from kappamq.sim.brokers.streams import Listener, Streams
from kappamq.sim.world import World


class Hears(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = b""
        self.lost: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)


class Pair:
    """Two processes and a connection between them."""

    def __init__(self) -> None:
        self.world = World(1)
        self.streams = Streams(self.world, Faults(delay_ms=10))
        self.near, self.far = self._loop("a"), self._loop("b")
        self.said, self.heard = Hears(), Hears()
        self.refused: list[str] = []

    def _loop(self, host: str) -> Loop:
        return Loop(self.world, self.streams, host, lambda: None)  # type: ignore[abstract]

    def connect(self, listen: bool = True) -> None:
        async def serve() -> None:
            await self.far.create_server(lambda: self.heard, sock=Listener(self.streams, self.far, "b", 5))

        async def call() -> None:
            try:
                self.transport, _protocol = await self.near.create_connection(lambda: self.said, "b", 5)
            except ConnectionRefusedError:
                self.refused.append("refused")

        if listen:
            self.far.create_task(serve())
        self.world.run_until(1)
        self.near.create_task(call())
        self.world.run_until(100)

    def wait(self, ms: float) -> None:
        self.world.run_until(self.world.now + ms)


def test_bytes_arrive_late_and_in_order() -> None:
    pair = Pair()
    pair.connect()
    for number in range(50):
        pair.transport.write(b"%d," % number)
    assert pair.heard.data == b""
    pair.wait(100)
    assert pair.heard.data == b"".join(b"%d," % number for number in range(50))
    assert pair.transport.getpeername() == ("b", 5)


def test_a_cut_link_holds_what_is_sent_until_it_heals() -> None:
    pair = Pair()
    pair.connect()
    pair.streams.cut.add(("a", "b"))
    pair.transport.write(b"late")
    pair.wait(5_000)
    assert pair.heard.data == b""
    pair.streams.cut.clear()
    pair.wait(500)
    assert pair.heard.data == b"late"


def test_who_listens_no_more_refuses_and_who_is_cut_off_does_not_answer() -> None:
    pair = Pair()
    pair.connect(listen=False)
    assert pair.refused == ["refused"]
    pair.streams.cut.add(("b", "a"))
    pair.connect()
    assert not hasattr(pair, "transport")
    pair.streams.cut.clear()
    pair.wait(500)
    assert pair.transport.is_reading()


def test_an_end_is_told_and_a_dead_process_resets() -> None:
    pair = Pair()
    pair.connect()
    pair.transport.write(b"bye")
    pair.transport.close()
    pair.wait(100)
    assert (pair.heard.data, pair.heard.lost, pair.said.lost) == (b"bye", [None], [None])

    pair = Pair()
    pair.connect()
    pair.far.kill()
    pair.transport.write(b"is anybody there?")
    pair.wait(100)
    assert isinstance(pair.said.lost[0], ConnectionResetError)


def test_a_paused_reader_gets_it_later() -> None:
    pair = Pair()
    pair.connect()
    (far,) = pair.far.sides
    far.pause_reading()
    pair.transport.write(b"x")
    pair.wait(100)
    assert pair.heard.data == b""
    far.resume_reading()
    pair.wait(1)
    assert pair.heard.data == b"x"


def test_a_connection_that_was_lost_before_it_was_taken_is_told_so() -> None:
    pair = Pair()
    pair.connect()
    pair.world.run_until(100)
    pair.transport._gone(None)
    late = Hears()
    pair.transport.begin(late)
    pair.world.run_until(200)
    assert len(late.lost) == 1

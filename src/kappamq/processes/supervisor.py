"""Starts the brokers of a shape, keeps them running, and stops them in order.

When a broker ends, its last lines are logged and it is started again on its ports, after a pause that doubles up to a limit while it
keeps ending, and is short again once it has run for a while. Only the name server runs in this process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kappamq.clock import Clock, SystemClock
from kappamq.config import properties as java
from kappamq.config.apache import BrokerSettings, Findings, broker_settings
from kappamq.config.nameserver import NameServerConfig
from kappamq.errors import ConfigError, KappaError, StoreError
from kappamq.nameserver.nameserver import NameServer
from kappamq.net.channel import Channel
from kappamq.net.tls import outgoing_context
from kappamq.ports import BROKER_PORT, BROKER_PORT_OFFSETS, NAMESERVER_PORT, choose_ports, reachable, start_on_port
from kappamq.processes import plan
from kappamq.processes.child import Child, object_of
from kappamq.processes.folders import FOLDER, check_several, check_shape, left_out
from kappamq.processes.plan import MASTER, MEMBER, Place, Shape
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.headers.admin import GetBrokerRuntimeInfo

READY_S_MAX = 600.0  # a broker that recovers a large store takes its time
SLAVES_S_MAX = 30.0  # for slaves to find their masters
ASK_S_MAX = 5.0
MASTER_S_MAX = 60.0  # for a Raft group to elect its first master
STOP_S_MAX = 30.0
PAUSE_S, PAUSE_S_MAX = 0.5, 30.0
STEADY_S = 60.0  # a broker that has run for this long starts with a short pause again
_STARTS_MAX = 5
_POLL_S = 0.02
_HEAD = (
    "# Written by `kappamq up` at each start: what is changed here is lost. This broker alone: kappamq broker -c FILE\n"
)


@dataclass(frozen=True, slots=True)
class Row:
    """What is reported about one broker when all are ready."""

    name: str
    id: int
    address: str
    pid: int
    role: str
    member: str | None  # its name in its Raft group


class Supervisor:
    """Start it once, stop it once."""

    def __init__(
        self,
        root: Path,
        shape: Shape,
        settings: BrokerSettings,
        given: Mapping[str, str],
        *,
        findings: Findings | None = None,
        nameserver_port: int | None = None,
        broker_port: int | None = None,
        tell: Callable[[str], None] = lambda text: None,
        verbose: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.root, self.shape, self.settings = root, shape, settings
        self.findings = findings or Findings()
        self._given = dict(given)
        self.nameserver_port, self.broker_port = nameserver_port, broker_port  # as requested: None, 0 or a number
        self._tell, self._verbose, self._clock = tell, verbose, clock or SystemClock()
        self._places = plan.places(shape, self._given.get("brokerName", plan.BASE_NAME))
        self._started = self._places  # all but those that their groups have removed
        self.ports: dict[Place, int] = {}
        self._children: dict[Place, Child] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._nameserver: NameServer | None = None

    @classmethod
    def at(
        cls,
        root: Path,
        shape: Shape,
        given: Mapping[str, str],
        *,
        host: str = "127.0.0.1",
        nameserver_port: int | None = None,
        broker_port: int | None = None,
        tell: Callable[[str], None] = lambda text: None,
        verbose: bool = False,
    ) -> Supervisor:
        """Check everything that can be checked without starting. `given` as in broker.conf. Raises ConfigError, StoreError."""
        plan.check_given(shape, given)
        settings, findings = broker_settings(given, defaults={"store": {"root": root}, "broker": {"listen_host": host}})
        if settings.broker.advertise is not None and settings.broker.advertise.rpartition(":")[2].isdecimal():
            raise ConfigError(
                f"brokerIP1 (--advertise) must be a host without a port, as each broker has its own; got {settings.broker.advertise}"
            )
        check_several(root)
        check_shape(root, shape)
        return cls(
            root,
            shape,
            settings,
            given,
            findings=findings,
            nameserver_port=nameserver_port,
            broker_port=broker_port,
            tell=tell,
            verbose=verbose,
        )

    # -- starting and stopping ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Return when all brokers are ready. Raises the kind of error that kept a broker from starting."""
        self._leave_out()
        try:
            await self._start_nameserver()
            await self._start_brokers()
            await self._await_masters()
            await self._await_slaves()
        except BaseException:
            await self.stop()
            raise
        self._keepers = [asyncio.ensure_future(self._keep(place)) for place in self._started]

    async def stop(self) -> None:
        """Stop slaves first, then masters, then the name server, so that each can unregister from the next. May be called twice."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers = []
        for together in plan.stop_order(list(self._children), self._masters()):
            await asyncio.gather(*(self._stop_one(place) for place in together))
        nameserver, self._nameserver = self._nameserver, None
        if nameserver is not None:
            await nameserver.stop()

    def _leave_out(self) -> None:
        """Leave out members that a group has removed: the others would ignore them."""
        without = left_out(self.root, self._places)
        self._started = [place for place in self._places if place not in without]
        for place in without:
            if (self.root / FOLDER / place.folder).exists():
                self._tell(
                    f"{place.label} is not started: it was removed from its group; `kappamq member add` takes it in again"
                )

    async def _stop_one(self, place: Place) -> None:
        child = self._children.pop(place)
        if not await child.stop(STOP_S_MAX):
            self._tell(f"{place.label} (process {child.pid}) did not stop within {STOP_S_MAX:g} s and was killed")

    async def _start_nameserver(self) -> None:
        async def start(port: int) -> NameServer:
            server = NameServer(
                NameServerConfig(listen_host=host, root=self.root / "namesrv", port=port),
                self._clock,
                net=self.settings.net,
            )
            await server.start()
            return server

        host = self.settings.broker.listen_host
        self._nameserver = await start_on_port("name server", host, self.nameserver_port, NAMESERVER_PORT, (0,), start)

    async def _start_brokers(self) -> None:
        for attempt in range(_STARTS_MAX):
            host = self.settings.broker.listen_host
            numbers = choose_ports(
                "broker", host, self.broker_port, BROKER_PORT, BROKER_PORT_OFFSETS, len(self._places)
            )
            self.ports = dict(zip(self._places, numbers, strict=True))
            try:
                await self._start_all()
                return
            except ConfigError as error:
                # Another process took a port after it was found free and before it was bound.
                if self.broker_port or "in use" not in str(error) or attempt == _STARTS_MAX - 1:
                    raise
                await asyncio.gather(*(self._stop_one(place) for place in list(self._children)))

    async def _start_all(self) -> None:
        """Start brokers in parallel. Raises the first failure; stopping the others is left to the caller."""
        tasks = [asyncio.ensure_future(self._launch(place)) for place in self._started]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _launch(self, place: Place) -> Child:
        """Start a broker and wait until it is ready."""
        config = self._write_config(place)
        command = [sys.executable, "-m", "kappamq", "broker", "--json", "--stop-at-eof", "-c", str(config)]
        command += ["-n", ";".join((self.nameserver, *self.settings.broker.nameservers))]
        child = await Child.start(
            place.label, command + ["--verbose"] * self._verbose, lambda line: self._hear(place, line)
        )
        self._children[place] = child
        await child.ready(READY_S_MAX)
        return child

    def _write_config(self, place: Place) -> Path:
        host = self.settings.broker.listen_host
        own = plan.properties(place, self.shape, self.ports, reachable(f"{host}:0").rpartition(":")[0], self._given)
        own |= {
            "bindAddress": host,
            "storePathRootDir": str(self.root / FOLDER / place.folder),
            "namesrvAddr": ";".join((self.nameserver, *self.settings.broker.nameservers)),
        }
        if self.settings.net.tls_mode == "enforcing":
            own["tls.enable"] = "true"  # otherwise it could not talk to the name server
        path = self.root / FOLDER / f"{place.folder}.conf"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # It may hold a secret, which others would also see in a command line.
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(_HEAD + java.render(own))
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
        return path

    async def _await_masters(self) -> None:
        """Wait until the name server knows a master of each name; a Raft group has to elect it."""
        deadline = self._clock.liveness() + MASTER_S_MAX
        names = {place.name for place in self._started if place.role == MEMBER}
        while missing := sorted(names - {place.name for place in self._masters()}):
            if self._clock.liveness() > deadline:
                raise KappaError(f"{', '.join(missing)}: no master was elected within {MASTER_S_MAX:g} s; see the log")
            ended = next((child for child in self._children.values() if not child.running), None)
            if ended is not None:
                raise KappaError(
                    f"{ended.label} {ended.how_it_ended()} before a master was elected:{ended.last_words()}"
                )
            await asyncio.sleep(_POLL_S)

    async def _await_slaves(self) -> None:
        """Wait until slaves follow their masters, so that a first send to a synchronous master finds them there."""
        deadline = self._clock.liveness() + SLAVES_S_MAX
        for place in self._places if self.shape.slaves else ():
            while place.role == MASTER and (missing := await self._missing_slaves(place)):
                if self._clock.liveness() > deadline:
                    self._tell(f"{place.label}: {missing}; see the log of the slaves")
                    break
                await asyncio.sleep(_POLL_S)

    async def _missing_slaves(self, master: Place) -> str:
        """Return what a master lacks, in words; empty if nothing."""
        net = self.settings.net
        tls = outgoing_context(replace(net, tls_outgoing=True)) if net.tls_mode == "enforcing" else None
        try:
            channel = await Channel.connect(self._address(master), timeout=ASK_S_MAX, tls=tls)
            try:
                answer = await channel.request(GetBrokerRuntimeInfo(), timeout=ASK_S_MAX)
            finally:
                channel.close()
        except KappaError as error:
            return str(error)
        about = KVTable.decode(answer.body).table if answer.code == 0 else {}
        following = int(about.get("kappamqFollowers", "0"))
        if following < self.shape.slaves:
            return f"{following} of {self.shape.slaves} slaves follow it"
        missing = about.get("kappamqCopiesMissing", "nothing")
        return "" if missing == "nothing" else missing

    def _address(self, place: Place) -> str:
        host, port = self.settings.broker.listen_host, self.ports[place]
        return reachable(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    # -- keeping them running ----------------------------------------------------------------------------------------------

    async def _keep(self, place: Place) -> None:
        child: Child | None = self._children[place]
        since, pause = self._clock.liveness(), PAUSE_S
        while True:
            if child is not None:
                await child.ended()
                if self._clock.liveness() - since >= STEADY_S:
                    pause = PAUSE_S
                self._tell(
                    f"{place.label} {child.how_it_ended()}; it is started again in {pause:g} s. Its last lines:{child.last_words()}"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_S_MAX)
            since = self._clock.liveness()
            try:
                child = await self._launch(place)
                self._tell(f"{place.label} is running again (process {child.pid})")
            except (KappaError, OSError) as error:
                failed = self._children.get(place)
                if failed is not None and not failed.running:
                    child = failed  # the loop logs how it ended
                else:
                    if failed is not None:
                        await failed.stop(STOP_S_MAX)
                    self._tell(f"{place.label} could not be started again, which is tried in {pause:g} s: {error}")
                    child = None

    def _hear(self, place: Place, line: str) -> None:
        """Pass on a line of a broker's log, unless it is a warning that we have already logged for all of them."""
        found = object_of(line)
        if "warning" in found:
            if found["warning"] not in self.findings.lines():
                self._tell(f"{place.label}: {found['warning']}")
        elif "error" not in found:  # the reason is logged with its end
            print(f"[{place.label}] {line}", file=sys.stderr, flush=True)

    # -- what is running ---------------------------------------------------------------------------------------------------

    @property
    def nameserver(self) -> str:
        if self._nameserver is None:
            raise KappaError("the name server is not running: call start() first")
        return reachable(self._nameserver.address)

    def rows(self) -> list[Row]:
        masters = self._masters()
        found = []
        for place, child in self._children.items():
            role = ("leader" if place in masters else "follower") if place.role == MEMBER else place.role
            number = self._registered_id(place)
            found.append(
                Row(
                    place.name,
                    place.number if number is None else number,
                    self._address(place),
                    child.pid,
                    role,
                    place.member if place.role == MEMBER else None,
                )
            )
        return sorted(found, key=lambda row: (row.name, row.id, row.address))

    def _masters(self) -> set[Place]:
        return {
            place
            for place in self._children
            if place.role == MASTER or (place.role == MEMBER and self._registered_id(place) == 0)
        }

    def _registered_id(self, place: Place) -> int | None:
        """Return the id under which the name server knows a broker; by its port, as all of them are on this machine."""
        if self._nameserver is None:
            return None
        group = self._nameserver.service.routes.cluster_info().brokers.get(place.name)
        for number, address in group.addresses.items() if group is not None else ():
            if address.rpartition(":")[2] == str(self.ports[place]):
                return number
        return None

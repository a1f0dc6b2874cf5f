"""The parts that a broker needs before it serves clients: settings, the open store, the log writer, tables, address."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Self

from kappamq.broker.clients.registry import Clients
from kappamq.broker.copies.node_role import NodeRole
from kappamq.broker.copies.outlet import Outlet
from kappamq.broker.copies.seeding.asking import Seeding
from kappamq.broker.delivery.tables import DeliveryTables
from kappamq.broker.machine import KernelCopies, Machine, new_kernel
from kappamq.broker.naming.address import Address
from kappamq.broker.naming.ports import bind_free_ports, close_all
from kappamq.broker.naming.registration import Registration
from kappamq.broker.pulling.parked import ParkedPulls
from kappamq.broker.requests.table import REQUEST_SIZES
from kappamq.broker.sending.gate import NOT_MASTER, Gate, not_master
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.broker.tables import Tables
from kappamq.broker.upkeep.jobs import Jobs
from kappamq.broker.upkeep.next_file import NextLogFile
from kappamq.broker.upkeep.workers import Workers
from kappamq.clock import WatchedClock
from kappamq.config.apache import BrokerSettings
from kappamq.config.broker import BrokerConfig
from kappamq.config.copies import CopiesConfig
from kappamq.config.net import NetConfig
from kappamq.config.store import StoreConfig
from kappamq.events import Events
from kappamq.native.interface import KernelModule
from kappamq.net.requests.reader import RequestReader
from kappamq.net.tls import outgoing_context
from kappamq.state.metadata import Metadata
from kappamq.store.files import Files
from kappamq.store.message_store import MessageStore
from kappamq.store.recovery import Recovered
from kappamq.store.snapshots import Snapshots

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setup:
    """The input of a broker. It owns the settings: those changed at run time are written into them."""

    config: BrokerConfig
    store: StoreConfig
    net: NetConfig
    copies: CopiesConfig
    clock: WatchedClock
    files: Files
    machine: Machine
    kernel_module: KernelModule


class Foundation:
    """Process-long. `build` opens the store and loads the tables; `stops` collects everything that must be stopped if a later step
    fails."""

    def __init__(
        self,
        setup: Setup,
        reader: RequestReader,
        seeding: Seeding,
        begin_at: int,
        listeners: list[socket.socket],
        stops: AsyncExitStack,
    ) -> None:
        """Opens the store; `begin_at`: where one without a log begins. `listeners`: of any free ports, if no port was given. Raises
        StoreError."""
        self.setup, self.reader, self.seeding, self.listeners, self.stops = setup, reader, seeding, listeners, stops
        self.config, self.clock = setup.config, setup.clock
        config, net, copies, clock = setup.config, setup.net, setup.copies, setup.clock
        self.port = config.port or int(listeners[0].getsockname()[1])
        self.copies_port = copies.port_beside(self.port)
        self.tls: ssl.SSLContext | None = outgoing_context(net)  # for connections to other servers
        self.events = events = Events()
        self.jobs = Jobs()
        self.run = self.jobs.run
        # The store, and what the kernel calls when there is something new in it.
        self.kernel = new_kernel(setup.kernel_module, config, setup.store, net)
        self.kernel_copies = KernelCopies(self.kernel, setup.store)
        self.parked = ParkedPulls(
            self.kernel, reader.turns, self.run, config.parked_pulls_max, net.connection_inflight_max
        )
        self.outlet = Outlet()
        self.store = store = MessageStore(
            setup.store,
            setup.kernel_module,
            self.kernel,
            setup.files,
            self.parked.grown,
            self.outlet.written,
            self.outlet.flushed,
        )
        self.boot_id = setup.machine.boot_id()
        self.recovered = self._open_store(begin_at)
        stops.callback(store.close)
        # The log writer: everything stored goes through it.
        self.workers = Workers()
        stops.callback(self.workers.stop)
        self.gate = Gate(self.kernel)
        self.node_role = NodeRole(
            config.broker_id or copies.member_id if copies.group is not None else config.broker_id
        )
        if not self.node_role.is_master:  # from the first moment: loading the tables changes nothing either
            self.gate.close(NOT_MASTER, not_master(), for_all=True)
        self.next_file = NextLogFile(store.log, self.gate, clock, events, setup.machine.new_thread("kappamq-next"))
        self.writer = LogWriter(store, self.gate, clock, net.inflight_bytes_max, self.next_file.finish)
        # The tables, which are computed from the log.
        snapshots = Snapshots(setup.store.root / "config", store.files)
        self.metadata = Metadata(store, snapshots, clock, bytes(8), self.writer)
        self.clients = Clients(config, events)
        settings = BrokerSettings(broker=config, store=setup.store, net=net, copies=copies)
        self.tables = Tables(settings, store, self.kernel, self.metadata, self.clients, events)
        self.delivery_tables = DeliveryTables(config, self.metadata, clock)
        for table in self.delivery_tables.all():
            self.metadata.add(table)
        # Where this broker can be reached.
        self.address_of = Address(config.advertise, self.port, config.listen_host, self.kernel_copies.set_host)
        self.registration = Registration(
            config,
            self.tables.topics,
            self.address_of,
            self.copies_port,
            self.workers.compute,
            self.tls,
            self.node_role,
            events,
        )
        stops.push_async_callback(self.registration.stop)

    @classmethod
    async def build(cls, setup: Setup, stops: AsyncExitStack) -> Self:
        """Raises StoreError."""
        config, copies = setup.config, setup.copies
        reader = RequestReader(REQUEST_SIZES, setup.net)
        stops.callback(reader.stop)
        seeding = Seeding(copies, config, setup.store, setup.files, setup.kernel_module)
        begin_at = await seeding.before_open()
        # A given port is not bound before everything is ready: clients that know it connect at once.
        listeners = (
            [] if config.port else bind_free_ports(config.listen_host, setup.net.listen_backlog, copies.port_given)
        )
        stops.callback(close_all, listeners)
        made = cls(setup, reader, seeding, begin_at, listeners, stops)
        # Records contain our address, also those that loading stores, so it must be known first.
        await made.registration.learn_address()
        for note in (*made.recovered.notes, *made.load_tables()):
            log.warning("%s", note)
        return made

    def _open_store(self, begin_at: int) -> Recovered:
        began = time.perf_counter()
        # Unconfirmed messages of a Raft group stay invisible, also after a restart.
        known = None if self.setup.copies.group is None else 0
        found = self.store.open(self.boot_id, enter_up_to=known, begin_at=begin_at)
        # After a crash this is of interest to the operator; else log it at debug level.
        level = logging.INFO if found.clean and not found.rebuilt and not found.damage else logging.WARNING
        log.log(level, "%s", found.story(time.perf_counter() - began))
        return found

    def load_tables(self) -> list[str]:
        """Bring every table to the state at the log's end; returns remarks for the operator. Raises StoreError."""
        filling = self.seeding.is_pending
        fit = self.tables.fit if self.setup.copies.group is None else self.tables.fit_member
        return self.metadata.load(self.tables.fit_filling if filling else fit, filling=filling)

    def bind_ports(self) -> list[socket.socket]:
        """The ports that were given. Raises ConfigError if one is taken."""
        setup = self.setup
        return setup.machine.bind_ports(
            self.config.listen_host, self.port, setup.net.listen_backlog, setup.copies.port_given
        )

    @property
    def address(self) -> str:
        return self.address_of.of(None)

    def is_without_role(self) -> bool:
        """Whether this node may not write now."""
        return self.gate.has(NOT_MASTER)

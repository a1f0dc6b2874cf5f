"""`nameserver` and `broker`: the servers, which run until they are stopped, and what they share with `up`."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappamq.cli.shared.cluster import DEFAULT_NAMESERVER
from kappamq.cli.shared.exits import Exit
from kappamq.cli.shared.options import (
    DataOption,
    OutputOption,
    SetOption,
    VerboseOption,
    data_directory,
    properties,
    spoken,
)
from kappamq.cli.shared.output import Format, Output
from kappamq.interrupts import SAME_SIGNAL_S

if TYPE_CHECKING:
    from kappamq.config.apache import BrokerSettings, Findings

LOOPBACK = "127.0.0.1"
PortOption = Annotated[int | None, typer.Option(min=0, max=65_534, show_default=False)]
AdvertiseOption = Annotated[
    str | None,
    typer.Option("--advertise", help="The host (or host:port) that clients connect to.", show_default=False),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="A property file with RocketMQ's names.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as -o json: one line when ready.")]


@spoken
def nameserver(
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="0: any free one.")] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", help="Default: 0.0.0.0, all addresses.", show_default=False)
    ] = None,
    data: DataOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
    output: OutputOption = Format.TEXT,
    verbose: VerboseOption = False,
) -> None:
    """Start a name server."""
    out = Output(Format.JSON if json else output)
    prepare_process(verbose)
    from kappamq.clock import SystemClock
    from kappamq.config import apache
    from kappamq.nameserver.nameserver import NameServer
    from kappamq.ports import NAMESERVER_PORT, choose_port, reachable

    given = {**(apache.read_file(config) if config is not None else {}), **properties(set_)}
    flags = {"port": port, "listen_host": listen}
    settings, findings = apache.nameserver_settings(
        given,
        defaults={"nameserver": {"root": data_directory(data) / "namesrv", "port": NAMESERVER_PORT}},
        overrides={"nameserver": {name: value for name, value in flags.items() if value is not None}},
    )
    tell_findings(out, findings)
    choose_port("name server", settings.nameserver.listen_host, settings.nameserver.port, NAMESERVER_PORT, (0,))
    server = NameServer(settings.nameserver, SystemClock(), net=settings.net)

    def ready(seconds: float) -> None:
        address = reachable(server.address)
        out.line(
            f"[bold green]name server is ready[/] in {seconds:.2f} s on [bold]{address}[/]",
            nameserver=address,
            data=str(settings.nameserver.root),
        )

    run_server(server.start, server.stop, ready, out)


@spoken
def broker(
    config: ConfigOption = None,
    nameserver: Annotated[
        str | None,
        typer.Option(
            "--nameserver",
            "-n",
            envvar=["KAPPAMQ_NAMESERVER", "NAMESRV_ADDR"],
            help=f"Where to register; several separated by ;, or none. Default: {DEFAULT_NAMESERVER}.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_534, help="Port-2 is used as well; 0: any free pair. Default: 10911.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Default: this machine's name.", show_default=False)] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", help="Default: 0.0.0.0, all addresses.", show_default=False)
    ] = None,
    advertise: AdvertiseOption = None,
    data: DataOption = None,
    set_: SetOption = None,
    stop_at_eof: Annotated[
        bool, typer.Option("--stop-at-eof", help="Stop when standard input ends: for a program that starts brokers.")
    ] = False,
    strict: Annotated[bool, typer.Option(help="Unknown properties in the file are an error.")] = False,
    json: JsonOption = False,
    output: OutputOption = Format.TEXT,
    verbose: VerboseOption = False,
) -> None:
    """Start a broker; `-c broker.conf` accepts RocketMQ's property names."""
    out = Output(Format.JSON if json else output)
    prepare_process(verbose)
    from kappamq.clock import SystemClock
    from kappamq.config import apache
    from kappamq.config.client import split_addresses
    from kappamq.errors import ConfigError
    from kappamq.ports import BROKER_PORT, BROKER_PORT_OFFSETS, reachable, start_on_port

    given = {**(apache.read_file(config) if config is not None else {}), **properties(set_)}
    flags: dict[str, Any] = {"port": port, "name": name, "listen_host": listen, "advertise": advertise}
    if nameserver is not None:
        flags["nameservers"] = () if nameserver == "none" else split_addresses(nameserver)
    overrides: dict[str, dict[str, Any]] = {"broker": {key: value for key, value in flags.items() if value is not None}}
    if data is not None:
        overrides["store"] = {"root": data_directory(data)}
        given.pop("storePathRootDir", None)
    settings, findings = apache.broker_settings(
        given,
        defaults={"store": {"root": data_directory(None)}, "broker": {"nameservers": (DEFAULT_NAMESERVER,)}},
        overrides=overrides,
    )
    if strict and findings.unknown:
        raise ConfigError(f"unknown properties: {', '.join(findings.unknown)}")
    tell_findings(out, findings)
    host = settings.broker.listen_host

    from kappamq.broker.broker import Broker

    started: list[Broker] = []

    async def start_on(port: int) -> None:
        chosen = settings.replace({"broker": {"port": port}})
        server = await Broker.open(chosen.broker, chosen.store, chosen.net, SystemClock(), copies=chosen.copies)
        await server.start()
        started.append(server)

    async def start() -> None:
        await start_on_port("broker", host, settings.broker.port, BROKER_PORT, BROKER_PORT_OFFSETS, start_on)

    async def stop() -> None:
        for server in started:
            await server.stop()

    async def unfit() -> Exception:
        return await started[0].unfit()

    def ready(seconds: float) -> None:
        address = reachable(f"{host}:{started[0].port}")
        registered = list(settings.broker.nameservers)
        out.line(
            f"[bold green]broker is ready[/] in {seconds:.2f} s on [bold]{address}[/]  {about(settings)}\n"
            f"  name servers  {', '.join(registered) or 'none: only clients that know the address can find it'}\n"
            f"  data          {settings.store.root}",
            broker=address,
            name=settings.broker.name,
            nameservers=registered,
            data=str(settings.store.root),
        )

    run_server(start, stop, ready, out, until_eof=stop_at_eof, failed=unfit)


# --- shared with `up` -------------------------------------------------------------------------------------------------


def version() -> str:
    from kappamq import __version__

    return __version__


def about(settings: BrokerSettings) -> str:
    kind = "native kernel" if kernel_is_native() else "pure-Python twin: no compiled kernel"
    return f"{settings.broker.name}, cluster {settings.broker.cluster}, {settings.store.flush} flush, {kind}"


def kernel_is_native() -> bool:
    from kappamq import native

    return native.load().NAME == "native"


def tell_findings(out: Output, findings: Findings) -> None:
    for line in findings.lines():
        out.warn(line)


def prepare_process(verbose: bool) -> None:
    """Log to standard error, and raise the limit of file descriptors as far as the system allows.

    Ctrl-C ends the process at once until the event loop handles signals: the modules of a server take a while to load.
    """
    import logging
    import resource

    from kappamq import interrupts
    from kappamq.cli.shared.logs import OneLine

    interrupts.end_at_once()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            logging.getLogger(__name__).warning("the limit of open files is %d; raise it with `ulimit -n`", soft)


def process_seconds() -> float:
    """Return the seconds since this process started, including imports: what a user has waited."""
    import os
    import time

    try:
        # Field 22 counts clock ticks since boot; the name in field 2 may contain blanks and brackets.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()


def give_memory_back() -> None:
    """Make glibc return large blocks to the system. Under load they are allocated and freed every second, and glibc would
    adapt and keep them in a heap that never shrinks.

    Some megabytes at the heap's end are kept: told of the one limit, glibc no longer adapts the other, and would give back and take again
    the pages of each request of 128 KiB or more. That was a sixth of what a chunk of a batch transaction costs."""
    import ctypes

    trim_threshold, mmap_threshold, megabyte = -1, -3, 1 << 20
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has and needs it
    if mallopt is not None:
        mallopt(mmap_threshold, megabyte)
        mallopt(trim_threshold, 8 * megabyte)


def is_pipe(fd: int) -> bool:
    import os
    import stat

    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)  # uvloop connects children with sockets


def run_server(
    start: Callable[[], Awaitable[object]],
    stop: Callable[[], Awaitable[object]],
    ready: Callable[[float], None],
    out: Output,
    *,
    until_eof: bool = False,
    failed: Callable[[], Awaitable[Exception]] | None = None,
) -> None:
    """Start, report that, wait for SIGINT or SIGTERM, stop. A second signal ends the process at once, unless it comes within a
    second: `timeout` sends one to the process and one to its group, and means one.

    `until_eof`: the end of standard input, a pipe, is another reason to stop, so the death of the process at the other end is noticed.

    `failed`: asked once it is ready; returns the reason when the server cannot go on. It is stopped then, and the error raised.

    Ctrl-C before it was ready is an interruption (exit code 130), SIGTERM is not: it is the normal way to stop a service.
    """
    import asyncio
    import os
    import signal
    import time

    from kappamq.errors import ConfigError
    from kappamq.event_loop import run, spare_garbage_collections
    from kappamq.scheduling import run_before_own_workers

    if until_eof and not is_pipe(sys.stdin.fileno()):
        raise ConfigError(
            "--stop-at-eof needs a pipe as standard input, whose other end the program that starts it holds"
        )
    give_memory_back()
    run_before_own_workers()

    async def main() -> int:
        loop = asyncio.get_running_loop()
        told = asyncio.Event()
        code = Exit.OK
        first_s: float | None = None  # when the first signal came
        signals = signal.SIGINT, signal.SIGTERM

        def signalled(number: int) -> None:
            nonlocal code, first_s
            now_s = time.monotonic()
            if first_s is not None:
                if now_s - first_s >= SAME_SIGNAL_S:
                    os._exit(Exit.INTERRUPTED)
                return
            first_s = now_s
            if not starting.done() and number == signal.SIGINT:
                code = Exit.INTERRUPTED
            told.set()

        def readable() -> None:
            if not os.read(sys.stdin.fileno(), 1 << 16):
                loop.remove_reader(sys.stdin.fileno())
                told.set()  # not `signalled`: SIGTERM may have come long before, and the two must not count as a second signal

        async def end() -> None:
            """Stop. A signal that comes after that finds nothing to end, and must not change the exit code."""
            await stop()
            for number in signals:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)

        for number in signals:
            loop.add_signal_handler(number, signalled, number)
        if until_eof:
            loop.add_reader(sys.stdin.fileno(), readable)
        starting = asyncio.ensure_future(start())
        waiting = asyncio.ensure_future(told.wait())
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
        try:
            await starting
        except asyncio.CancelledError:
            waiting.cancel()
            out.warn("stopped before it was ready")
            await end()
            return code
        except BaseException:
            waiting.cancel()
            raise
        spare_garbage_collections()  # takes some 25 ms: do it before clients connect
        ready(process_seconds())
        failing = asyncio.ensure_future(failed()) if failed is not None else None
        await asyncio.wait(
            {waiting, failing} if failing is not None else {waiting}, return_when=asyncio.FIRST_COMPLETED
        )
        if failing is not None and failing.done():
            waiting.cancel()
            await end()
            raise failing.result()
        if failing is not None:
            failing.cancel()
        out.note("stopping ...")
        await end()
        return Exit.OK

    code = run(main())
    if code:
        raise typer.Exit(code)

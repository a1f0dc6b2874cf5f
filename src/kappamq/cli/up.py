"""`kappamq up`: a name server, and one broker in the same process or several in their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from kappamq.cli.serve import (
    LOOPBACK,
    AdvertiseOption,
    ConfigOption,
    JsonOption,
    about,
    prepare_process,
    run_server,
    tell_findings,
    version,
)
from kappamq.cli.shared.cluster import DEFAULT_NAMESERVER
from kappamq.cli.shared.options import (
    DataOption,
    ListenOption,
    OutputOption,
    SetOption,
    VerboseOption,
    data_directory,
    properties,
    spoken,
)
from kappamq.cli.shared.output import Format, Output, counted
from kappamq.cli.shared.usage import wrong


@spoken
def up(
    data: DataOption = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=16,
            help="How many brokers to start, each in its own process, to use more cores.",
            show_default=False,
        ),
    ] = None,
    slaves: Annotated[
        int,
        typer.Option(
            min=0,
            max=4,
            help="How many slaves each broker has. A send is acknowledged once one of them has the message, too.",
        ),
    ] = 0,
    asynchronous: Annotated[
        bool, typer.Option("--async", help="Answer a send without waiting for the slaves.")
    ] = False,
    raft: Annotated[
        int | None,
        typer.Option(
            help="Make each broker a Raft group of 3 or 5 members, which elects its own master.", show_default=False
        ),
    ] = None,
    nameserver_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="0: any free one. Default: 9876, or a free one.", show_default=False),
    ] = None,
    broker_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_534,
            help="Port-2 and port+1 are used as well; of several brokers the first one's, the next is 10 higher; 0: any free ones. "
            "Default: 10911, or free ones.",
            show_default=False,
        ),
    ] = None,
    listen: ListenOption = LOOPBACK,
    advertise: AdvertiseOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
    output: OutputOption = Format.TEXT,
    verbose: VerboseOption = False,
) -> None:
    """Start a name server and a broker in this process, or several brokers in processes of their own."""
    if raft is not None and raft not in (3, 5):
        raise wrong("--raft", f"a group has 3 or 5 members; got {raft}")
    if raft is not None and slaves:
        raise wrong("--slaves", "the members of a Raft group all hold the log: choose --raft or --slaves")
    if asynchronous and not slaves:
        raise wrong("--async", "only useful with --slaves: give --slaves, too")
    out = Output(Format.JSON if json else output)
    prepare_process(verbose)
    from kappamq.config import apache

    _check_nameserver_settings(set_)
    given = {**(apache.read_file(config) if config is not None else {}), **properties(set_)}
    if advertise is not None:
        given["brokerIP1"] = advertise
    root = data_directory(Path(given["storePathRootDir"]) if data is None and "storePathRootDir" in given else data)
    given.pop("storePathRootDir", None)
    if brokers is None and not slaves and raft is None:
        _one_process(out, root, given, nameserver_port, broker_port, listen)
        return
    from kappamq.processes.plan import Shape
    from kappamq.processes.supervisor import Supervisor

    supervisor = Supervisor.at(
        root,
        Shape(brokers=brokers or 1, slaves=slaves, synchronous=not asynchronous, raft=raft or 0),
        given,
        host=listen,
        nameserver_port=nameserver_port,
        broker_port=broker_port,
        tell=out.warn,
        verbose=verbose,
    )
    tell_findings(out, supervisor.findings)

    def ready(seconds: float) -> None:
        _tell_nameserver_port(out, supervisor.nameserver, nameserver_port)
        rows = supervisor.rows()
        if out.json:
            out.raw({"nameserver": supervisor.nameserver, "data": str(root), "brokers": rows})
            return
        width = max(len(row.name) for row in rows)
        lines = [
            f"  {row.name:{max(width, 11)}}  [bold]{row.address}[/]  {f'{row.member} ' if row.member else ''}{row.role}"
            f"{f' {row.id}' if row.role == 'slave' else ''}, process {row.pid}"
            for row in rows
        ]
        out.console().print(
            f"[bold green]KappaMQ {version()} is ready[/] in {seconds:.2f} s: {counted(len(rows), 'broker')}\n"
            f"  {'name server':{max(width, 11)}}  [bold]{supervisor.nameserver}[/]\n"
            + "\n".join(lines)
            + f"\n  {'data':{max(width, 11)}}  {root}"
        )
        _tell_how_to_try(out, supervisor.nameserver)

    run_server(supervisor.start, supervisor.stop, ready, out)


def _check_nameserver_settings(given: list[str] | None) -> None:
    """`up` has a name server, too, but its settings are not those of the brokers."""
    from kappamq.errors import ConfigError

    for name in (text.partition("=")[0].strip() for text in given or []):
        if name == "nameserver.port":
            raise ConfigError(f"--set {name}: use --nameserver-port")
        if name.startswith("nameserver."):
            raise ConfigError(
                f"--set {name}: `up` cannot change it; `kappamq nameserver --set` and `kappamq broker` can"
            )


def _one_process(
    out: Output,
    root: Path,
    given: Mapping[str, str],
    nameserver_port: int | None,
    broker_port: int | None,
    listen: str,
) -> None:
    from kappamq.local import Local
    from kappamq.ports import BROKER_PORT
    from kappamq.processes.folders import check_single

    check_single(root)
    local = Local.at(root, nameserver_port=nameserver_port, broker_port=broker_port, host=listen, properties=given)
    tell_findings(out, local.findings)

    def ready(seconds: float) -> None:
        _tell_nameserver_port(out, local.nameserver, nameserver_port)
        port = local.broker.rpartition(":")[2]
        if local.broker_port is None and port != str(BROKER_PORT):
            out.warn(f"port {BROKER_PORT} (or a neighbour that a broker needs) is in use, using {port} instead")
        if out.json:
            out.raw({"nameserver": local.nameserver, "broker": local.broker, "data": str(local.data)})
            return
        out.console().print(
            f"[bold green]KappaMQ {version()} is ready[/] in {seconds:.2f} s\n"
            f"  name server  [bold]{local.nameserver}[/]\n"
            f"  broker       [bold]{local.broker}[/]  {about(local.settings)}\n"
            f"  data         {local.data}"
        )
        _tell_how_to_try(out, local.nameserver)

    run_server(local.start, local.stop, ready, out)


def _tell_nameserver_port(out: Output, nameserver: str, asked: int | None) -> None:
    from kappamq.ports import NAMESERVER_PORT

    # With 0 or a number the port was chosen explicitly; without, users expect the default ports.
    port = nameserver.rpartition(":")[2]
    if asked is None and port != str(NAMESERVER_PORT):
        use = f"export KAPPAMQ_NAMESERVER={nameserver}"
        out.warn(f"port {NAMESERVER_PORT} is in use, using {port} instead: {use}")


def _tell_how_to_try(out: Output, nameserver: str) -> None:
    other = "" if nameserver == DEFAULT_NAMESERVER else f" -n {nameserver}"
    out.note(f"Try: kappamq send{other} --topic tea --body 'first flush'. Ctrl-C stops.")

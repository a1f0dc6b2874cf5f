"""The command line. Each family of commands has its own file; heavy modules are imported inside the command that needs them.

`kappamq --help` must be fast: this file and those of the commands import typer and little else.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kappamq.cli import bench, cluster, pipeline, query, scope, send, serve, store, tail, topic, up
from kappamq.cli.doctor import command as doctor
from kappamq.cli.shared.options import OutputOption
from kappamq.cli.shared.output import Format, Output
from kappamq.cli.shared.usage import Commands
from kappamq.cli.shop import command as shop

app = typer.Typer(
    name="kappamq",
    cls=Commands,
    help="A message broker that speaks Apache RocketMQ's protocol: servers, client tools and checks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        show_version(Format.TEXT)
        raise typer.Exit


def show_version(output: OutputOption = Format.TEXT) -> None:
    """Print the version, and which kernel is in use."""
    import platform

    kernel = "native" if serve.kernel_is_native() else "twin"
    python = platform.python_version()
    Output(output).line(
        f"kappamq {serve.version()} (Python {python}, kernel: {kernel})",
        version=serve.version(),
        python=python,
        kernel=kernel,
    )


app.command("up")(up.up)
app.command("nameserver")(serve.nameserver)
app.command("broker")(serve.broker)
app.command("cluster")(cluster.cluster)
app.command("transfer-leader")(cluster.transfer_leader)
app.add_typer(cluster.member, name="member")
app.add_typer(topic.app, name="topic")
app.add_typer(scope.app, name="scope")
app.command("send")(send.send)
app.command("tail")(tail.tail)
app.add_typer(query.app, name="query")
app.command("bench")(bench.bench)
app.add_typer(store.app, name="store")
app.add_typer(pipeline.app, name="pipeline")
app.command("shop")(shop.shop)
app.command("doctor")(doctor.doctor)
app.command("version")(show_version)

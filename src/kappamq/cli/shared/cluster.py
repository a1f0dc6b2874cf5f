"""How client commands connect to a cluster: name server and TLS, declared once for all of them.

    @spoken
    @clustered
    def list_(cluster: Cluster, ...) -> None:       # has --nameserver, --tls and so on

Each option can also be set by an environment variable.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kappamq.cli.shared.usage import wrong

if TYPE_CHECKING:
    import ssl

    from kappamq.client.admin.admin import AsyncAdmin
    from kappamq.errors import KappaError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
E = TypeVar("E", bound="KappaError")

DEFAULT_NAMESERVER = "127.0.0.1:9876"

NameServerOption = Annotated[
    str,
    typer.Option(
        "--nameserver",
        "-n",
        envvar=["KAPPAMQ_NAMESERVER", "NAMESRV_ADDR"],
        help="host:port of a name server (a host alone: port 9876); several separated by ;",
    ),
]
TlsOption = Annotated[bool, typer.Option("--tls", envvar="KAPPAMQ_TLS", help="Use TLS.")]
TlsCaOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        envvar="KAPPAMQ_TLS_CA",
        help="Trust the certificates in this PEM file instead of the system's; enables TLS.",
        show_default=False,
    ),
]
TlsNoVerifyOption = Annotated[
    bool,
    typer.Option(
        "--tls-no-verify",
        envvar="KAPPAMQ_TLS_NO_VERIFY",
        help="Encrypt, but do not verify the server's certificate; enables TLS.",
    ),
]
TlsCertOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        envvar="KAPPAMQ_TLS_CERT",
        help="Our own certificate (PEM), for servers that require one.",
        show_default=False,
    ),
]
TlsKeyOption = Annotated[
    Path | None, typer.Option("--tls-key", envvar="KAPPAMQ_TLS_KEY", help="Its key (PEM).", show_default=False)
]


@dataclass(frozen=True, slots=True)
class Cluster:
    nameserver: str = DEFAULT_NAMESERVER
    tls: bool = False
    tls_trust: Path | None = None
    tls_verify: bool = True
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of a producer, consumer or admin for this cluster."""
        return {
            "nameserver": self.nameserver,
            "tls": self.tls,
            "tls_trust": self.tls_trust,
            "tls_verify": self.tls_verify,
            "tls_cert": self.tls_cert,
            "tls_key": self.tls_key,
        }

    @property
    def spark_options(self) -> dict[str, str]:
        """TLS as options of Spark's format `kappamq`; with absolute paths."""
        if not self.tls:
            return {"tls": "false"}  # explicitly, since Spark's processes read the environment, too
        paths = {"tlsCa": self.tls_trust, "tlsCert": self.tls_cert, "tlsKey": self.tls_key}
        found = {name: str(path.expanduser().absolute()) for name, path in paths.items() if path is not None}
        return {"tls": "true", "tlsNoVerify": str(not self.tls_verify).lower(), **found}

    @property
    def nameservers(self) -> tuple[str, ...]:
        from kappamq.config.client import split_addresses

        return split_addresses(self.nameserver)

    def context(self) -> ssl.SSLContext | None:
        from kappamq.client.core.settings import client_config, tls_context

        options = self.options
        return tls_context(client_config(options.pop("nameserver"), None, options))

    def ask(self, timeout: float, work: Callable[[AsyncAdmin], Awaitable[T]], topic: str | None = None) -> T:
        """Run `work` with an admin. If `topic` does not exist, the error suggests which one may have been meant."""
        from kappamq.client.admin.admin import AsyncAdmin
        from kappamq.errors import TopicNotFound, UnknownTopic
        from kappamq.event_loop import run

        async def main() -> T:
            async with AsyncAdmin(**self.options, request_timeout_ms=max(1, int(timeout * 1000))) as admin:
                return await work(admin)

        try:
            return run(main())
        except (TopicNotFound, UnknownTopic) as error:
            raise error if topic is None else self.with_hint(error, topic, timeout) from None

    def with_hint(self, error: E, topic: str, timeout: float = 5.0) -> E:
        """Return `error`, which says that a topic does not exist, with the name of a similar topic if there is one."""
        from kappamq.errors import KappaError as AnyError
        from kappamq.spark.suggestions import nearest

        try:
            near = nearest(topic, self.ask(timeout, lambda admin: admin.topics()))
        except AnyError:
            return error
        return type(error)(f"topic {topic!r} does not exist{near}") if near else error


def _options(
    nameserver: NameServerOption = DEFAULT_NAMESERVER,
    tls: TlsOption = False,
    tls_ca: TlsCaOption = None,
    tls_no_verify: TlsNoVerifyOption = False,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
) -> Cluster:
    from kappamq.config.checks import address
    from kappamq.errors import ConfigError

    found = Cluster(
        nameserver, tls or tls_ca is not None or tls_no_verify, tls_ca, not tls_no_verify, tls_cert, tls_key
    )
    try:
        for server in found.nameservers:
            address("a name server", server)
    except ConfigError as error:
        raise wrong("--nameserver", error) from None
    if not found.nameservers:
        raise wrong("--nameserver", "it contains no address: give host:port, several of them separated by ';'")
    if (tls_cert is None) != (tls_key is None):
        raise wrong("--tls-cert", "--tls-cert and --tls-key belong together: give both, or none")
    return found


def clustered(function: F) -> F:
    """Give a command the options above in place of its parameter `cluster`."""
    own = inspect.signature(function, eval_str=True)
    added = inspect.signature(_options, eval_str=True).parameters
    kept = [parameter for name, parameter in own.parameters.items() if name != "cluster"]

    @functools.wraps(function)
    def wrapper(**options: Any) -> Any:
        cluster = _options(**{name: options.pop(name) for name in added if name in options})
        return function(cluster=cluster, **options)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [parameter.replace(kind=keyword) for parameter in (*kept, *added.values())]
    wrapper.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return wrapper  # type: ignore[return-value]

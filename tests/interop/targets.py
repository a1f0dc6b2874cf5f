"""What the official clients are pointed at: our servers, or Apache's own, which show that the tests are right.

`INTEROP_TARGETS=apache,kappamq make interop` runs everything against both; without it, against ours only.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self

from tests.interop import apache
from tests.interop.process import Process
from tests.interop.raw import routed

# Both brokers are told the same: features on, and times that a test can wait for.
FEATURES: dict[str, object] = {
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 2000,
    "transactionOpBatchInterval": 200,
    "recallMessageEnable": "true",
}
CLUSTER, BROKER = "DefaultCluster", "broker-a"


class Target(Protocol):
    """A name server and one broker, which come back on the same ports and the same store."""

    kind: str
    nameserver: str
    broker: str
    store: Path

    def start(self) -> Self: ...
    def stop(self) -> None:
        """Ask the broker to stop, and wait until it has; the name server goes too."""

    def kill(self) -> None:
        """kill -9 on everything."""


class ApacheTarget:
    kind = "apache"

    def __init__(self, home: Path, *, store: Path | None = None, properties: dict[str, object] | None = None) -> None:
        self._names = apache.NameServer(home / "nameserver")
        self._broker = apache.Broker(
            home / "broker", self._names.address, store=store, name=BROKER, properties=properties
        )
        self.nameserver, self.broker, self.store = self._names.address, self._broker.address, self._broker.store

    def start(self) -> Self:
        self._names.start()
        self._broker.start()
        return self

    def stop(self) -> None:
        self._broker.stop()
        self._names.kill()

    def kill(self) -> None:
        self._broker.kill()
        self._names.kill()


class KappaTarget:
    kind = "kappamq"
    READY_SECONDS_MAX = 20

    def __init__(self, home: Path, *, store: Path | None = None, properties: dict[str, object] | None = None) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home, self.store = home, store or home / "store"
        # As the other one: ids name loopback, not the address by which other machines find this one.
        ours = {"brokerClusterName": CLUSTER, "brokerName": BROKER, "brokerIP1": "127.0.0.1"}
        self.properties = {**ours, **(properties or {})}
        self.nameserver = self.broker = "127.0.0.1:0"
        self.starts = 0

    def start(self) -> Self:
        self.starts += 1
        command = [sys.executable, "-m", "kappamq", "up", "--json", "--data", str(self.store)]
        command += ["--nameserver-port", self.nameserver.rpartition(":")[2]]
        command += ["--broker-port", self.broker.rpartition(":")[2]]
        for name, value in self.properties.items():
            command += ["--set", f"{name}={value}"]
        errors = self.home / f"errors-{self.starts}.txt"
        out = self.home / f"out-{self.starts}.txt"
        self.process = Process(command, out, errors=errors)
        self.process.wait_until(lambda: "\n" in out.read_text(), "kappamq up --json", self.READY_SECONDS_MAX)
        ready = json.loads(out.read_text().splitlines()[0])
        self.nameserver, self.broker = ready["nameserver"], ready["broker"]
        # Ready means ready: a client that asks now gets a route.
        assert routed(self.nameserver, "TBW102", self.broker), f"{ready} was printed, but the name server has no route"
        return self

    def stop(self) -> None:
        code = self.process.stop(20)
        assert code in (0, -15, 143), f"kappamq up ended with {code}:\n{self.process.tail()}"

    def kill(self) -> None:
        self.process.kill()


KINDS: dict[str, Callable[..., ApacheTarget | KappaTarget]] = {"apache": ApacheTarget, "kappamq": KappaTarget}


def chosen() -> list[str]:
    names = os.environ.get("INTEROP_TARGETS", "kappamq").replace(",", " ").split()
    unknown = set(names) - set(KINDS)
    assert not unknown, f"INTEROP_TARGETS knows {', '.join(KINDS)}, not {', '.join(unknown)}"
    return names

"""The two brokers behind one face: started on the broker's core, paused while the other one is measured."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.process import BROKER_CORE, LOAD_CORE, Child, ProcessFailed
from tests.interop import jars
from tests.interop.apache import java_command
from tests.interop.process import free_port
from tests.interop.raw import routed

READY_S_MAX = 120.0
NAME = "broker-a"
APACHE, KAPPAMQ = f"Apache {jars.SERVER.version}", "KappaMQ"
KINDS = (APACHE, KAPPAMQ)
# Both wait for the slave; by default Apache's does not.
SYNC_MASTER: dict[str, Mapping[str, object]] = {
    APACHE: {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "totalReplicas": 2},
    KAPPAMQ: {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2},
}
# A gigabyte of heap is plenty for these loads. One core for the broker: the serial collector is the cheapest there
# (tried against G1, which is what its start script chooses for 8 GiB).
HEAP_MB = 1024
JVM = ("-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=1g")


class Peer:
    """A running name server and broker of one kind. Both have the same settings: RocketMQ's defaults, async flush."""

    def __init__(self, kind: str, home: Path, *, copied: bool = False) -> None:
        """`copied`: with a slave beside the load, that has every message before it is acknowledged."""
        self.kind, self.home, self.copied = kind, home, copied
        self.nameserver = self.address = ""
        self.broker: Child
        self.slave: Child | None = None
        self.ready_s = 0.0

    @contextmanager
    def running(self) -> Iterator[Peer]:
        """Until the block ends. `ready_s` is the time from the broker's start until clients are sent to it."""
        with self._start_nameserver() as names:
            self._names = names
            self.broker = self._start_broker()
            try:
                self._wait_until_ready()
                if self.copied:
                    self.slave = self._start_slave()
                yield self
            finally:
                self.broker.kill()
                if self.slave is not None:
                    self.slave.kill()

    def _wait_until_ready(self) -> None:
        while not routed(self.nameserver, "TBW102", self.address):
            if not self.broker.running or time.monotonic() > self.broker.started + READY_S_MAX:
                raise ProcessFailed(f"{self.kind} is not ready:\n{self.broker.complaint()}")
            time.sleep(0.005)
        self.ready_s = time.monotonic() - self.broker.started

    def restart(self, meanwhile: Callable[[], None]) -> None:
        """Stop the broker and start it again on its store, with something done in between."""
        self.broker.stop()
        meanwhile()
        self.broker = self._start_broker()
        self._wait_until_ready()

    def _start_nameserver(self) -> Child:
        if self.kind == KAPPAMQ:
            command = [sys.executable, "-m", "kappamq", "nameserver", "--json", "--listen", "127.0.0.1", "--port", "0"]
            child = Child([*command, "--data", str(self.home / "ns-data")], self.home / "ns", cores=LOAD_CORE)
            self.nameserver = child.wait_for_json(READY_S_MAX)[0]["nameserver"]
            return child
        home, port = self.home / "ns", free_port()
        command = java_command(
            jars.SERVER, home, "org.apache.rocketmq.namesrv.NamesrvStartup", heap_mb=128, options=JVM
        )
        (home / "namesrv.conf").write_text(f"listenPort={port}\n")
        environment = {"ROCKETMQ_HOME": str(home)}
        child = Child([*command, "-c", str(home / "namesrv.conf")], home, cores=LOAD_CORE, env=environment)
        child.wait_for("boot success", READY_S_MAX)
        self.nameserver = f"127.0.0.1:{port}"
        return child

    def _start_broker(self) -> Child:
        port = free_port(-2, 1)
        self.address = f"127.0.0.1:{port}"
        return self._started(port, "broker", SYNC_MASTER[self.kind] if self.copied else {}, BROKER_CORE)

    def _start_slave(self) -> Child:
        """Ready to follow. Both slaves ask the name server for their master: Apache's 5.3.3 forgets a configured haMasterAddress, because
        it is handed on before there is anybody who connects."""
        slave = self._started(free_port(-2, 1), "slave", {"brokerRole": "SLAVE", "brokerId": 1}, LOAD_CORE)
        slave.wait_for("boot success" if self.kind == APACHE else "\n", READY_S_MAX)
        return slave

    def _started(self, port: int, folder: str, role: Mapping[str, object], cores: set[int]) -> Child:
        home = self.home / folder
        home.mkdir(parents=True, exist_ok=True)
        conf = home / "broker.conf"
        properties: dict[str, object] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": NAME,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",  # where Apache's slave finds its master
            "listenPort": port,
            "namesrvAddr": self.nameserver,
            "storePathRootDir": home / "store",
            "enablePropertyFilter": "true",  # else Apache refuses SQL92
            **role,
        }
        conf.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        if self.kind == KAPPAMQ:
            return Child([sys.executable, "-m", "kappamq", "broker", "--json", "-c", str(conf)], home, cores=cores)
        main = "org.apache.rocketmq.broker.BrokerStartup"
        command = java_command(jars.SERVER, home, main, heap_mb=HEAP_MB, options=JVM)
        return Child([*command, "-c", str(conf)], home, cores=cores, env={"ROCKETMQ_HOME": str(home)})

    def pause(self) -> None:
        """Both brokers have the same core: the one that is not measured must not take anything from it."""
        for child in (self.broker, self._names):
            os.kill(child.pid, signal.SIGSTOP)

    def resume(self) -> None:
        for child in (self._names, self.broker):
            os.kill(child.pid, signal.SIGCONT)

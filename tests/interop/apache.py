"""Apache RocketMQ's own servers and its operator's tool `mqadmin`, as child processes.

with NameServer(folder / "ns") as names, Broker(folder / "b", names.address) as broker:
    print(mqadmin(names.address, "clusterList").table())
"""

import contextlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.interop import jars
from tests.interop.process import Process, free_port
from tests.interop.raw import routed

# Logs in one small file per process: the default configuration prints a page at each start and needs a second for it.
LOGBACK = """<configuration>
  <appender name="F" class="org.apache.rocketmq.logging.ch.qos.logback.core.FileAppender">
    <file>${user.home}/rocketmq.log</file><immediateFlush>true</immediateFlush>
    <encoder><pattern>%d{HH:mm:ss.SSS} %p %c{0} %m%n%ex{full}</pattern></encoder>
  </appender>
  <root level="@LEVEL@"><appender-ref ref="F"/></root>
</configuration>
"""
# Mapped files are unmapped by means that the module system has to be asked for.
OPENED = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)
# For programs that live for seconds: the second compiler never pays off.
SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def java_command(
    bundle: jars.Bundle,
    home: Path,
    main: str,
    *,
    heap_mb: int,
    options: tuple[str, ...] = (),
    before: tuple[Path, ...] = (),  # class folders in front of the jars
    level: str = "WARN",
) -> list[str]:
    """The command line up to and including the main class; `home` takes the logs and all that goes to a user's home."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "rmq.logback.xml").write_text(LOGBACK.replace("@LEVEL@", level))
    command = [jars.java_tool("java"), f"-Xms{heap_mb}m", f"-Xmx{heap_mb}m", f"-Duser.home={home}", *OPENED, *options]
    return [*command, "-cp", jars.class_path(bundle, home, *before), main]


class _Server:
    """A server process that can be stopped, killed and started again on the same folder and ports."""

    process: Process

    def start(self) -> Self:
        raise NotImplementedError

    def stop(self) -> None:
        """A clean stop (a broker takes 10 to 15 seconds for it)."""
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


class NameServer(_Server):
    def __init__(self, home: Path, *, port: int = 0, heap_mb: int = 64) -> None:
        self.home, self.port, self.heap_mb = home, port or free_port(), heap_mb
        self.address = f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        command = java_command(jars.SERVER, self.home, main, heap_mb=self.heap_mb, options=SHORT_LIVED)
        conf = self.home / "namesrv.conf"
        conf.write_text(f"listenPort={self.port}\n")
        self.process = Process([*command, "-c", str(conf)], self.home / "out.txt", {"ROCKETMQ_HOME": str(self.home)})
        # The line is printed after the port is bound; asking the port instead could meet somebody else's.
        self.process.wait_until(lambda: "boot success" in self.process.tail(), "Apache's name server")
        return self


class Broker(_Server):
    """`properties` are lines of broker.conf and win over the defaults here."""

    def __init__(
        self,
        home: Path,
        nameserver: str,
        *,
        store: Path | None = None,
        name: str = "broker-a",
        port: int = 0,
        heap_mb: int = 384,
        direct_mb: int = 512,
        options: tuple[str, ...] = SHORT_LIVED,
        properties: dict[str, object] | None = None,
    ) -> None:
        self.home, self.store, self.name = home, store or home / "store", name
        self.port = port or free_port(-2, 1)  # port-2: the "fast" server, port+1: replication
        self.address = f"127.0.0.1:{self.port}"
        self.heap_mb, self.direct_mb, self.options = heap_mb, direct_mb, options
        self.properties: dict[str, object] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": name,
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "listenPort": self.port,
            "namesrvAddr": nameserver,
            "storePathRootDir": self.store,
            **(properties or {}),
        }

    def start(self) -> Self:
        main = "org.apache.rocketmq.broker.BrokerStartup"
        options = (*self.options, f"-XX:MaxDirectMemorySize={self.direct_mb}m")
        command = java_command(jars.SERVER, self.home, main, heap_mb=self.heap_mb, options=options)
        conf = self.home / "broker.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in self.properties.items()))
        out = self.home / "out.txt"
        out.unlink(missing_ok=True)
        self.process = Process([*command, "-c", str(conf)], out, {"ROCKETMQ_HOME": str(self.home)})
        self.process.wait_until(lambda: "boot success" in self.process.tail(), "Apache's broker")
        # It says so before the name server has heard of its topics.
        nameserver = str(self.properties["namesrvAddr"])
        self.process.wait_until(lambda: routed(nameserver, "TBW102", self.address), "registration of Apache's broker")
        return self


@dataclass(frozen=True)
class Printed:
    """What a command of mqadmin printed."""

    text: str

    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.text.splitlines() if line.strip()]

    def table(self) -> list[dict[str, str]]:
        """The rows under the `#Column  #Column` line, by column name without the `#`.

        Columns are padded and separated by two blanks or more; a row that lacks its last columns is short, and a
        line with one cell only is a remark below the table."""
        rows: list[dict[str, str]] = []
        names: list[str] = []
        for line in self.lines():
            cells = re.split(r"\s{2,}", line.strip())
            if line.startswith("#"):
                names = [name.strip() for name in line[1:].split("#")]
            elif len(cells) > 1:
                rows.append(dict(zip(names, cells, strict=False)))
        return rows

    def facts(self) -> dict[str, str]:
        """Lines of the form `name : value`, as brokerStatus and the message queries print them."""
        pairs = (re.match(r"([\w .\[\]/-]+?)\s*:(?:\s+(.*))?$", line) for line in self.lines())
        return {pair[1].strip(): (pair[2] or "").strip() for pair in pairs if pair}


class MqadminFailed(Exception):
    pass


def mqadmin(nameserver: str, command: str, *arguments: str, home: Path | None = None, seconds: float = 60) -> Printed:
    """Run one command. mqadmin exits with 0 even when it failed and prints the exception: that is raised here."""
    home = home or jars.cache() / "mqadmin"
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"
    line = java_command(jars.SERVER, home, main, heap_mb=64, options=SHORT_LIVED, level="ERROR")
    done = subprocess.run(
        [*line, command, "-n", nameserver, *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, "ROCKETMQ_HOME": str(home)},
    )
    text = done.stdout + done.stderr
    if done.returncode != 0 or re.search(r"SubCommandException|^usage: mqadmin", text, re.MULTILINE):
        raise MqadminFailed(f"mqadmin {command} {' '.join(arguments)}: exit code {done.returncode}\n{text}")
    return Printed(text)


def main() -> None:
    """`python -m tests.interop.apache FOLDER [property=value ...]`: run both servers until Enter or Ctrl-C."""
    folder = Path(sys.argv[1]).resolve()
    properties = dict(argument.split("=", 1) for argument in sys.argv[2:])
    nameserver_port = int(properties.pop("nameserverPort", "0"))
    broker_port = int(properties.pop("listenPort", "0"))
    with (
        NameServer(folder / "nameserver", port=nameserver_port) as names,
        Broker(folder / "broker", names.address, port=broker_port, properties={**properties}) as broker,
    ):
        ready = {"nameserver": names.address, "broker": broker.address, "data": str(broker.store)}
        print(json.dumps(ready), flush=True)
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            input()


if __name__ == "__main__":
    main()

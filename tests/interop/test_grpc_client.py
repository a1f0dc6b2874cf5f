"""An official gRPC client (5.x) is not served, and the operator learns why."""

import subprocess
from pathlib import Path

import pytest

from tests.interop.cpp import environment
from tests.interop.targets import KappaTarget
from tests.waiting import eventually

PACKAGE = "rocketmq-python-client==5.1.2"
PROGRAM = """
import os, sys
from rocketmq import ClientConfiguration, Credentials, Producer
try:
    Producer(ClientConfiguration(sys.argv[1], Credentials(), request_timeout=3), ("tea",)).startup()
finally:
    os._exit(0)  # it would try again for ever
"""


@pytest.mark.parametrize("where", ["nameserver", "broker"])
def test_a_grpc_client_is_recognised(tmp_path: Path, where: str) -> None:
    python = environment("grpc", PACKAGE, "rocketmq")
    target = KappaTarget(tmp_path / "kappamq").start()
    try:
        subprocess.run(
            [str(python), "-c", PROGRAM, getattr(target, where)],
            env={"HOME": str(tmp_path)}, capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        errors = tmp_path / "kappamq" / "errors-1.txt"
        eventually(lambda: "it is probably a gRPC client" in errors.read_text(), text="the warning about a gRPC client")
        assert errors.read_text().count("gRPC") == 1, "once for a peer"
    finally:
        target.kill()

"""What importing the client costs and needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kappamq.client


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_public_name_can_be_loaded() -> None:
    for name in kappamq.client.__all__:
        assert getattr(kappamq.client, name).__name__ == name
        assert name in dir(kappamq.client)
    with pytest.raises(AttributeError, match="nothing"):
        _ = kappamq.client.nothing


def test_it_works_without_uvloop_kernel_store_and_compression_libraries() -> None:
    program = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        ours = ("kappamq.native._kernel", "kappamq.store", "kappamq.broker")
        if name.split(".")[0] in ("uvloop", "lz4", "zstandard") or name.startswith(ours):
            raise ImportError("refused " + name)
sys.meta_path.insert(0, Refuse())
from kappamq.client import *
from kappamq.client.blocking.loop_thread import loop_thread
async def one(): return 1
assert loop_thread().run(one()) == 1
print(type(loop_thread().loop).__module__)
"""
    assert run(program).strip().startswith("asyncio")


def test_importing_the_package_loads_no_client_yet() -> None:
    program = "import sys, kappamq, kappamq.client; print('asyncio' in sys.modules, 'kappamq.client.blocking.clients' in sys.modules)"
    assert run(program).split() == ["False", "False"]

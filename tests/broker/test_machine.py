"""What the machine and its limits make of a configuration."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from kappamq import native
from kappamq.broker.machine import boot_id, new_kernel, within_descriptors
from kappamq.config.broker import BrokerConfig
from kappamq.config.net import NetConfig
from kappamq.config.store import StoreConfig
from tests.store.stores import kernels


def test_the_boot_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAPPAMQ_BOOT_ID", raising=False)
    real = boot_id()
    assert real == boot_id() != ""
    monkeypatch.setenv("KAPPAMQ_BOOT_ID", "after the power cut")
    assert boot_id() == "after the power cut"


@pytest.mark.parametrize(
    ("limit", "connections", "files", "told"),
    [(resource.RLIM_INFINITY, 16_000, 2048, False), (65_536, 16_000, 2048, False), (1024, 384, 128, True)],
)
def test_sockets_and_files_fit_into_what_may_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limit: int, connections: int,
    files: int, told: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(resource, "getrlimit", lambda what: (limit, limit))
    given = StoreConfig(root=tmp_path), NetConfig()
    store, net = within_descriptors(*given)
    assert (net.connections_max, store.open_files_max) == (connections, files)
    assert store is not given[0], "a copy: settings are written into it"
    assert ("ulimit -n" in caplog.text) == told


@pytest.mark.parametrize("kind", kernels())
def test_a_kernel_has_the_limits_of_the_configuration(tmp_path: Path, kind: str) -> None:
    store = StoreConfig(root=tmp_path, segment_bytes=1 << 20, message_bytes_max=5000, transfer_count_max=7)
    net = NetConfig(frame_bytes_max=1 << 20, header_bytes_max=2000)
    kernel = new_kernel(native.load(kind), BrokerConfig(delay_levels="5s 6s"), store, net)
    assert (kernel.segment_bytes, kernel.message_bytes_max, kernel.transfer_count_max) == (1 << 20, 5000, 7)
    assert (kernel.frame_bytes_max, kernel.header_bytes_max, kernel.delays_ms) == (1 << 20, 2000, (5000, 6000))

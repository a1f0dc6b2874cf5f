"""Adapts a configuration to the machine and its limits: descriptors, the kernel, and an id for each start of the machine."""

from __future__ import annotations

import logging
import os
import resource
import socket
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from kappamq.broker.naming.ports import bind_ports
from kappamq.config.broker import BrokerConfig
from kappamq.config.net import NetConfig
from kappamq.config.store import StoreConfig
from kappamq.native.interface import Kernel, KernelModule
from kappamq.net.serving.limits import shares
from kappamq.state.events import SettingsChanged

log = logging.getLogger(__name__)

_PENDING_BYTES_MAX = 4 << 20


def new_kernel(module: KernelModule, broker: BrokerConfig, store: StoreConfig, net: NetConfig) -> Kernel:
    kernel = module.Kernel(
        segment_bytes=store.segment_bytes,
        store_host=bytes(8),
        region=broker.region,
        cluster=broker.cluster,
        trace_on=broker.trace_on,
        tail_crc=store.tail_crc,
        message_bytes_max=store.message_bytes_max,
        frame_bytes_max=net.frame_bytes_max,
        header_bytes_max=net.header_bytes_max,
        pending_bytes_max=_PENDING_BYTES_MAX,
        transfer_bytes_max=store.transfer_bytes_max,
        transfer_count_max=store.transfer_count_max,
    )
    kernel.delays_ms = broker.delays_ms
    return kernel


class KernelCopies:
    """Pass settings to the kernel that it copies and that may change later."""

    def __init__(self, kernel: Kernel, store: StoreConfig) -> None:
        self._kernel = kernel
        self._store = store

    def set_host(self, packed: bytes) -> None:
        """Set the store address of records from now on."""
        self._kernel.store_host = packed

    def settings_changed(self, event: SettingsChanged) -> None:
        if event.fields & {"store.transfer_bytes_max", "store.transfer_count_max"}:
            self._kernel.transfer_bytes_max = self._store.transfer_bytes_max
            self._kernel.transfer_count_max = self._store.transfer_count_max


def within_descriptors(store: StoreConfig, net: NetConfig) -> tuple[StoreConfig, NetConfig]:
    """Copies whose sockets and files fit into what this process may open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return replace(store), replace(net)
    connections, files = shares(limit, net.connections_max, store.open_files_max)
    if (connections, files) != (net.connections_max, store.open_files_max):
        log.warning(
            "this process may open %d files: %d connections (not %d) and %d queue files at once; `ulimit -n` raises it",
            *(limit, connections, net.connections_max, files),
        )
    return replace(store, open_files_max=files), replace(net, connections_max=connections)


def boot_id() -> str:
    """Changes when the machine starts: what the page cache held before is gone. Power-cut tests set it instead of restarting."""
    given = os.environ.get("KAPPAMQ_BOOT_ID")
    if given is not None:
        return given
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class Machine:
    """A broker's interface to its machine besides disk, clocks and event loop; a simulated machine passes its own."""

    bind_ports: Callable[[str, int, int, int], list[socket.socket]] = bind_ports
    new_thread: Callable[[str], Executor] = lambda name: ThreadPoolExecutor(1, name)
    boot_id: Callable[[], str] = boot_id

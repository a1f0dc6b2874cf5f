"""Every behaviour of the kernel is tested twice: compiled and twin."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kappamq.native import load
from tests.native.fuzz import load_extension
from tests.needs import PREFIX, in_ci

HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
BORN = bytes([10, 0, 0, 1, 0, 0, 200, 1])
NOW = 1_700_000_000_000
SETTINGS = {
    "segment_bytes": 1 << 20, "store_host": HOST, "region": "DefaultRegion", "cluster": "DefaultCluster", "trace_on": True,
    "tail_crc": True, "message_bytes_max": 1 << 22, "frame_bytes_max": 1 << 24, "header_bytes_max": 1 << 18,
    "pending_bytes_max": 1 << 20, "transfer_bytes_max": 1 << 18, "transfer_count_max": 32,
}  # fmt: skip


@functools.cache
def load_kernel(kind: str) -> ModuleType:
    if kind == "native" and "KAPPAMQ_TEST_KERNEL" in os.environ:
        return load_extension(os.environ["KAPPAMQ_TEST_KERNEL"])  # tests.native.sanitize
    try:
        return load(kind)
    except ImportError:
        text = f"{PREFIX}the compiled kernel; make setup builds it, and says why if it cannot"
        if in_ci():
            pytest.fail(text, pytrace=False)
        pytest.skip(text)


@pytest.fixture(params=["twin", "native"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return load_kernel(request.param)


@pytest.fixture
def native() -> ModuleType:
    return load_kernel("native")


@pytest.fixture
def make(module: ModuleType) -> Callable[..., Any]:
    """A kernel that takes sends on topic `tea` (4 queues), with any setting changed."""

    def make(**changed: Any) -> Any:
        kernel = module.Kernel(**{**SETTINGS, **changed})
        kernel.set_topic("tea", 4, 4, 3)
        kernel.accepting = True
        kernel.open_segment(0, kernel.segment_bytes)
        return kernel

    return make

"""Both kernels offer what the interface declares, and name it alike."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from kappamq import native
from kappamq.native.interface import Flusher, Kernel, KernelModule
from kappamq.native.layout import PullVerdict, QueueState
from tests.store.stores import kernels

KINDS = kernels()


def members(protocol: type) -> set[str]:
    declared = {
        name for name, value in vars(protocol).items() if inspect.isfunction(value) or isinstance(value, property)
    }
    return {name for name in {*declared, *protocol.__annotations__} if not name.startswith("_")}


def made(kind: str) -> Any:
    return native.load(kind).Kernel(
        segment_bytes=1 << 20,
        store_host=bytes(8),
        region="r",
        cluster="c",
        trace_on=True,
        tail_crc=True,
        message_bytes_max=1 << 16,
        frame_bytes_max=1 << 20,
        header_bytes_max=1 << 16,
        pending_bytes_max=1 << 20,
        transfer_bytes_max=1 << 18,
        transfer_count_max=1024,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_has_everything_that_is_declared(kind: str) -> None:
    kernel = made(kind)
    assert {name for name in members(Kernel) if not hasattr(kernel, name)} == set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_module_and_its_flusher_have_everything_that_is_declared(kind: str) -> None:
    module: Any = native.load(kind)
    assert {name for name in members(KernelModule) if not hasattr(module, name)} == set()
    assert {name for name in members(Flusher) if not hasattr(module.Flusher, name)} == set()


def test_the_compiled_kernel_offers_nothing_that_is_not_declared() -> None:
    if "native" not in KINDS:
        pytest.skip("no compiled kernel here")
    offered = {name for name in dir(made("native")) if not name.startswith("_")}
    assert offered - members(Kernel) == set()


@pytest.mark.parametrize("kind", KINDS)
def test_states_and_verdicts_have_names(kind: str) -> None:
    kernel = made(kind)
    assert kernel.queue_state("t", 0) == QueueState(first=0, end=0, next=0, stored=0)
    kernel.set_queue("t", 0, 3, 8)
    assert kernel.queue_state("t", 0).first == 3
    assert isinstance(kernel.queue_state("t", 0), QueueState)
    assert isinstance(kernel.pull("t", 0, 0, 32, None, 1, False, False), PullVerdict)
    assert isinstance(kernel.fetch("t", 0, 0, 32, False), PullVerdict)

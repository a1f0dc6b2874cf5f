"""Servers and clients for the whole run: each is started once, when the first test wants it."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop import jars, targets
from tests.interop.cpp import cpp_probe
from tests.interop.golang import go_probe
from tests.interop.probe import JsonLines, java_probe
from tests.needs import PREFIX, in_ci, needs

HERE = Path(__file__).parent
# The first test of all waits for downloads; none of the others comes near this.
SECONDS_MAX = 600

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)
            item.add_marker(needs("java", "maven"))
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Iterator[None]:
    """What cannot be fetched is treated as tests/needs.py treats it: skipped and counted, or a failure in CI."""
    try:
        return (yield)
    except jars.Missing as missing:
        if in_ci():
            pytest.fail(f"{PREFIX}{missing} (CI=true: nothing may be skipped)", pytrace=False)
        pytest.skip(f"{PREFIX}{missing}")


@pytest.fixture(scope="session", params=targets.chosen())
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[targets.Target]:
    started = targets.KINDS[request.param](tmp_path_factory.mktemp(request.param), properties=targets.FEATURES)
    try:
        yield started.start()
    finally:
        started.kill()


class Variant(NamedTuple):
    """One official Java client with one header format."""

    bundle: jars.Bundle
    binary: bool

    @property
    def name(self) -> str:
        return f"java{self.bundle.version.replace('.', '')}{'b' if self.binary else 'j'}"

    @property
    def protocol_version(self) -> int:
        return {"4.9.8": 409, "5.3.3": 479}[self.bundle.version]


VARIANTS = [Variant(bundle, binary) for bundle in (jars.CLIENT_4, jars.CLIENT_5) for binary in (False, True)]


@pytest.fixture(scope="session")
def java_clients(
    target: targets.Target, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Variant], JsonLines]]:
    running: dict[Variant, JsonLines] = {}
    with ExitStack() as stack:

        def client(variant: Variant) -> JsonLines:
            if variant not in running:
                home = tmp_path_factory.mktemp(variant.name)
                probe = java_probe(variant.bundle, target.nameserver, home, variant.name, binary=variant.binary)
                running[variant] = stack.enter_context(probe)
                probe("hello")  # it is up, so tests may count seconds
            return running[variant]

        yield client


@pytest.fixture(scope="session", params=VARIANTS, ids=lambda variant: variant.name)
def variant(request: pytest.FixtureRequest) -> Variant:
    chosen: Variant = request.param
    return chosen


@pytest.fixture
def java(java_clients: Callable[[Variant], JsonLines], variant: Variant) -> JsonLines:
    return java_clients(variant)


@pytest.fixture
def other_java(java_clients: Callable[[Variant], JsonLines], variant: Variant) -> JsonLines:
    """A second client that runs beside `java`: the next of the variants."""
    return java_clients(VARIANTS[(VARIANTS.index(variant) + 1) % len(VARIANTS)])


@pytest.fixture(scope="session")
def cpp(target: targets.Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JsonLines]:
    with cpp_probe(target.nameserver, tmp_path_factory.mktemp("cpp"), "cpp") as probe:
        yield probe


@pytest.fixture(scope="session")
def golang(target: targets.Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JsonLines]:
    with go_probe(target.nameserver, tmp_path_factory.mktemp("go"), "go") as probe:
        yield probe


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name nobody has used; the topic comes into being with the first send."""
    return f"T{next(_numbers)}_{request.function.__name__.removeprefix('test_')[:40]}"

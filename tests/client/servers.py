"""Real servers for the scenarios: ours, or Apache's (`INTEROP_TARGETS=apache,kappamq`), started once for the run."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.interop import jars, targets
from tests.needs import PREFIX, in_ci, missing

_numbers = itertools.count(1)


def started(kind: str, factory: pytest.TempPathFactory, properties: dict[str, object] | None = None) -> targets.Target:
    """Start servers of that kind; where Java is missing, skip loudly, or fail in CI."""
    if kind == "apache":
        text = missing("maven")
        try:
            if text is None:
                return targets.KINDS[kind](factory.mktemp(kind), properties=properties).start()
        except jars.Missing as error:
            text = str(error)
        (pytest.fail if in_ci() else pytest.skip)(f"{PREFIX}{text}")
    home = factory.mktemp(kind)
    certificate, key = home / "certificate.pem", home / "key.pem"
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {certificate}"
    named = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*make.split(), *named], check=True, capture_output=True, timeout=60)
    tls = {"tls.server.certPath": certificate, "tls.server.keyPath": key}
    return targets.KINDS[kind](home, properties={**tls, **(properties or {})}).start()


@pytest.fixture(scope="session", params=targets.chosen())
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[targets.Target]:
    target = started(request.param, tmp_path_factory)
    yield target
    target.kill()


@pytest.fixture(params=targets.chosen())
def own_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[targets.Target]:
    """For a test that kills it."""
    target = started(request.param, tmp_path_factory)
    yield target
    target.kill()


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Makes names of topics and groups that nobody has used."""
    test = request.function.__name__.removeprefix("test_")[:30]
    return lambda kind: f"{kind}{next(_numbers)}_{test}"

"""A cluster that speaks nothing but TLS: read, streamed and written, with the options that say how."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kappamq.client.blocking.clients import Admin
from kappamq.errors import ConfigError, NotConnected
from kappamq.local import Local, LocalThread
from kappamq.spark import connection
from kappamq.spark.jobs import check_archive
from kappamq.spark.sink.options import WriteOptions
from kappamq.spark.sink.sink import write_rows
from kappamq.spark.tls import Tls, tls_options
from kappamq.spark.topic import topics
from kappamq.spark.topic.options import ReadOptions
from kappamq.spark.topic.source import BatchReader
from kappamq.spark.topic.streaming import StreamReader
from kappamq.spark.topic.tasks import Task
from tests.cli.conftest import SMALL
from tests.net.certificates import Certificates, make


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Local]:
    """Takes nothing but TLS, and only clients with a certificate of their own."""
    tls = {
        "net.tls_mode": "enforcing",
        "net.tls_cert": str(certificates.server.cert),
        "net.tls_key": str(certificates.server.key),
        "net.tls_trust": str(certificates.authority),
        "net.tls_client_auth": "require",
        "net.tls_outgoing": "true",
        "net.tls_outgoing_trust": str(certificates.authority),
    }
    data = tmp_path_factory.mktemp("secret")
    local = Local.at(data, nameserver_port=0, broker_port=0, host="127.0.0.1", properties={**SMALL, **tls})
    with LocalThread(local) as running:
        yield running


@pytest.fixture(scope="module")
def given(secret: Local, certificates: Certificates) -> dict[str, str]:
    """Options of a read or write, in lower case as Spark hands them over."""
    found = {
        "nameservers": secret.nameserver,
        "topic": "tea",
        "tlsca": str(certificates.authority),
        "tlscert": str(certificates.client.cert),
        "tlskey": str(certificates.client.key),
    }
    tls = WriteOptions.parse(found).tls
    assert tls is not None
    with Admin(secret.nameserver, **tls.client_options()) as admin:
        admin.create_topic("tea", queues=1)
    return found


def test_rows_are_written_read_and_streamed(given: dict[str, str], tmp_path: Path) -> None:
    writing = pickle.loads(pickle.dumps(WriteOptions.parse(given)))  # as they get to an executor
    assert write_rows(writing, iter([pa.record_batch({"body": ["first flush", "second flush"]})])).rows == 2

    batch = pickle.loads(pickle.dumps(BatchReader(ReadOptions.parse({**given, "tls": "true"}), ["body"])))
    (task,) = batch.partitions()
    assert bodies(batch.read(task)) == [b"first flush", b"second flush"]

    stream = StreamReader(ReadOptions.parse({**given, "group": "etl"}), ["body"])
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    (part,) = stream.partitions(start, end)
    assert isinstance(part, Task)
    assert bodies(stream.read(part)) == [b"first flush", b"second flush"]

    tls = {name: value for name, value in given.items() if name.startswith("tls")}
    check_archive(tmp_path / "archive", nameservers=given["nameservers"], topics=["tea"], tls=tls)


def bodies(batches: Iterator[pa.RecordBatch]) -> list[bytes]:
    return [body for batch in batches for body in batch.column("body").to_pylist()]


def test_an_error_names_the_option_that_helps(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_answered", set())  # as in a new process: no patience
    plain = {name: value for name, value in given.items() if not name.startswith("tls")}
    with pytest.raises(NotConnected, match=r"requires TLS.*in Spark the option tls"):
        BatchReader(ReadOptions.parse(plain), ["body"]).partitions()
    with pytest.raises(NotConnected, match=r"TLS handshake with .*in Spark the option tlsCa"):
        BatchReader(ReadOptions.parse({**plain, "tls": "true"}), ["body"]).partitions()
    with pytest.raises(ConfigError, match=r"none\.pem"):
        BatchReader(ReadOptions.parse({**plain, "tlsCa": "/none.pem"}), ["body"]).partitions()


def test_clients_are_kept_by_how_they_speak() -> None:
    plain = connection.reader("127.0.0.1:1")
    unverified = connection.reader("127.0.0.1:1", tls=Tls(verify=False))
    assert unverified is not plain
    assert connection.reader("127.0.0.1:1", tls=Tls(verify=False)) is unverified
    assert connection.admin("127.0.0.1:1", tls=Tls()) is not connection.admin("127.0.0.1:1")
    assert connection.producer("127.0.0.1:1", tls=Tls()) is not connection.producer("127.0.0.1:1")


@pytest.mark.parametrize(
    ("given", "environment", "found"),
    [
        ({}, {}, None),
        ({"tls": "true"}, {}, Tls()),
        ({"tls": "TRUE", "tlsNoVerify": "true"}, {}, Tls(verify=False)),
        ({"tlsNoVerify": "false"}, {}, None),
        ({"tlsCa": "a"}, {}, Tls("a")),
        ({"tls": "true", "tlsCert": "c", "tlsKey": "k"}, {}, Tls(cert="c", key="k")),
        ({}, {"KAPPAMQ_TLS_CA": "a"}, Tls("a")),
        ({}, {"KAPPAMQ_TLS": "1", "KAPPAMQ_TLS_CERT": "c", "KAPPAMQ_TLS_KEY": "k"}, Tls(cert="c", key="k")),
        ({}, {"KAPPAMQ_TLS": "0", "KAPPAMQ_TLS_CERT": "c"}, None),
        ({"tlsCa": "b"}, {"KAPPAMQ_TLS_CA": "a"}, Tls("b")),
        ({"tls": "false"}, {"KAPPAMQ_TLS_CA": "a"}, None),
    ],
)
def test_options_and_environment(given: dict[str, str], environment: dict[str, str], found: Tls | None) -> None:
    assert tls_options(given, environment) == found


@pytest.mark.parametrize(
    ("given", "environment", "told"),
    [
        ({"tls": "maybe"}, {}, "tls='maybe' must be true or false"),
        ({}, {"KAPPAMQ_TLS": "maybe"}, r"\$KAPPAMQ_TLS='maybe' must be true or false"),
        ({"tls": "false", "tlsCa": "a"}, {}, "tls=false disables TLS, but tlsCa is set"),
        ({"tlsCert": "c", "tlsKey": "k"}, {}, "tlsCert requires TLS: set the option tls to true"),
        ({"tls": "true", "tlsCert": "c"}, {}, "tlsCert and tlsKey belong together"),
    ],
)
def test_options_that_contradict_each_other(given: dict[str, str], environment: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        tls_options(given, environment)

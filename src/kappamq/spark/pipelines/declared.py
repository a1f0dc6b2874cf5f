"""Runs a project once, by Spark Declarative Pipelines: a Spark Connect server inside of our own Spark, and its client."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from kappamq.errors import ConfigError, KappaError
from kappamq.spark.failures import sentence
from kappamq.spark.pipelines import culprit, failure
from kappamq.spark.pipelines.definitions import Definition, Definitions, importing, load, wrong_definitions
from kappamq.spark.pipelines.progress import Batch, Watch
from kappamq.spark.pipelines.project import Project, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED: Final = {"grpc": "grpcio", "google.rpc": "googleapis-common-protos", "pandas": "pandas", "yaml": "pyyaml"}
_TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"
_SERVICE: Final = "org.apache.spark.sql.connect.service"
_POLL_S: Final = 0.2

Told = Callable[[str], None]
Reported = Callable[[Batch], None]


def properties() -> dict[str, str]:
    """Return the properties with which Spark has to be started so that `run` can use it."""
    os.environ.setdefault(_TOKEN, secrets.token_urlsafe(32))  # the server is only for this process
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.sql.artifact.isolation.enabled": "true",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    }


def check_installed() -> None:
    """Raise ConfigError if a package that Spark Declarative Pipelines needs is missing."""
    from importlib.util import find_spec

    from kappamq.spark.engine import not_installed
    from kappamq.spark.java import INSTALL

    missing = [package for module, package in NEEDED.items() if find_spec(module.split(".")[0]) is None]
    if missing:
        raise ConfigError(f"{not_installed(missing)}: {INSTALL} installs everything that is needed")


def run(
    spark: SparkSession,
    project: Project,
    *,
    full_refresh: bool = False,
    told: Told = lambda _text: None,
    reported: Reported = lambda _batch: None,
) -> dict[str, int]:
    """Run every flow until it has read everything there was; returns the rows that each streaming dataset has read.

    Raises PipelineFailed, or the error of our source or sink, prefixed with the dataset."""
    targets: dict[str, str] = {}  # of each flow, filled while the definitions are loaded, before a stream begins
    watch = Watch(spark, lambda flow: targets.get(project.dataset(flow), project.dataset(flow)))
    event = _LastFailure()
    try:
        with _watching(watch, reported):
            for text in _events(spark, project, full_refresh, targets):
                event.note(text)
                told(text.splitlines()[0])
    except KappaError:
        raise
    except Exception as error:
        from pyspark.errors import PySparkException

        if not isinstance(error, PySparkException):
            raise
        raise _explained(spark, project, watch, event, error) from error
    return watch.rows


class _LastFailure:
    """The flow that an event named as failed: for a flow that is not a stream, Spark reports it only there."""

    def __init__(self) -> None:
        self.flow: str | None = None
        self.text = ""

    def note(self, event: str) -> None:
        flow = failure.failed_flow(event)
        if flow is not None and self.flow is None:
            self.flow, self.text = flow, event


def _events(spark: SparkSession, project: Project, full_refresh: bool, targets: dict[str, str]) -> Iterator[str]:
    """Declare the project to Spark Connect, start the run, and yield the events that Spark reports."""
    from pyspark.pipelines.cli import register_definitions, unpack_pipeline_spec
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    specification = unpack_pipeline_spec(
        {
            "name": project.name,
            "storage": project.storage,
            "catalog": project.catalog,
            "database": project.database,
            "configuration": project.configuration,
            "libraries": [{"glob": {"include": str(path.relative_to(project.root))}} for path in project.definitions],
        }
    )
    with _connected(spark) as remote:
        graph = create_dataflow_graph(
            remote,
            default_catalog=project.catalog,
            default_database=project.database,
            sql_conf=project.configuration,
        )

        class Registry(SparkConnectGraphElementRegistry):
            def register_flow(self, flow: Any) -> None:
                targets[project.dataset(flow.name)] = flow.target
                super().register_flow(flow)

        registry = Registry(remote, graph)
        with importing(project), _without_log(), wrong_definitions(str(project.root)):
            register_definitions(project.specification, registry, specification, remote, graph)
        answers = start_run(
            remote,
            graph,
            full_refresh=[],
            full_refresh_all=full_refresh,
            refresh=[],
            dry=False,
            storage=project.storage,
        )
        for answer in answers:
            if "pipeline_event_result" in answer:
                yield answer["pipeline_event_result"].event.message


@contextmanager
def _connected(spark: SparkSession) -> Iterator[Any]:
    """A client of the Spark Connect server in this Spark. While it is open, PySpark's functions make columns for it, not for our
    session."""
    from pyspark.sql.connect.session import SparkSession as Client

    jvm: Any = spark._jvm
    for part in _SERVICE.split("."):
        jvm = getattr(jvm, part)
    port = getattr(getattr(jvm, "SparkConnectService$"), "MODULE$").localPort()
    builder: Any = Client.builder
    # Only for this host name PySpark sends the token without TLS.
    client = builder.remote(f"sc://localhost:{port}").create()
    os.environ[_MODE] = "1"
    try:
        yield client
        client.stop()
    except Exception:
        client.stop()  # not for an interrupt: Java is gone by then, and the client would keep retrying for minutes
        raise
    finally:
        os.environ.pop(_MODE, None)


@contextmanager
def _without_log() -> Iterator[None]:
    """Redirect what Spark's command prints about imported files: our commands use standard output for results."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextmanager
def _watching(watch: Watch, reported: Reported) -> Iterator[None]:
    """Poll the streams while Spark runs them. A stream that ends between two polls is known already, since a batch takes longer than
    that."""
    from py4j.protocol import Py4JError

    done = threading.Event()

    def look() -> None:
        while not done.wait(_POLL_S):
            try:
                for batch in watch.poll():
                    reported(batch)
            except Py4JError:
                return  # Java is gone: an interrupt ended it

    thread = threading.Thread(target=look, name="pipeline-progress", daemon=True)
    thread.start()
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        _stopped(thread, done)
        raise
    else:
        _stopped(thread, done)
        for batch in watch.poll():
            reported(batch)


def _stopped(thread: threading.Thread, done: threading.Event) -> None:
    done.set()
    thread.join(10)


def _explained(
    spark: SparkSession, project: Project, watch: Watch, event: _LastFailure, error: Exception
) -> KappaError:
    failed = watch.failed()
    if failed is not None:
        return explained(spark, project, project.dataset(failed[0]), failed[1])
    return explained(spark, project, project.dataset(event.flow) if event.flow else None, event.text or sentence(error))


def explained(spark: SparkSession, project: Project, flow: str | None, text: str) -> KappaError:
    """Return the error to raise for a flow that failed: with its dataset and, if its data is at fault, the row."""
    definition = _definition(spark, project, flow) if flow is not None else None
    dataset = definition.target if definition is not None else flow
    if definition is None or not failure.is_about_data(text):
        return failure.explained(dataset, text)
    checkpoint = None
    if not definition.is_materialized:
        place = project.checkpoint(definition.target, definition.name, is_table=definition.is_table)
        checkpoint = local_path(place)
    rows = culprit.find(spark, definition, checkpoint, f"{project.catalog}.{project.database}")
    return failure.explained(dataset, text, str(rows) if rows is not None else None)


def _definition(spark: SparkSession, project: Project, flow: str) -> Definition | None:
    """Load the definitions once more, for one of our sessions."""
    try:
        definitions: Definitions = load(project, spark)
        return next((found for found in definitions.all() if project.dataset(found.name) == flow), None)
    except KappaError:
        return None  # only Spark can run some of them: then its own error text must suffice

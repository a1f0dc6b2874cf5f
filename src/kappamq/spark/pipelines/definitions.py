"""The datasets and flows of a project as declared: a registry for `pyspark.pipelines` in place of Spark Connect's."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
from pyspark.pipelines.output import MaterializedView, Output, Sink, Table, TemporaryView

from kappamq.errors import ConfigError, KappaError

if TYPE_CHECKING:
    from pyspark.pipelines.flow import AutoCdcFlow, Flow
    from pyspark.sql import DataFrame

    from kappamq.spark.pipelines.project import Project

SESSION: Final = "spark"
"""The name of the session in a definition file."""


@dataclass(slots=True)
class Definition:
    """A flow, its target, and the module that declares it."""

    name: str
    target: str
    output: Output
    read: Callable[[], DataFrame]
    module: Any = None

    @property
    def is_view(self) -> bool:
        return isinstance(self.output, TemporaryView)

    @property
    def is_materialized(self) -> bool:
        return isinstance(self.output, MaterializedView)

    @property
    def is_sink(self) -> bool:
        return isinstance(self.output, Sink)

    @property
    def is_table(self) -> bool:
        return isinstance(self.output, Table)


@dataclass(slots=True)
class Definitions(GraphElementRegistry):
    """The declarations, in the order of their files."""

    flows: list[Flow] = field(default_factory=list)
    outputs: dict[str, Output] = field(default_factory=dict)
    modules: dict[str, Any] = field(default_factory=dict)  # file -> module

    def register_output(self, output: Output) -> None:
        self.outputs[output.name] = output

    def register_flow(self, flow: Flow) -> None:
        self.flows.append(flow)

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        raise ConfigError(
            f"{flow.target} is made by create_auto_cdc_flow, which only Spark Declarative Pipelines can run: leave out --follow"
        )

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        raise ConfigError(
            f"{file_path} declares datasets in SQL, which only Spark Declarative Pipelines can run: "
            "leave out --follow, or declare them in Python"
        )

    def all(self) -> Iterator[Definition]:
        """Raises ConfigError for a flow without a target."""
        for flow in self.flows:
            output = self.outputs.get(flow.target)
            if output is None:
                raise ConfigError(f"the flow {flow.name} writes to {flow.target}, which is not declared")
            code = getattr(flow.func, "__code__", None)
            module = self.modules.get(code.co_filename) if code is not None else None
            yield Definition(flow.name, flow.target, output, flow.func, module)


def load(project: Project, session: Any) -> Definitions:
    """Import the definition files; each has `session` as the variable `spark`, as Spark's own command gives it."""
    found = Definitions()
    with importing(project), graph_element_registration_context(found):
        for file in project.definitions:
            if file.suffix == ".sql":
                found.register_sql("", file.relative_to(project.root))
            found.modules[str(file)] = import_file(file, session)
    return found


def import_file(file: Path, session: Any) -> Any:
    """Run a definition file. Raises ConfigError if that fails."""
    specification = importlib.util.spec_from_file_location(file.stem, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    module.__dict__[SESSION] = session
    with wrong_definitions(str(file)):
        specification.loader.exec_module(module)
    return module


@contextmanager
def wrong_definitions(what: str) -> Iterator[None]:
    """Wraps code of a project: exceptions other than Spark's and ours become a ConfigError."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (KappaError, PySparkException, Py4JError):
        raise
    except Exception as error:
        raise ConfigError(f"{what} cannot be used: {type(error).__name__}: {error}") from error


@contextmanager
def importing(project: Project) -> Iterator[None]:
    """Let definition files import modules of the project's folder."""
    sys.path.insert(0, str(project.root))
    try:
        yield
    finally:
        sys.path.remove(str(project.root))

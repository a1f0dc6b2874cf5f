"""A stream that cannot be read says why, whatever Spark asks it first."""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kappamq.errors import ConfigError
from kappamq.spark.refused_stream import RefusedStream


def test_a_refused_stream_says_why_whatever_it_is_asked() -> None:
    refused = RefusedStream(ConfigError("the option topic is empty"))
    for ask in (
        refused.initialOffset,
        refused.getDefaultReadLimit,
        refused.prepareForTriggerAvailableNow,
        lambda: refused.latestOffset({}, ReadAllAvailable()),
        lambda: refused.partitions({}, {}),
    ):
        with pytest.raises(ConfigError, match="the option topic is empty"):
            ask()

"""Columns and schemas: a projection is taken, what does not fit is refused with what would."""

from __future__ import annotations

import pytest

from kappamq.errors import ConfigError
from kappamq.spark.columns.schema import COLUMNS, Projection, check_columns, check_schema, ddl


def test_all_columns_by_default() -> None:
    assert ddl().startswith("topic string, brokerName string, queueId int, queueOffset bigint")
    assert ddl(["body"]) == "body binary"
    assert check_columns(list(COLUMNS)) == tuple(COLUMNS)


def test_a_schema_is_a_projection() -> None:
    from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

    schema = StructType([StructField("body", BinaryType()), StructField("queueOffset", LongType())])
    assert check_schema(schema) == Projection(("body", "queueOffset"))
    schema = StructType([StructField("body", BinaryType()), StructField("queueOffset", LongType(), nullable=False)])
    assert check_schema(schema) == Projection(("body", "queueOffset"), frozenset({"queueOffset"}))
    with pytest.raises(ConfigError, match="column tags may be null here: declare it without NOT NULL"):
        check_schema(StructType([StructField("tags", StringType(), nullable=False)]))
    with pytest.raises(ConfigError, match="column body is binary, not string: declare it as body binary, and cast"):
        check_schema(StructType([StructField("body", StringType())]))
    with pytest.raises(ConfigError, match="unknown column 'bod'"):
        check_schema(StructType([StructField("bod", StringType())]))
    with pytest.raises(ConfigError, match="no column is named"):
        check_schema(StructType([]))

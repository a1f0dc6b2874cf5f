"""Columns and schemas: a projection is taken, what does not fit is refused with what would."""

from __future__ import annotations

import pytest

from kappamq.errors import ConfigError
from kappamq.spark.columns.schema import COLUMNS, check_columns, check_schema, ddl


def test_all_columns_by_default() -> None:
    assert ddl().startswith("topic string, brokerName string, queueId int, queueOffset bigint")
    assert ddl(["body"]) == "body binary"
    assert check_columns(list(COLUMNS)) == tuple(COLUMNS)


def test_a_schema_is_a_projection() -> None:
    from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

    schema = StructType([StructField("body", BinaryType()), StructField("queueOffset", LongType())])
    assert check_schema(schema) == ("body", "queueOffset")
    with pytest.raises(ConfigError, match="column body is binary, not string: declare it as body binary"):
        check_schema(StructType([StructField("body", StringType())]))
    with pytest.raises(ConfigError, match="unknown column 'bod'"):
        check_schema(StructType([StructField("bod", StringType())]))
    with pytest.raises(ConfigError, match="no column is named"):
        check_schema(StructType([]))

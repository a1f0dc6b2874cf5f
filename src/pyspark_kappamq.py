"""Spark finds the format `kappamq` by this module: it looks for a class DefaultSource in every module named pyspark_*."""

from kappamq.spark.topic.source import KappaMQSource


class DefaultSource(KappaMQSource):
    """The format `kappamq`, without a call of `spark.dataSource.register`."""

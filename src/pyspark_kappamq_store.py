"""Spark finds the format `kappamq.store` by this module: it looks for a class DefaultSource in every module named pyspark_*."""

from kappamq.spark.store.source import KappaMQStore


class DefaultSource(KappaMQStore):
    """The format `kappamq.store`, without a call of `spark.dataSource.register`."""

"""Declarative pipelines: a project folder of datasets, run once by Spark Declarative Pipelines, or resident as Structured Streaming.

The transformations are written once, as PySpark's `pyspark.pipelines` wants them. Importing them calls the registry that is active:
Spark's own sends them to Spark Connect (`declared`), ours keeps them (`definitions`), to be started as plain streams (`resident`) or to be
run over a few rows until the one is found that makes them fail (`culprit`). Both ways use the same tables and checkpoints, so a project can
change from one to the other at any time.
"""

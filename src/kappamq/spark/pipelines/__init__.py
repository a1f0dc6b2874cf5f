"""Declarative pipelines: a project folder of datasets, run once by Spark Declarative Pipelines, or resident as Structured Streaming.

The transformations are written once, for PySpark's `pyspark.pipelines`. Importing them calls the active registry:
Spark's own sends them to Spark Connect (`declared`), ours keeps them (`definitions`), to start them as plain streams (`resident`) or to
run them over a few rows to find the one that makes them fail (`culprit`). Both ways use the same tables and checkpoints, so a project can
change from one to the other at any time.
"""

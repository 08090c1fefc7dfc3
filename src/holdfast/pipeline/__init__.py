"""The pipeline on Spark. The only package that imports pyspark."""

from holdfast.pipeline import sinks, sources
from holdfast.pipeline.aggregates import (
    Aggregate,
    avg,
    count,
    count_distinct,
    max,
    min,
    stddev,
    sum,
    variance,
)
from holdfast.pipeline.declare.joins import interval
from holdfast.pipeline.pipeline import Pipeline
from holdfast.pipeline.report import EpochReport, RunSummary
from holdfast.pipeline.run_command import run_command
from holdfast.pipeline.stream import Stream
from holdfast.pipeline.windows import sliding, tumbling

__all__ = [
    "Aggregate",
    "EpochReport",
    "Pipeline",
    "RunSummary",
    "Stream",
    "avg",
    "count",
    "count_distinct",
    "interval",
    "max",
    "min",
    "run_command",
    "sinks",
    "sliding",
    "sources",
    "stddev",
    "sum",
    "tumbling",
    "variance",
]

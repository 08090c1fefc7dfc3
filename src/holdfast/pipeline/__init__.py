"""The pipeline on Spark. The only package that imports pyspark."""

from holdfast.pipeline import sinks, sources
from holdfast.pipeline.aggregates import (
    Aggregate,
    approx_count_distinct,
    avg,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    max,
    median,
    min,
    percentile,
    stddev,
    sum,
    udaf,
    variance,
)
from holdfast.pipeline.declare.joins import interval
from holdfast.pipeline.operators.apply import ApplyContext
from holdfast.pipeline.pipeline import Pipeline
from holdfast.pipeline.report import EpochReport, RunSummary
from holdfast.pipeline.run_command import run_command
from holdfast.pipeline.stream import Stream
from holdfast.pipeline.windows import sliding, tumbling

__all__ = [
    "Aggregate",
    "ApplyContext",
    "EpochReport",
    "Pipeline",
    "RunSummary",
    "Stream",
    "approx_count_distinct",
    "avg",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "first",
    "interval",
    "last",
    "max",
    "median",
    "min",
    "percentile",
    "run_command",
    "sinks",
    "sliding",
    "sources",
    "stddev",
    "sum",
    "tumbling",
    "udaf",
    "variance",
]

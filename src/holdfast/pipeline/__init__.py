"""The pipeline on Spark. The only package that imports pyspark."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast._lazy import lazy_name

if TYPE_CHECKING:
    from holdfast.operators.apply.execute import ApplyContext
    from holdfast.operators.join.declare import interval
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
    from holdfast.pipeline.command import run_command
    from holdfast.pipeline.pipeline import Pipeline
    from holdfast.pipeline.report import EpochReport, RunSummary
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

# Loaded when first asked for: a task on an executor does not pay for what plans epochs.
_WHERE = {
    "Aggregate": "holdfast.pipeline.aggregates",
    "ApplyContext": "holdfast.operators.apply.execute",
    "EpochReport": "holdfast.pipeline.report",
    "Pipeline": "holdfast.pipeline.pipeline",
    "RunSummary": "holdfast.pipeline.report",
    "Stream": "holdfast.pipeline.stream",
    "approx_count_distinct": "holdfast.pipeline.aggregates",
    "avg": "holdfast.pipeline.aggregates",
    "collect_list": "holdfast.pipeline.aggregates",
    "collect_set": "holdfast.pipeline.aggregates",
    "count": "holdfast.pipeline.aggregates",
    "count_distinct": "holdfast.pipeline.aggregates",
    "first": "holdfast.pipeline.aggregates",
    "interval": "holdfast.operators.join.declare",
    "last": "holdfast.pipeline.aggregates",
    "max": "holdfast.pipeline.aggregates",
    "median": "holdfast.pipeline.aggregates",
    "min": "holdfast.pipeline.aggregates",
    "percentile": "holdfast.pipeline.aggregates",
    "run_command": "holdfast.pipeline.command",
    "sliding": "holdfast.pipeline.windows",
    "stddev": "holdfast.pipeline.aggregates",
    "sum": "holdfast.pipeline.aggregates",
    "tumbling": "holdfast.pipeline.windows",
    "udaf": "holdfast.pipeline.aggregates",
    "variance": "holdfast.pipeline.aggregates",
}
_PACKAGES = frozenset({"sinks", "sources"})


def __getattr__(name: str) -> Any:
    """A name of `__all__`, from its module."""
    if name in _PACKAGES:
        return import_module(f"holdfast.pipeline.{name}")
    return lazy_name(__name__, _WHERE, name)

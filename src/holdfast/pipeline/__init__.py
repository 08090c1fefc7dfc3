"""The pipeline on Spark. The only package that imports pyspark."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast._lazy import lazy_name

if TYPE_CHECKING:
    from holdfast.api.functions import (
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
    from holdfast.api.pipeline import Pipeline
    from holdfast.api.stream import Stream
    from holdfast.api.windows import sliding, tumbling
    from holdfast.operators.apply.execute import ApplyContext
    from holdfast.operators.join.declare import interval
    from holdfast.pipeline import sinks, sources
    from holdfast.runtime.report import EpochReport, RunSummary
    from holdfast.runtime.run_command import run_command

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
    "Aggregate": "holdfast.api.functions",
    "ApplyContext": "holdfast.operators.apply.execute",
    "EpochReport": "holdfast.runtime.report",
    "Pipeline": "holdfast.api.pipeline",
    "RunSummary": "holdfast.runtime.report",
    "Stream": "holdfast.api.stream",
    "approx_count_distinct": "holdfast.api.functions",
    "avg": "holdfast.api.functions",
    "collect_list": "holdfast.api.functions",
    "collect_set": "holdfast.api.functions",
    "count": "holdfast.api.functions",
    "count_distinct": "holdfast.api.functions",
    "first": "holdfast.api.functions",
    "interval": "holdfast.operators.join.declare",
    "last": "holdfast.api.functions",
    "max": "holdfast.api.functions",
    "median": "holdfast.api.functions",
    "min": "holdfast.api.functions",
    "percentile": "holdfast.api.functions",
    "run_command": "holdfast.runtime.run_command",
    "sliding": "holdfast.api.windows",
    "stddev": "holdfast.api.functions",
    "sum": "holdfast.api.functions",
    "tumbling": "holdfast.api.windows",
    "udaf": "holdfast.api.functions",
    "variance": "holdfast.api.functions",
}
_PACKAGES = frozenset({"sinks", "sources"})


def __getattr__(name: str) -> Any:
    """A name of `__all__`, from its module."""
    if name in _PACKAGES:
        return import_module(f"holdfast.pipeline.{name}")
    return lazy_name(__name__, _WHERE, name)

"""A new operator is one declaration, one analysis and one task: here a toy, over a restart.

`alarm` gives a key once, when the amounts of its rows have come to more than a limit. In Holdfast
its three parts would be `declare.py`, `analyze.py` and `execute.py` of one folder, and `alarm` a
method of `Stream`; see "Add an operator" in CONTRIBUTING.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.errors import InvalidInputError
from holdfast.operators.base import (
    Analyzed,
    EpochContext,
    OperatorTask,
    TaskResult,
    group_by_key,
    weights_of,
)
from holdfast.operators.columns import HASH
from holdfast.operators.declaration import Declaration, checked_names
from holdfast.state import TraceSchema
from holdfast.testing import SimulatedCrash, crash_at

AMOUNT = "__hf_amount"


# declare.py


@dataclass(frozen=True, eq=False, kw_only=True)
class AlarmDeclaration(Declaration):
    """Keys whose amounts come to more than a limit."""

    kind: ClassVar[str] = "alarm"
    amount: str
    limit: int

    def fingerprint(self) -> Mapping[str, str]:
        """Another limit is another operator: its state would not fit."""
        return {"amount": self.amount, "limit": str(self.limit)}

    def analyze(self, frames: Sequence[Any], *, late_rows: bool) -> Analyzed:
        """The key, and the amount as a long."""
        del late_rows
        return analyze_alarm(self, frames[0])


def alarm(stream: hf.Stream, key: str, *, amount: str, limit: int, name: str) -> hf.Stream:
    """What would be a method of `Stream`."""
    checked_names([key, amount], stream.node, name)
    return stream.operator(
        AlarmDeclaration(
            columns=[key],
            retracts=False,
            name=name,
            inputs=(stream.node,),
            keys=(key,),
            amount=amount,
            limit=limit,
        )
    )


# analyze.py


def analyze_alarm(node: AlarmDeclaration, df: Any) -> Analyzed:
    """Types are asked from Spark, on an empty frame."""
    from holdfast.operators.analyze import hash_text, key_schema, projected
    from holdfast.spark.ddl import quoted

    task = AlarmTask(node.name, key_schema(node, df, node.keys), node.limit)
    keys = [quoted(name) for name in node.keys]
    amount = f"cast({quoted(node.amount)} AS long) AS {AMOUNT}"
    return projected(node, task, f"{hash_text(node.keys)} AS {HASH}", *keys, amount)


# execute.py


@dataclass(frozen=True)
class AlarmTask(OperatorTask):
    """Sums by key; a key shows when its sum passes the limit."""

    name: str
    keys: Any
    limit: int

    @property
    def traces(self) -> Mapping[str, TraceSchema]:
        """The sum of every key."""
        return {self.name: TraceSchema.latest(self.keys, pa.schema([("_total", pa.int64())]))}

    @property
    def output(self) -> Any:
        """The key."""
        return self.keys

    def visible(self, rows: Any) -> Any:
        """Of the view, keys above the limit."""
        return rows.filter(pc.greater(rows.column("_total"), self.limit))

    def process(self, rows: Any, traces: Mapping[str, Any], context: EpochContext) -> TaskResult:
        """Old sums and what came."""
        del context
        if not rows.num_rows:
            return TaskResult(pa.RecordBatch.from_pylist([], schema=self.output))
        groups, columns = group_by_key(rows, self.keys.names)
        first = pa.array(groups.first())
        keys = [column.take(first) for column in columns]
        probe = pa.RecordBatch.from_arrays(
            [rows.column(HASH).take(first), *keys], names=[HASH, *self.keys.names]
        )
        answer = traces[self.name].lookup(probe)
        stored = pc.fill_null(answer.values.column(0), 0).to_numpy(zero_copy_only=False)
        before = np.where(answer.found, stored, 0)
        amounts = pc.fill_null(rows.column(AMOUNT), 0).to_numpy(zero_copy_only=False)
        after = before + groups.sums(amounts * weights_of(rows))
        passed = pa.array((before <= self.limit) & (after > self.limit))
        output = pa.RecordBatch.from_arrays(keys, schema=self.output).filter(passed)
        update = probe.append_column("_total", pa.array(after))
        update = update.append_column("__hf_deleted", pa.array(np.zeros(len(after), np.bool_)))
        return TaskResult(output, {self.name: update}, {"keys": len(after)})


# The operator at work


@pytest.fixture(autouse=True)
def sent_by_value():
    """Workers cannot import this file; an operator of a package needs nothing of the kind."""
    from pyspark import cloudpickle

    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


def write(home, number: int, rows: Sequence[tuple[str, int]]) -> None:
    (home / "in").mkdir(exist_ok=True)
    lines = "".join(f'{{"k": "{key}", "x": {amount}}}\n' for key, amount in rows)
    (home / "in" / f"{number}.json").write_text(lines)


def build(home, spark, *, limit: int = 10, partitions: int = 2) -> hf.Pipeline:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
    source = hf.sources.Files(home / "in", schema="k string, x long", files_max=1)
    alarms = alarm(pipe.source("s", source), "k", amount="x", limit=limit, name="alarms")
    counts = alarms.group_by("k").agg(n=hf.count(), name="counts")
    pipe.sink("out", alarms, hf.sinks.Parquet(home / "out"))
    pipe.sink("counts_out", counts, hf.sinks.Parquet(home / "counts"))
    return pipe


def test_an_operator_of_ones_own_runs_in_a_pipeline_and_over_a_restart(spark, tmp_path) -> None:
    """Its state is kept, its output is exactly once, and others follow it, over a crash."""
    write(tmp_path, 0, [("a", 4), ("b", 20), ("c", 3)])
    write(tmp_path, 1, [("a", 5), ("b", 1), ("c", 3)])
    build(tmp_path, spark).run()
    write(tmp_path, 2, [("a", 2), ("c", 3)])
    with pytest.raises(SimulatedCrash), crash_at("epoch.after_execute"):
        build(tmp_path, spark).run()
    pipe = build(tmp_path, spark, partitions=3)
    pipe.run()
    published = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row.k for row in published.collect()) == ["a", "b"]
    assert sorted(pipe.view("alarms").to_arrow()["k"].to_pylist()) == ["a", "b"]
    assert sorted(row.k for row in pipe.view("alarms").to_spark().collect()) == ["a", "b"]
    counts = pipe.view("counts").to_arrow().to_pylist()
    assert sorted((row["k"], row["n"]) for row in counts) == [("a", 1), ("b", 1)]
    with pytest.raises(hf.errors.IncompatibleError):
        build(tmp_path, spark, limit=11).run()


def test_an_operator_of_ones_own_is_checked_as_any_other(tmp_path) -> None:
    """Its name is its own, and what it has no rows for is refused, before Spark starts."""
    pipe = hf.Pipeline("p", store=tmp_path / "cp")
    rows = pipe.source("s", hf.sources.Files(tmp_path / "in", schema="k string, x long"))
    alarms = alarm(rows, "k", amount="x", limit=1, name="alarms")
    for wrong, kind in (
        (lambda: alarm(rows, "k", amount="x", limit=1, name="alarms"), "duplicate_name"),
        (lambda: alarm(rows, "k", amount="y", limit=1, name="other"), "unknown_column"),
        (lambda: alarms.late, "no_late_rows"),
    ):
        with pytest.raises(InvalidInputError) as refused:
            wrong()
        assert refused.value.kind == kind

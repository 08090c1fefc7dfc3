"""What an epoch has seen of its rows: those that no source could read, and failed expectations.

Invariants:
- Verdicts are counted by the job that computes the epoch, never by one of their own.
- An epoch that is to fail fails before anything of it is taken in: positions, state and outputs
  stay as they were.
- Of a changelog the rows that are given count, not those that are retracted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidInputError
from holdfast.operators.columns import FAILED, WEIGHT
from holdfast.operators.declaration import Expectation, upstream
from holdfast.runtime.bad_rows import BadCounts, BadRows, ObservedBad, refuse_bad
from holdfast.runtime.graph import Graph
from holdfast.spark.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("holdfast.pipeline")
_ROW_SHOWN = 300


@dataclass(frozen=True)
class Verdicts:
    """How many rows met an expectation, and how many failed. first: one that failed, as JSON."""

    passed: int = 0
    failed: int = 0
    first: str | None = None

    def __add__(self, other: Verdicts) -> Verdicts:
        """Of both epochs."""
        passed, failed = self.passed + other.passed, self.failed + other.failed
        return Verdicts(passed, failed, self.first or other.first)


@dataclass(frozen=True)
class Quality:
    """What one epoch has seen."""

    bad: Mapping[str, BadRows] = field(default_factory=dict)
    expectations: Mapping[str, Verdicts] = field(default_factory=dict)


@dataclass(frozen=True)
class ObservedExpectation:
    """Counts verdicts while a job computes them."""

    expectation: Expectation
    observation: Any

    def read(self) -> Verdicts:
        """What was seen; asked after the job."""
        try:
            found = self.observation.get
        except Exception as error:  # noqa: BLE001 - Spark has no typed error for a metric that is not there
            log.warning("expectation %s was not counted: %s", self.expectation.name, error)
            return Verdicts()
        failed, rows = (int(found.get(name) or 0) for name in ("failed", "rows"))
        return Verdicts(rows - failed, failed, found.get("first"))


def observe_expectation(
    expectation: Expectation, frame: DataFrame
) -> tuple[DataFrame, ObservedExpectation]:
    """Watch the verdicts of an expectation go by, without a job of its own."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    given = f"greatest({WEIGHT}, 0L)" if WEIGHT in frame.columns else "1L"
    names = ", ".join(quoted(name) for name in frame.columns if not name.startswith("__hf_"))
    row = f"substring(to_json(struct({names})), 1, {_ROW_SHOWN})"
    watched = Observation()
    seen = frame.observe(
        watched,
        F.expr(f"sum(CASE WHEN {FAILED} THEN {given} ELSE 0L END)").alias("failed"),
        F.expr(f"sum({given})").alias("rows"),
        F.expr(f"min(CASE WHEN {FAILED} AND {given} > 0 THEN {row} END)").alias("first"),
    )
    return seen, ObservedExpectation(expectation, watched)


def read_quality(
    graph: Graph,
    epoch: int,
    bad: Mapping[str, ObservedBad],
    expected: Mapping[str, ObservedExpectation],
) -> Quality:
    """What a job has seen; raises where a source or an expectation is to fail the epoch."""
    quality = Quality(
        {name: seen.read() for name, seen in bad.items()},
        {name: seen.read() for name, seen in expected.items()},
    )
    refuse_bad(quality.bad, graph.sources, epoch)
    for name, outcome in quality.expectations.items():
        expectation = expected[name].expectation
        if outcome.failed and expectation.on_fail == "fail":
            raise InvalidInputError(
                "rows fail an expectation",
                kind="expectation_failed",
                expectation=name,
                condition=expectation.condition,
                epoch=epoch,
                rows=outcome.failed,
                row=outcome.first,
                remedy='nothing of this epoch was kept: mend the rows, or say on_fail="quarantine"',
            )
    return quality


def taken_sources(graph: Graph) -> frozenset[str]:
    """Sources whose bad rows somebody takes."""
    return frozenset(
        node.bad_of for part in graph.nodes() for node in upstream(part) if node.bad_of is not None
    )


@dataclass
class QualityCounts:
    """What a run has seen."""

    bad: BadCounts = field(default_factory=BadCounts)
    expectations: dict[str, Verdicts] = field(default_factory=dict)

    def add(self, quality: Quality) -> None:
        """One more epoch; the first failures are logged."""
        self.bad.add(quality.bad)
        for name, outcome in quality.expectations.items():
            before = self.expectations.get(name, Verdicts())
            if outcome.failed and not before.failed:
                log.warning("expectation %s failed, first for %s", name, outcome.first)
            self.expectations[name] = before + outcome

    def notes(self, graph: Graph) -> list[str]:
        """What a person should know at the end of a run."""
        lines = self.bad.notes(taken_sources(graph))
        for name, outcome in self.expectations.items():
            if outcome.failed:
                rows = outcome.passed + outcome.failed
                lines.append(
                    f"expectation {name}: {outcome.failed} of {rows} rows failed"
                    f"; the first: {outcome.first}"
                )
        return lines

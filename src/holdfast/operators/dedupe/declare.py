"""distinct and dedupe as they are declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from holdfast.durations import Duration, duration_us
from holdfast.errors import InvalidInputError
from holdfast.operators.declaration import (
    Declaration,
    LateNode,
    Node,
    checked_names,
    late_of,
    require_watermark,
)

if TYPE_CHECKING:
    from holdfast.operators.base import Analyzed
    from holdfast.spark.annotations import DataFrame


@dataclass(frozen=True, eq=False, kw_only=True)
class DistinctDeclaration(Declaration):
    """Every distinct row once."""

    kind: ClassVar[str] = "distinct"

    def fingerprint(self) -> Mapping[str, str]:
        """The keys say it all."""
        return {}

    def analyze(self, frames: Sequence[DataFrame], *, late_rows: bool) -> Analyzed:
        """All columns are the key."""
        from holdfast.operators.dedupe.analyze import analyze_distinct

        del late_rows
        return analyze_distinct(self, frames[0])


@dataclass(frozen=True)
class DedupeBound:
    """How long a dedupe remembers a key."""

    time: str
    within_us: int


@dataclass(frozen=True, eq=False, kw_only=True)
class DedupeDeclaration(Declaration):
    """The first row of each key."""

    kind: ClassVar[str] = "dedupe"
    bound: DedupeBound | None = None

    def fingerprint(self) -> Mapping[str, str]:
        """How long keys are remembered."""
        if self.bound is None:
            return {}
        return {"time": self.bound.time, "within_us": str(self.bound.within_us)}

    def analyze(self, frames: Sequence[DataFrame], *, late_rows: bool) -> Analyzed:
        """Keys, the row, and the column of event time."""
        from holdfast.operators.dedupe.analyze import analyze_dedupe

        del late_rows
        return analyze_dedupe(self, frames[0])

    def late_rows(self) -> LateNode:
        """Rows of which nobody can tell any more whether they are duplicates."""
        if self.bound is None:
            return super().late_rows()
        before = self.inputs[0]
        return late_of(self, before.columns, retracts=before.retracts)


def distinct(before: Node, *, name: str) -> DistinctDeclaration:
    """Every distinct row once."""
    return DistinctDeclaration(
        columns=before.columns,
        retracts=before.retracts,
        name=name,
        inputs=(before,),
        keys=tuple(before.columns or ()),
    )


def dedupe(
    before: Node, keys: tuple[str, ...], *, name: str, time: str | None, within: Duration | None
) -> DedupeDeclaration:
    """The first row of each key, checked."""
    if not keys:
        raise InvalidInputError(
            "dedupe needs a key",
            kind="no_keys",
            operator=name,
            remedy='name its columns: dedupe("customer", name=...); for whole rows use distinct',
        )
    if (time is None) != (within is None):
        raise InvalidInputError(
            "time and within go together",
            kind="invalid_bound",
            operator=name,
            remedy="give both the column of event time and how long to remember a key",
        )
    if before.retracts:
        raise InvalidInputError(
            "dedupe takes the first row for good, but these rows can be retracted",
            kind="dedupe_of_changes",
            operator=name,
            remedy="use distinct, or dedupe earlier",
        )
    checked_names([*keys, *([] if time is None else [time])], before, name)
    if time is not None:
        require_watermark(before, name)
    return DedupeDeclaration(
        columns=before.columns,
        retracts=False,
        name=name,
        inputs=(before,),
        keys=keys,
        bound=None if time is None or within is None else DedupeBound(time, duration_us(within)),
    )

"""upsert as it is declared: what is checked before Spark starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from holdfast.errors import InvalidInputError
from holdfast.operators.declaration import Declaration, Node, checked_names
from holdfast.operators.sort_order import SortKey, parse_order
from holdfast.spark.ddl import is_one

if TYPE_CHECKING:
    from holdfast.operators.base import Analyzed
    from holdfast.spark.annotations import DataFrame

Missing = Literal["null", "keep"] | Mapping[str, str]
"""When a row left a column out: never, where it is null, or by column under a condition."""


@dataclass(frozen=True, eq=False, kw_only=True)
class UpsertDeclaration(Declaration):
    """The last row of each key, by a sequence or by arrival.

    sequence: empty where rows count in the order in which they came. left_out: by column, the
    condition under which a row left it out.
    """

    kind: ClassVar[str] = "upsert"
    sequence: tuple[SortKey, ...]
    delete_when: str | None
    keeps_nulls: bool
    left_out: tuple[tuple[str, str], ...]

    def fingerprint(self) -> Mapping[str, str]:
        """What is last, what deletes, and what a row may leave out."""
        params = {"sequence": ", ".join(str(key) for key in self.sequence) or "arrival"}
        if self.delete_when is not None:
            params["delete_when"] = self.delete_when
        if self.keeps_nulls:
            params["missing"] = "keep"
        return {**params, **{f"missing {column}": text for column, text in self.left_out}}

    def analyze(self, frames: Sequence[DataFrame], *, late_rows: bool) -> Analyzed:
        """The columns of the rows, and what they are ordered and deleted by."""
        from holdfast.operators.upsert.analyze import analyze_upsert

        del late_rows
        return analyze_upsert(self, frames[0])


def upsert(
    before: Node,
    keys: tuple[str, ...],
    *,
    sequence_by: str | Sequence[str] | None,
    delete_when: str | None,
    missing: Missing,
    name: str,
) -> UpsertDeclaration:
    """The last row of each key."""
    if not keys:
        raise InvalidInputError(
            "upsert needs a key",
            kind="no_keys",
            operator=name,
            remedy='name its columns: upsert("customer", name=...)',
        )
    if sequence_by is None and not before.in_order:
        raise InvalidInputError(
            "rows of an epoch come in no order here, so the last one of a key is not known",
            kind="no_arrival_order",
            operator=name,
            remedy='say which columns order them: sequence_by="lsn". Rows come in order straight '
            "from Kafka, a journal or a generator, not from files, joins, unions or operators",
        )
    sequence = () if sequence_by is None else parse_order(sequence_by, name)
    left_out = _left_out(missing, keys, name)
    plain = [key.column for key in sequence if key.plain]
    checked_names([*keys, *plain, *(column for column, _ in left_out)], before, name)
    if delete_when is not None:
        _check_condition(delete_when, "delete_when", name)
    return UpsertDeclaration(
        columns=before.columns,
        retracts=True,
        name=name,
        inputs=(before,),
        keys=keys,
        sequence=sequence,
        delete_when=delete_when,
        keeps_nulls=missing == "keep",
        left_out=left_out,
    )


def _left_out(missing: Missing, keys: tuple[str, ...], name: str) -> tuple[tuple[str, str], ...]:
    if missing in ("null", "keep"):
        return ()
    if not isinstance(missing, Mapping) or not missing:
        raise InvalidInputError(
            "unknown way to tell that a row left a column out",
            kind="invalid_option",
            operator=name,
            missing=repr(missing)[:80],
            remedy='use "null" (a null is a value), "keep" (a null keeps the old value), or '
            '{"body": "body = \'__debezium_unavailable_value\'"}',
        )
    lowered = {key.lower() for key in keys}
    for column, text in missing.items():
        if column.lower() in lowered:
            raise InvalidInputError(
                "a row cannot leave its key out",
                kind="invalid_option",
                operator=name,
                missing=column,
                remedy="name other columns than the key",
            )
        _check_condition(text, f"missing[{column!r}]", name)
    return tuple(missing.items())


def _check_condition(text: object, argument: str, name: str) -> None:
    if not isinstance(text, str) or not is_one(text):
        raise InvalidInputError(
            "a condition is SQL text",
            kind="invalid_expression",
            operator=name,
            argument=argument,
            value=repr(text)[:80],
            remedy="write it like delete_when=\"op = 'd'\"",
        )

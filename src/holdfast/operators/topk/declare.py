"""top_k and latest as they are declared: what is checked before Spark starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from holdfast.arguments import several, text_of
from holdfast.errors import InvalidInputError
from holdfast.operators.declaration import Declaration, Node, checked_names, checked_output
from holdfast.operators.sort_order import SortKey, parse_order

if TYPE_CHECKING:
    from holdfast.operators.base import Analyzed
    from holdfast.spark.annotations import DataFrame

K_MAX = 1_000_000


@dataclass(frozen=True, eq=False, kw_only=True)
class TopKDeclaration(Declaration):
    """The k first rows of each key by an ordering."""

    kind: ClassVar[str] = "top"
    order: tuple[SortKey, ...]
    k: int
    rank: str | None

    def fingerprint(self) -> Mapping[str, str]:
        """How many, by which order, and whether their place shows."""
        params = {"k": str(self.k), "order": ", ".join(str(key) for key in self.order)}
        return params if self.rank is None else {**params, "rank": self.rank}

    def analyze(self, frames: Sequence[DataFrame], *, late_rows: bool) -> Analyzed:
        """The columns that rows are ordered by."""
        from holdfast.operators.topk.analyze import analyze_top_k

        del late_rows
        return analyze_top_k(self, frames[0])


def top_k(
    before: Node,
    k: int,
    *,
    per: str | Sequence[str],
    order_by: str | Sequence[str],
    name: str,
    rank: str | None,
) -> TopKDeclaration:
    """The k first rows of each key by an ordering."""
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= K_MAX:
        raise InvalidInputError(
            "top_k needs a number of rows",
            kind="invalid_k",
            operator=name,
            k=repr(k)[:40],
            limit=K_MAX,
            remedy=f"give a whole number from 1 to {K_MAX}",
        )
    keys = several(per, "per", name)
    if rank is not None:
        text_of(rank, "rank", name, "place")
    return _declared(before, keys, parse_order(order_by, name), k, rank, name)


def latest(
    before: Node, keys: tuple[str, ...], *, order_by: str | Sequence[str], name: str
) -> TopKDeclaration:
    """The last row of each key by an ordering: the first one of the reversed ordering."""
    if not keys:
        raise InvalidInputError(
            "latest needs a key",
            kind="no_keys",
            operator=name,
            remedy='name its columns: latest("customer", order_by="at", name=...)',
        )
    order = tuple(key.reversed() for key in parse_order(order_by, name))
    return _declared(before, keys, order, 1, None, name)


def _declared(
    before: Node,
    keys: tuple[str, ...],
    order: tuple[SortKey, ...],
    k: int,
    rank: str | None,
    name: str,
) -> TopKDeclaration:
    checked_names([*keys, *(key.column for key in order if key.plain)], before, name)
    columns = before.columns
    if columns is not None:
        columns = checked_output([*columns, *([rank] if rank is not None else [])], name)
    return TopKDeclaration(
        columns=columns,
        retracts=True,
        name=name,
        inputs=(before,),
        keys=keys,
        order=order,
        k=k,
        rank=rank,
    )

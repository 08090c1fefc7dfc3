"""Declaring top_k and latest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import InvalidInputError
from holdfast.operators.sort_order import Term, parse_terms
from holdfast.runtime.graph import Node, OperatorNode, checked_names, checked_output

K_MAX = 1_000_000


@dataclass(frozen=True)
class TopDetail:
    """What the resolver of top_k and latest needs."""

    terms: tuple[Term, ...]
    k: int
    rank: str | None


def top_k_node(
    before: Node, k: int, *, per: str | Sequence[str], order_by: str | Sequence[str], name: str,
    rank: str | None,
) -> OperatorNode:  # fmt: skip
    """The k first rows of each key by an ordering."""
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= K_MAX:
        raise InvalidInputError(
            "top_k needs a number of rows", kind="invalid_k", operator=name, k=repr(k)[:40],
            limit=K_MAX,
        )  # fmt: skip
    keys = (per,) if isinstance(per, str) else tuple(per)
    return _node(before, TopDetail(parse_terms(order_by, name), k, rank), keys, name)


def latest_node(
    before: Node, keys: tuple[str, ...], *, order_by: str | Sequence[str], name: str
) -> OperatorNode:
    """The last row of each key by an ordering: the first one of the reversed ordering."""
    if not keys:
        raise InvalidInputError("latest needs a key", kind="no_keys", operator=name)
    terms = tuple(term.reversed() for term in parse_terms(order_by, name))
    return _node(before, TopDetail(terms, 1, None), keys, name)


def _node(before: Node, detail: TopDetail, keys: tuple[str, ...], name: str) -> OperatorNode:
    checked_names([*keys, *(t.column for t in detail.terms if t.plain)], before, name)
    columns = before.columns
    if columns is not None:
        rank = [detail.rank] if detail.rank is not None else []
        columns = checked_output([*columns, *rank], name)
    params = {"k": str(detail.k), "order": ", ".join(str(term) for term in detail.terms)}
    if detail.rank is not None:
        params["rank"] = detail.rank
    return OperatorNode(
        columns=columns, changes=True, name=name, befores=(before,), what="top", keys=keys,
        params=params, detail=detail,
    )  # fmt: skip

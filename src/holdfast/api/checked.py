"""Arguments of a pipeline that are looked at before anything is declared."""

from __future__ import annotations

from holdfast.arguments import whole_number
from holdfast.errors import InvalidInputError
from holdfast.ids import VNODE_COUNT


def check_connector(connector: object, wanted: type, what: str, name: str) -> None:
    """A source or a sink is one."""
    if not isinstance(connector, wanted):
        raise InvalidInputError(
            f"not a {what}",
            kind="not_a_connector",
            **{what: name},
            value=repr(connector)[:80],
            remedy=f"give one of hf.{what}s, or a class of your own that is a {wanted.__name__}",
        )


def check_partitions(partitions: int) -> int:
    """A number of partitions that vnodes can be shared among."""
    return whole_number(
        partitions, "partitions", least=1, most=VNODE_COUNT, kind="invalid_partitions"
    )

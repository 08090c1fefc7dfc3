"""Arguments of a pipeline that are looked at before anything is declared."""

from __future__ import annotations

from holdfast.arguments import instance_of, whole_number
from holdfast.errors import InvalidInputError
from holdfast.ids import VNODE_COUNT
from holdfast.settings import Settings


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


def pipeline_settings(given: Settings | None) -> Settings:
    """Settings for a pipeline; its checkpoints share files with those before."""
    settings = instance_of(
        Settings() if given is None else given, Settings, "settings", "hf.Settings(...)"
    ).for_pipeline()
    if not settings.incremental:
        raise InvalidInputError(
            "a pipeline's checkpoints are incremental",
            kind="not_incremental",
            remedy="leave incremental=True; `holdfast sync` makes self-contained copies",
        )
    return settings

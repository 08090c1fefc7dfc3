"""Source: which topics and partitions there are, looked at from time to time."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.clock import Clock
from holdfast.connectors.kafka.client import Admin, Partition, TopicInfo, refuse

LOOK_MS = 5_000
"""How long new partitions, and new topics of a pattern, may stay unnoticed."""


def check_topics(
    topics: str | Sequence[str] | None, pattern: str | None
) -> tuple[tuple[str, ...], str | None]:
    """Topics or a pattern, one of the two."""
    if (topics is None) == (pattern is None):
        refuse(
            "topics or a pattern, one of the two",
            kind="invalid_argument",
            remedy='write it like topics=["orders"] or pattern="orders-.*"',
            topics=repr(topics)[:80],
            pattern=repr(pattern)[:80],
        )
    if pattern is not None:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            refuse(
                "the pattern is no regular expression",
                kind="invalid_argument",
                remedy='write it like pattern="orders-.*"',
                pattern=repr(pattern)[:80],
                reason=str(error),
            )
        return (), pattern
    names = (topics,) if isinstance(topics, str) else tuple(topics or ())
    if not names or not all(isinstance(name, str) and name for name in names):
        refuse(
            "topics are names",
            kind="invalid_argument",
            remedy='write it like topics=["orders", "payments"]',
            topics=repr(topics)[:80],
        )
    return tuple(sorted(set(names))), None


class Topics:
    """The topics of a source as they were when somebody looked last."""

    def __init__(
        self, admin: Admin, names: Sequence[str], pattern: str | None, clock: Clock
    ) -> None:
        """Nothing is known yet."""
        self._admin, self._names, self._pattern, self._clock = admin, names, pattern, clock
        self._known: dict[str, TopicInfo] = {}
        self._looked_ms: int | None = None

    def refresh(self, *, force: bool = False) -> bool:
        """Look again if it is time to; returns whether anything is different."""
        now = self._clock.monotonic_ms()
        if not force and self._looked_ms is not None and now - self._looked_ms < LOOK_MS:
            return False
        before = self._known
        self._known = self._admin.describe(self._wanted())
        self._looked_ms = now
        return before != self._known

    def _wanted(self) -> Sequence[str]:
        if self._pattern is None:
            return self._names
        shape = re.compile(self._pattern)
        return [name for name in self._admin.names() if shape.fullmatch(name)]

    def partitions(self) -> list[Partition]:
        """Every partition of every topic."""
        return [(info.name, n) for info in self._known.values() for n in info.partitions]

    def ids(self) -> dict[str, str]:
        """The id of every topic."""
        return {info.name: info.ident for info in self._known.values()}

"""Sink: what was published, as a record of a compacted topic that commits with the rows.

Invariants:
- A marker is read `read_committed` up to the end that the partition had when the reading began: an
  open transaction of somebody else is waited for, never read past.
- A marker and the rows that it stands for are in one transaction: both are there, or neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.connectors.kafka.client import (
    CLEANUP_POLICY,
    Admin,
    client_config,
    kafka_failure,
    require_client,
)
from holdfast.errors import CorruptionError, NotFoundError, RefusedError, StorageError

MARKERS = "holdfast-markers"
KEPT = 512
"""How many ranges of published epochs a marker lists: epochs that follow each other are one."""
_SETTINGS = {
    CLEANUP_POLICY: "compact",
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}
_WAIT_MS = 60_000


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """The newest published epoch of one sink, and ranges of all that were, oldest first.

    forgotten: the newest epoch of the ranges that had no room any more.
    """

    epoch: int
    checkpoint: str
    epochs: list[tuple[int, int]]
    forgotten: int = -1

    def published(self, epoch: int) -> bool:
        """Whether an epoch was published.

        Raises:
            RefusedError: It is older than what the marker lists.
        """
        if any(first <= epoch <= last for first, last in self.epochs):
            return True
        if epoch <= self.forgotten:
            raise RefusedError(
                "it is not known any more whether an epoch was published",
                kind="marker_too_old",
                epoch=epoch,
                known_from=self.forgotten + 1,
                remedy="look for its rows in the topic: if they are there, delete the epoch from "
                "quarantine; if not, publish the files in quarantine yourself",
            )
        return False

    def then(self, epoch: int, checkpoint: str) -> Marker:
        """The marker that commits with another epoch."""
        newest = epoch > self.epoch
        ranges = _joined([*self.epochs, (epoch, epoch)])
        gone = ranges[:-KEPT]
        return Marker(
            epoch=max(epoch, self.epoch),
            checkpoint=checkpoint if newest else self.checkpoint,
            epochs=ranges[-KEPT:],
            forgotten=gone[-1][1] if gone else self.forgotten,
        )


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same epochs in as few ranges as possible, ascending."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def first_marker(epoch: int, checkpoint: str) -> Marker:
    """The marker of a sink that has published nothing before."""
    return Marker(epoch=epoch, checkpoint=checkpoint, epochs=[(epoch, epoch)])


def parse_marker(data: bytes | None, key: str) -> Marker | None:
    """The marker in a record."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=Marker)
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            "a marker of a Kafka sink cannot be read",
            kind="bad_marker",
            key=key,
            reason=str(error)[:200],
            remedy="something else writes to the topic of markers: find out what",
        ) from error


class MarkerTopic:
    """The topic of markers of one cluster."""

    def __init__(
        self, servers: str, options: Mapping[str, str], topic: str, clock: Clock | None = None
    ) -> None:
        """Nothing is asked yet."""
        self._servers, self._options, self.topic = servers, options, topic
        self._clock = clock or SystemClock()
        self._admin = Admin(servers, options, self._clock)

    def exists(self) -> bool:
        """Whether the topic is there."""
        try:
            self._admin.describe([self.topic])
        except NotFoundError:
            return False
        return True

    def ensure(self) -> None:
        """Create the topic where it is missing; refuse one that would forget markers."""
        if not self.exists():
            self._admin.create(self.topic, 1, _SETTINGS)
        policy = self._admin.settings_of(self.topic).get(CLEANUP_POLICY, "")
        if policy != "compact":
            raise StorageError(
                "the topic of markers would lose them",
                kind="marker_topic",
                topic=self.topic,
                cleanup_policy=policy,
                remedy="set cleanup.policy=compact on it, and nothing else",
            )

    def read(self, keys: set[str]) -> dict[str, bytes]:
        """The newest committed record of some keys."""
        kafka = require_client()
        info = self._admin.describe([self.topic])[self.topic]
        parts = [(self.topic, number) for number in info.partitions]
        ends = {key: end for key, end in self._admin.offsets(parts, "end").items() if end > 0}
        if not ends:
            return {}
        consumer = kafka.Consumer(
            {
                **client_config(self._servers, self._options),
                "group.id": "holdfast-markers",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
            }
        )
        try:
            consumer.assign([kafka.TopicPartition(t, n, 0) for t, n in ends])
            return self._until(kafka, consumer, dict(ends), keys)
        finally:
            consumer.close()

    def _until(
        self, kafka: Any, consumer: Any, ends: dict[Any, int], keys: set[str]
    ) -> dict[str, bytes]:
        """Read until every partition has come to its end."""
        found: dict[str, bytes] = {}
        began = self._clock.monotonic_ms()
        while ends:
            if self._clock.monotonic_ms() - began > _WAIT_MS:
                raise StorageError(
                    "the markers cannot be read: a transaction is open, or Kafka does not answer",
                    kind="kafka_unavailable",
                    topic=self.topic,
                    retryable=True,
                    remedy="nothing was published twice or lost: run again",
                )
            for message in consumer.consume(1_000, 0.1):
                error = message.error()
                if error is not None and error.code() != kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001
                    if error.retriable() or error.name() in ("_TRANSPORT", "_ALL_BROKERS_DOWN"):
                        continue
                    raise kafka_failure(kafka.KafkaException(error), "markers cannot be read")
                key = (message.topic(), message.partition())
                passed = message.offset() + (1 if error is None else 0)
                if error is None and (name := (message.key() or b"").decode()) in keys:
                    if message.value() is None:
                        found.pop(name, None)
                    else:
                        found[name] = message.value()
                if key in ends and passed >= ends[key]:
                    del ends[key]
        return found

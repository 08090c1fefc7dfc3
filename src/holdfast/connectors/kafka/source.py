"""Source: topics of Kafka; Spark tasks read ranges of offsets that the driver has planned.

Invariants:
- An epoch reads offsets up to the last stable one: no record of an open or aborted transaction.
- A position holds the next offset of every partition and the id of every topic: a topic that was
  made again is another one, and is refused.
- Offsets that have aged out before they were read are an error before the job, not a gap.
- The offsets of a checkpoint are committed to the consumer group after it is durable, and only for
  other tools to see: Holdfast itself goes by its checkpoints.

Decision: docs/adr/0158-kafka-offsets-come-from-the-checkpoint.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from holdfast.arguments import whole_number
from holdfast.checkpoint import Draft, StoreReader
from holdfast.clock import Clock, SystemClock
from holdfast.connectors.bad_rows import BAD
from holdfast.connectors.base import Backlog, Source, SourceReader, Split
from holdfast.connectors.kafka import formats
from holdfast.connectors.kafka.client import CLEANUP_POLICY, Admin, Partition, kafka_failure, refuse
from holdfast.connectors.kafka.options import check_options, check_servers
from holdfast.connectors.kafka.ranges import OffsetRange, behind, lost, plan_ranges
from holdfast.connectors.kafka.starts import Start, check_start, start_offsets
from holdfast.connectors.kafka.topics import Topics, check_topics
from holdfast.errors import IncompatibleError, InvalidInputError, RefusedError
from holdfast.format.manifest import Manifest
from holdfast.format.position import KafkaPosition, Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("holdfast.kafka")
_SHOWN = 5


class KafkaSource(Source):
    """Records of Kafka topics.

    servers: brokers by host and port. topics: one or several; pattern: a regular expression in
    their place, which takes topics that are made later, too. format: "bytes", "json", "csv" or
    "debezium-json"; schema: its columns; parse: options of Spark's parser, as `timestampFormat`.
    changes: what a record means: a row ("rows"), the newest state of its key ("upsert", with a
    column `deleted`), or Debezium's images as retractions ("weights"). key: columns of the record's
    key (`"id long"`), written as key_format says; where it has the name of a column of the schema,
    it stands in for it. metadata: columns about the record itself, from key, value, topic,
    partition, offset, timestamp and headers; as a mapping with names of your own.
    start: where to begin without a checkpoint: "earliest", "latest", a time, or offsets
    `{"orders": {0: 17}}`; partitions that appear later begin at their first offset.
    rows_max: limit of one epoch, in offsets. rate_max: limit of offsets a second. group: the
    consumer group that shows the offsets of the checkpoints. on_lost: "fail", or "skip" to continue
    behind records that aged out unread. reader: "spark" for Spark's connector, "python" for
    confluent-kafka in the tasks, "auto" for the first that is there.
    """

    kind = "kafka"
    bad = formats.BAD_RECORD
    in_order = True

    def __init__(
        self,
        servers: str | Sequence[str],
        topics: str | Sequence[str] | None = None,
        *,
        pattern: str | None = None,
        format: str = "bytes",  # noqa: A002 - Spark's word
        schema: str | None = None,
        key: str | None = None,
        key_format: Literal["text", "json"] = "text",
        metadata: Sequence[str] | Mapping[str, str] = (),
        start: Start = "earliest",
        rows_max: int | None = 1_000_000,
        rate_max: int | None = None,
        group: str | None = None,
        on_bad: Literal["keep", "fail"] = "keep",
        on_lost: Literal["fail", "skip"] = "fail",
        reader: Literal["auto", "spark", "python"] = "auto",
        changes: Literal["rows", "upsert", "weights"] | None = None,
        parse: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Refuse what can never work."""
        self.servers = check_servers(servers, "kafka")
        self.topics, self.pattern = check_topics(topics, pattern)
        self.options = check_options(options, "kafka")
        for limit, name in ((rows_max, "rows_max"), (rate_max, "rate_max")):
            if limit is not None:
                whole_number(limit, name, least=1, kind="invalid_limit")
        self.rows_max, self.rate_max = rows_max, rate_max
        self.start = check_start(start)
        self.group = group
        _one_of("on_bad", on_bad, ("keep", "fail"))
        _one_of("on_lost", on_lost, ("fail", "skip"))
        _one_of("reader", reader, ("auto", "spark", "python"))
        self.on_bad, self.on_lost, self.reader = on_bad, on_lost, reader
        self.shape = formats.Shape.of(format, schema, key, key_format, metadata, changes, parse)
        self.schema_text = self.shape.text
        self.weight = self.shape.weight

    def columns(self) -> list[str]:
        """Columns of the format, then of the key, then about the record."""
        return [name for name in self.shape.columns if name != self.weight]

    def empty(self, spark: SparkSession) -> DataFrame:
        """A DataFrame of the right shape without rows."""
        raw = spark.createDataFrame([], formats.RAW)
        return self.shape.apply(raw).drop(BAD)

    def open(self, name: str) -> KafkaReader:
        """Begin where `start` says."""
        return KafkaReader(name, self)


class KafkaReader(SourceReader):
    """Topics while the pipeline runs."""

    def __init__(self, name: str, source: KafkaSource, clock: Clock | None = None) -> None:
        """Nothing is asked of a broker yet."""
        self._name, self._source = name, source
        self._clock = clock or SystemClock()
        self._admin = Admin(source.servers, source.options, self._clock)
        self._topics = Topics(self._admin, source.topics, source.pattern, self._clock)
        self._at: dict[Partition, int] | None = None
        self._begun: dict[Partition, int] | None = None
        self._ids: dict[str, str] = {}
        self._ends: dict[Partition, int] = {}
        self._allowed: tuple[int, int] | None = None
        self._paced: int | None = None
        self._told: object = None
        self._python: bool | None = None

    def limit_rows(self, rows: int | None) -> None:
        """Limit the next splits, in offsets."""
        self._paced = rows

    def check(self) -> None:
        """Refuse, before Spark starts, brokers that do not answer and topics that do not exist."""
        self._topics.refresh(force=True)

    def restore(self, manifest: Manifest, reader: StoreReader) -> None:
        """Go to where a checkpoint stands; topics must still be the same ones."""
        del reader
        entry = manifest.source(self._name)
        if entry is None:
            return
        known = entry.position
        if not isinstance(known, KafkaPosition):
            raise IncompatibleError("the position is not Kafka's", source=self._name)
        self._ids = dict(known.topic_ids)
        self._at = {
            (topic, int(number)): offset
            for topic, offsets in known.topics.items()
            for number, offset in offsets.items()
        }
        self._topics.refresh(force=True)
        self._check_ids()
        self._check_lost(self._at, self._admin.offsets(self._at, "earliest"))

    # Planning

    def plan(self, after: Split | None = None) -> Split | None:
        """Committed records behind the position, up to the limits."""
        changed = self._topics.refresh()
        if self._at is None:
            self._begin()
        at = self._at if after is None else behind(self._at or {}, after.detail)
        at = dict(at or {})
        if changed or after is None:
            self._check_ids()
        self._take_new(at)
        ends = self._admin.offsets(at, "latest")
        if self._shrunk(ends):
            self._topics.refresh(force=True)
            self._check_ids()
        self._ends = ends
        limit = self._limit()
        ranges = plan_ranges(at, ends, limit)
        if not ranges:
            return None
        if self._check_lost(
            at, self._admin.offsets([(r.topic, r.partition) for r in ranges], "earliest")
        ):
            ranges = plan_ranges(at, ends, limit)
        self._spend(sum(one.offsets for one in ranges))
        return Split(self._name, None, 0, ranges)

    def _begin(self) -> None:
        """Where a source without a checkpoint begins."""
        known = self._topics.partitions()
        self._at = start_offsets(self._admin, self._source.start, known)
        self._begun = dict(self._at)
        self._ids = self._topics.ids()

    def _take_new(self, at: dict[Partition, int]) -> None:
        """Partitions and topics that appeared begin at their first offset."""
        new = [key for key in self._topics.partitions() if key not in at]
        if not new:
            return
        first = self._admin.offsets(new, "earliest")
        at.update(first)
        for key, offset in first.items():
            (self._at or {}).setdefault(key, offset)
            log.info("source %s reads %s[%d] from offset %d", self._name, *key, offset)
        for topic, ident in self._topics.ids().items():
            self._ids.setdefault(topic, ident)

    def _shrunk(self, ends: Mapping[Partition, int]) -> bool:
        return any(ends.get(key, end) < end for key, end in self._ends.items())

    def _check_ids(self) -> None:
        """Refuse topics that were made again, or are gone, since they were read."""
        now = self._topics.ids()
        for topic, ident in self._ids.items():
            if now.get(topic) != ident:
                raise IncompatibleError(
                    "a topic was deleted or made again since it was read",
                    kind="topic_recreated",
                    source=self._name,
                    topic=topic,
                    known_id=ident,
                    found_id=now.get(topic, "none"),
                    remedy="offsets of the old topic say nothing about the new one: to read it "
                    "from its start, give the source another name and allow the change",
                )

    def _check_lost(self, at: dict[Partition, int], earliest: Mapping[Partition, int]) -> bool:
        """Records that aged out unread: an error, or skipped where that is asked for."""
        gone = lost(at, earliest)
        if not gone:
            return False
        shown = "; ".join(
            f"{t}[{n}] {a}..{b - 1}" for (t, n), (a, b) in list(gone.items())[:_SHOWN]
        )
        count = sum(stop - start for start, stop in gone.values())
        if self._source.on_lost == "fail":
            raise RefusedError(
                "records aged out of Kafka before they were read",
                kind="offsets_lost",
                source=self._name,
                lost=shown,
                partitions=len(gone),
                offsets=count,
                remedy='bring them back from elsewhere, or say on_lost="skip" to continue behind '
                "them; a longer retention.ms of the topic prevents it",
            )
        log.warning("source %s skips %d offsets that aged out: %s", self._name, count, shown)
        for key, (_, offset) in gone.items():
            at[key] = offset
            if self._at is not None:
                self._at[key] = max(offset, self._at.get(key, offset))
        return True

    def _limit(self) -> int | None:
        """How many offsets the next epoch may take."""
        limits = [most for most in (self._source.rows_max, self._paced) if most is not None]
        if self._source.rate_max is not None:
            now = self._clock.monotonic_ms()
            saved, since = self._allowed or (self._source.rate_max, now)
            grown = self._source.rate_max * (now - since) // 1_000
            if grown or self._allowed is None:
                self._allowed = (min(saved + grown, self._source.rate_max), now)
            limits.append((self._allowed or (saved, now))[0])
        return min(limits) if limits else None

    def _spend(self, count: int) -> None:
        if self._allowed is not None:
            self._allowed = (self._allowed[0] - count, self._allowed[1])

    # Reading

    def read(self, spark: SparkSession, split: Split) -> DataFrame:
        """The records of a split, in the columns of the format."""
        return self._source.shape.apply(self._raw(spark, split.detail))

    def _raw(self, spark: SparkSession, ranges: Sequence[OffsetRange]) -> DataFrame:
        from holdfast.connectors.kafka import fetch, spark_reader

        source = self._source
        if self._python is None:
            self._python = source.reader == "python" or not spark_reader.usable(
                spark, required=source.reader == "spark"
            )
        if self._python:
            return fetch.read(spark, source.servers, source.options, ranges)
        return spark_reader.read(
            spark,
            source.servers,
            source.options,
            ranges,
            group=source.group or f"holdfast-{self._name}",
            may_skip=source.on_lost == "skip",
        )

    def advance(self, split: Split) -> None:
        """Behind the split."""
        self._at = behind(self._at or {}, split.detail)

    def save(self, draft: Draft) -> Position:
        """The next offset of every partition, and the ids of the topics."""
        del draft
        topics: dict[str, dict[str, int]] = {}
        for (topic, number), offset in sorted((self._at or {}).items()):
            topics.setdefault(topic, {})[str(number)] = offset
        ids = {topic: ident for topic, ident in self._ids.items() if topic in topics}
        return KafkaPosition(topics=topics, topic_ids=ids)

    def committed(self, manifest: Manifest, floor: Position | None) -> None:
        """Show the offsets to Kafka's own tools; that it fails is no reason to stop."""
        del floor
        entry = manifest.source(self._name)
        if entry is None or not isinstance(entry.position, KafkaPosition):
            return
        self._look_at_told()
        group = self._source.group or f"holdfast-{manifest.pipeline}-{self._name}"
        offsets = {
            (topic, int(number)): offset
            for topic, parts in entry.position.topics.items()
            for number, offset in parts.items()
        }
        if offsets:
            try:
                self._told = self._admin.commit_offsets(group, offsets)
            except Exception as error:  # noqa: BLE001 - offsets for people are no reason to stop
                log.warning("offsets were not committed to group %s: %s", group, error)

    def _look_at_told(self) -> None:
        """How the commit of offsets before this one went; nobody waits for it."""
        told, self._told = self._told, None
        if told is None or not told.done():  # type: ignore[attr-defined]
            return
        error = told.exception()  # type: ignore[attr-defined]
        if error is not None:
            typed = kafka_failure(error, "offsets were not committed to the consumer group")
            log.warning("source %s: %s", self._name, typed)

    def history(self) -> list[Split]:
        """Everything up to the position, where the topics still hold it."""
        at = dict(self._at or {})
        first = {key: self._first(key) for key in at}
        earliest = self._admin.offsets(at, "earliest")
        gone = {key: earliest[key] for key in at if earliest.get(key, 0) > first[key]}
        compacted = [
            topic
            for topic in {topic for topic, _ in at}
            if "compact" in self._admin.settings_of(topic).get(CLEANUP_POLICY, "")
        ]
        if gone or compacted or self._source.start != "earliest":
            raise InvalidInputError(
                "Kafka does not hold all that was read, so a new operator cannot be filled from it",
                kind="history_lost",
                source=self._name,
                compacted=",".join(sorted(compacted)) or None,
                first="; ".join(f"{t}[{n}] {o}" for (t, n), o in list(gone.items())[:_SHOWN])
                or None,
                start=str(self._source.start)[:80],
                remedy='let a new output begin empty, outputs={"sink": "empty"}; or start a new '
                "pipeline",
            )
        splits, here = [], first
        while ranges := plan_ranges(here, at, self._source.rows_max):
            splits.append(Split(self._name, None, 0, ranges))
            here = behind(here, ranges)
        return splits

    def _first(self, key: Partition) -> int:
        """The first offset that was read: of `earliest` 0, unless the topic had lost some then."""
        return 0 if self._begun is None else self._begun.get(key, 0)

    def backlog(self) -> Backlog:
        """Offsets, as of the last plan: as many rows, but for the holes that transactions leave."""
        at = self._at or {}
        done = sum(at.values())
        return Backlog(
            done, done + sum(max(0, self._ends.get(k, o) - o) for k, o in at.items()), "offsets"
        )


def _one_of(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        refuse(
            f"{name} cannot be this",
            kind="invalid_argument",
            remedy=f"give one of {', '.join(known)}",
            argument=name,
            value=repr(value)[:60],
        )

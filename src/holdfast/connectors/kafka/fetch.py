"""Source: reading in Python tasks, for where Spark's connector is missing.

Invariants:
- A task ends when it has seen an offset at or behind its stop, or the end of what is committed:
  transactions leave holes, so rows cannot be counted beforehand.
- A batch of rows has a bounded size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.connectors.kafka.client import client_config, kafka_failure, require_client
from holdfast.connectors.kafka.ranges import OffsetRange, pieces
from holdfast.errors import StorageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH = 10_000
_POLL_S = 0.1  # `consume` waits that long for a full batch, also when some records are there
_WAIT_MS = 50  # how long a broker waits for more before it says that a range has ended
_SILENT_S = 60
_HEADERS: Any = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_FIELDS: list[Any] = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("headers", _HEADERS),
]
_SCHEMA = pa.schema(_FIELDS)


def read(
    spark: SparkSession, servers: str, options: Mapping[str, str], ranges: Sequence[OffsetRange]
) -> DataFrame:
    """Records of some ranges, as `formats.RAW` has them; each piece is read by one task."""
    from holdfast.connectors.kafka.formats import RAW

    require_client()
    try:
        parallel = spark.sparkContext.defaultParallelism
    except Exception:  # noqa: BLE001 - Spark Connect does not tell
        parallel = len(ranges)
    wanted = pieces(ranges, max(parallel, len(ranges)))
    config = client_config(servers, options)

    def body(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            for number in numbers:
                yield from fetch(config, wanted[number])

    numbers = spark.range(0, len(wanted), 1, len(wanted))
    return numbers.mapInArrow(body, RAW)


def fetch(config: Mapping[str, Any], wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The committed records of one range, in order."""
    kafka = require_client()
    consumer = kafka.Consumer(
        {
            **config,
            "group.id": "holdfast-reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": _WAIT_MS,
        }
    )
    try:
        consumer.assign([kafka.TopicPartition(wanted.topic, wanted.partition, wanted.start)])
        silent, ended = 0.0, False
        while not ended:
            messages = consumer.consume(_BATCH, _POLL_S)
            silent = 0.0 if messages else silent + _POLL_S
            if silent > _SILENT_S:
                raise _silent(wanted, silent)
            rows, ended = _within(kafka, messages, wanted)
            if rows:
                yield record_batch(rows)
    finally:
        consumer.close()


def _within(kafka: Any, messages: Sequence[Any], wanted: OffsetRange) -> tuple[list[Any], bool]:
    """The records of a range among some messages, and whether the range has ended."""
    rows: list[Any] = []
    for message in messages:
        error = message.error()
        if error is not None and error.code() != kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001
            if error.retriable() or error.name() in ("_TRANSPORT", "_ALL_BROKERS_DOWN"):
                continue
            failure = kafka.KafkaException(error)
            raise kafka_failure(failure, "records cannot be read", topic=wanted.topic)
        if message.offset() >= wanted.stop:
            return rows, True
        if error is None:
            rows.append(message)
    return rows, False


def record_batch(messages: Sequence[Any]) -> pa.RecordBatch:
    """Messages as columns."""
    headers = [
        None if not (found := m.headers()) else [{"key": k, "value": v} for k, v in found]
        for m in messages
    ]
    columns: list[Any] = [
        pa.array([m.key() for m in messages], pa.binary()),
        pa.array([m.value() for m in messages], pa.binary()),
        pa.array([m.topic() for m in messages], pa.string()),
        pa.array([m.partition() for m in messages], pa.int32()),
        pa.array([m.offset() for m in messages], pa.int64()),
        pa.array([m.timestamp()[1] * 1000 for m in messages], pa.int64()).cast(
            pa.timestamp("us", tz="UTC")
        ),
        pa.array(headers, _HEADERS),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _silent(wanted: OffsetRange, seconds: float) -> StorageError:
    return StorageError(
        "Kafka does not answer while records are read",
        kind="kafka_unavailable",
        topic=wanted.topic,
        partition=wanted.partition,
        silent_s=round(seconds),
        retryable=True,
        remedy="nothing was lost: run again when the brokers can be reached",
    )

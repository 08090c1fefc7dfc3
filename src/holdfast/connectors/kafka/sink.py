"""Sink: a Kafka topic; each epoch is one transaction, exactly once.

Invariants:
- Rows are staged in the store and durable with the checkpoint; publishing can be repeated.
- Rows and marker commit together (`publisher`), so a repeat after a crash at any place sends
  nothing that is there already. No transaction is open while an epoch is computed.
- The driver holds one staged file, as it is compressed, and one batch of its rows at a time.

Decision: docs/adr/0159-kafka-sink-commits-a-marker-with-the-rows.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.arguments import several
from holdfast.checkpoint import PendingToken
from holdfast.connectors.base import (
    OutputState,
    OutputWriter,
    Sink,
    parse_token,
    remove_staging,
    staging_root,
)
from holdfast.connectors.journal.encode import is_scalar, refuse_types
from holdfast.connectors.kafka.client import Admin, refuse
from holdfast.connectors.kafka.marker import MARKERS, Marker, MarkerTopic, parse_marker
from holdfast.connectors.kafka.messages import Messages, messages, passes
from holdfast.connectors.kafka.options import check_options, check_servers
from holdfast.connectors.kafka.publisher import Publisher
from holdfast.connectors.staging import STAGED_WEIGHT
from holdfast.format.documents import Replay
from holdfast.format.owner import NOTHING, Owner, owner_bytes, parse_owner
from holdfast.operators.columns import WEIGHT
from holdfast.storage.open import StorageLocation, storage_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

Mode = Literal["changelog", "upsert", "debezium"]
_BATCH_BYTES = 8 << 20


class KafkaSink(Sink):
    """Rows become messages of a topic, in JSON.

    mode: "changelog" sends every change, with `_weight` where rows can be retracted; "upsert" the
    newest row of each key, and a message without value for a key that is gone; "debezium" envelopes
    with the images before and after. key: the columns of the message's key; upsert and debezium
    need them, and of one key there must be one row. markers: the compacted topic that remembers
    what was published; it is made where it is missing.
    """

    kind = "kafka"
    replay: Replay = "none"

    def __init__(
        self,
        servers: str | Sequence[str],
        topic: str,
        *,
        mode: Mode = "changelog",
        key: str | Sequence[str] = (),
        markers: str = MARKERS,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Refuse what can never work."""
        self.servers = check_servers(servers, "kafka")
        self.options = check_options(options, "kafka")
        for name, value in (("topic", topic), ("markers", markers)):
            if not isinstance(value, str) or not value:
                refuse(
                    "topics are names",
                    kind="invalid_argument",
                    remedy=f'write {name}="orders"',
                    argument=name,
                )
        if topic == markers:
            refuse(
                "rows and markers need two topics",
                kind="invalid_argument",
                remedy="choose another topic for one of them",
                topic=topic,
            )
        if mode not in ("changelog", "upsert", "debezium"):
            refuse(
                "mode cannot be this",
                kind="invalid_argument",
                remedy="give changelog, upsert or debezium",
                mode=repr(mode)[:60],
            )
        self.topic, self.mode, self.markers = topic, mode, markers
        self.key = several(key, "key", "kafka") if key else ()
        if mode != "changelog" and not self.key:
            refuse(
                "this mode needs a key",
                kind="invalid_key",
                remedy='name the columns that tell rows apart: key="customer"',
                mode=mode,
            )

    @property
    def params(self) -> Mapping[str, str]:
        """What gives messages their meaning."""
        return {"topic": self.topic, "mode": self.mode, "key": ",".join(self.key)}

    def check(self, name: str, schema: StructType) -> None:
        """Refuse, before the first epoch, what could never be published."""
        fields = [field for field in schema.fields if field.name != WEIGHT]
        refuse_types(type(schema)(fields), name)
        for wanted in self.key:
            found = [field for field in fields if field.name.lower() == wanted.lower()]
            if not found:
                refuse(
                    "a column of the key does not exist",
                    kind="unknown_column",
                    remedy="name columns of the stream",
                    sink=name,
                    column=wanted,
                    known=",".join(field.name for field in fields),
                )
            if not is_scalar(found[0].dataType):
                refuse(
                    "a column of the key is no single value",
                    kind="unsupported_type",
                    remedy="give columns of texts, numbers or times",
                    sink=name,
                    column=wanted,
                    type=found[0].dataType.simpleString(),
                )

    def open(
        self, name: str, pipeline: str, store: StorageLocation, spark: SparkSession
    ) -> KafkaWriter:
        """Begin to write; no broker is asked before the outputs are looked at."""
        del spark
        return KafkaWriter(name, pipeline, store, self)


class KafkaWriter(OutputWriter):
    """A topic while the pipeline runs."""

    def __init__(self, name: str, pipeline: str, store: StorageLocation, sink: KafkaSink) -> None:
        """Rows are staged next to the pipelines of the store."""
        self._name, self._pipeline, self._sink = name, pipeline, sink
        self._place, self._storage = store, storage_of(store)
        self._root = staging_root(pipeline, name)
        self.needs_every_epoch = sink.mode != "changelog"
        self._admin = Admin(sink.servers, sink.options)
        self._markers = MarkerTopic(sink.servers, sink.options, sink.markers)
        self._publisher = Publisher(
            sink.servers, sink.options, self._markers, self._ident, lambda: self._key("epoch")
        )
        self._lineage: str | None = None
        self._owner: Owner | None = None
        self._there = False

    def _ident(self) -> str:
        """The transactional id: of this sink of this pipeline in this store, and of no fork."""
        return f"holdfast-{self._store()}-{self._pipeline}-{self._name}"

    def _key(self, what: str) -> str:
        """The key of a record of this sink in the topic of markers."""
        owner = "" if what == "owner" else f"{self._store()}/"
        return f"{what}/{owner}{self._sink.topic}/{self._pipeline}/{self._name}"

    def _store(self) -> str:
        """The id of the store; a copy of a store has the same, and they fence each other."""
        from holdfast.checkpoint import read_store

        if self._lineage is None:
            options = dict(self._place.options) or None
            reader = read_store(self._place.url, self._pipeline, options=options)
            self._lineage = str(reader.header().lineage)
        return self._lineage

    def staging(self, checkpoint: str) -> tuple[StorageLocation, str]:
        """Below the root of the store, next to the pipelines."""
        return self._place, f"{self._root}/{checkpoint}"

    def commit(self, token: PendingToken) -> None:
        """Send the epoch in one transaction; if it is there already, nothing happens."""
        staged = parse_token(token)
        self._publisher.publish(
            self._sink.topic,
            int(token.epoch),
            str(token.checkpoint),
            lambda: self._messages(staged.files),
        )

    def _messages(self, files: Sequence[str]) -> Iterator[Messages]:
        """The epoch's messages, a batch of staged rows at a time."""
        sink = self._sink
        retracts = any(self._retracts(path) for path in files)
        for which in passes(sink.mode, retracts=retracts):
            for path in files:
                for rows in self._batches(path):
                    yield from messages(rows, sink.mode, sink.key, which)

    def _retracts(self, path: str) -> bool:
        return STAGED_WEIGHT in pq.read_schema(pa.BufferReader(self._storage.get(path))).names

    def _batches(self, path: str) -> Iterator[pa.RecordBatch]:
        """Staged rows, so many at a time as are small when they are unpacked."""
        file = pq.ParquetFile(pa.BufferReader(self._storage.get(path)))
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            wide = max(1, group.total_byte_size // max(1, group.num_rows))
            count = max(1, min(1 << 16, _BATCH_BYTES // (4 * wide)))
            yield from file.iter_batches(batch_size=count, row_groups=[number])

    def remove_stale_staging(self, keep: Collection[str]) -> None:
        """Remove staged rows of other checkpoints."""
        remove_staging(self._storage, self._root, keep)

    # The topic as an output: one owner record for each sink, so that several may write to it

    def inspect(self, after: int | None) -> OutputState:
        """Whether the topic is there and holds something, and who writes to it under this name."""
        del after
        topic = self._sink.topic
        info = self._admin.describe([topic])[topic]
        ends = self._admin.offsets([(topic, number) for number in info.partitions], "end")
        state = OutputState(
            where=f"{self._sink.servers}/{topic}", shared=True, empty=not any(ends.values())
        )
        if not self._markers.exists():
            return state
        self._there = True
        key = self._key("owner")
        data = self._markers.read({key}).get(key)
        if data is None:
            return state
        self._owner = owner = parse_owner(data, f"{self._sink.markers}/{key}")
        marker = self._marker_of(owner)
        if marker is not None and marker.epoch > owner.epoch and not owner.building:
            owner = msgspec.structs.replace(owner, epoch=marker.epoch, checkpoint=marker.checkpoint)
        # Records that were sent, and a topic that never had any: it was made again.
        return replace(state, owner=owner, whole=marker is None or not state.empty)

    def _marker_of(self, owner: Owner) -> Marker | None:
        """How far an owner has come: it commits with the rows."""
        key = f"epoch/{owner.lineage}/{self._sink.topic}/{owner.pipeline}/{owner.sink}"
        return parse_marker(self._markers.read({key}).get(key), key)

    def holds(self, token: PendingToken) -> bool:
        """Whether the marker knows the epoch."""
        if not self._there:
            return False
        key = self._key("epoch")
        marker = parse_marker(self._markers.read({key}).get(key), key)
        return marker is not None and marker.published(int(token.epoch))

    def claim(self, owner: Owner) -> Owner:
        """Write the record, unless only the epoch is another: the marker tells that."""
        from holdfast.format.canonical import seal
        from holdfast.format.documents import SMALL_BYTES_MAX

        sealed, _ = seal(owner, bytes_max=SMALL_BYTES_MAX)
        known = self._owner
        if known is None or _standing(known) != _standing(owner):
            self._publisher.put({self._key("owner"): owner_bytes(sealed)})
            self._owner, self._there = sealed, True
        return sealed

    def extent(self) -> tuple[int, int]:
        """Nothing is counted in a topic."""
        return 0, NOTHING

    def retract(self, after: int | None) -> None:
        """A topic cannot retract anything: that was accepted when the store was opened."""
        del after

    def replace(self, token: PendingToken) -> None:
        """The first rows of this sink in a topic."""
        self.commit(token)

    def clear(self) -> None:
        """What was sent stays."""


def _standing(owner: Owner) -> tuple[object, ...]:
    """What a record says that a marker does not."""
    return owner.lineage, owner.pipeline, owner.sink, owner.building, owner.since

"""Sink: an epoch as one transaction of rows and a marker.

The order at the first epoch of a process: `init_transactions`, which fences a predecessor and
settles what it had open; then the marker; only then anything is sent.

Invariants:
- The transactional id holds the store's id, the pipeline and the sink. The same one has
  a predecessor or a successor alone; a fork is another store, and neither fences the other.
- A transaction is open only while staged rows are being sent.
- Whatever fails, the producer is given up, and the next one reads the marker before it sends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from holdfast.connectors.kafka.client import client_config, kafka_failure, patiently, require_client
from holdfast.connectors.kafka.marker import Marker, MarkerTopic, first_marker, parse_marker
from holdfast.connectors.kafka.messages import Messages
from holdfast.errors import FencedError, HoldfastError
from holdfast.failpoints import failpoint

log = logging.getLogger("holdfast.kafka")
_TIMEOUT_MS = 300_000
_ABORT_S = 5.0
_CALL_S = 30.0
_INIT_S = 60.0


class Publisher:
    """A transactional producer, and what it has published."""

    def __init__(
        self,
        servers: str,
        options: Mapping[str, str],
        markers: MarkerTopic,
        ident: Callable[[], str],
        key: Callable[[], str],
    ) -> None:
        """Nothing is asked yet. ident: the transactional id; key: of the marker."""
        self._servers, self._options, self._markers = servers, options, markers
        self._ident, self._key = ident, key
        self._producer: Any = None
        self._marker: Marker | None = None
        self._refused: list[Any] = []

    def publish(
        self, topic: str, epoch: int, checkpoint: str, batches: Callable[[], Iterable[Messages]]
    ) -> bool:
        """Publish an epoch once; returns whether it was sent now."""
        producer = self._ready()
        if self._marker is not None and self._marker.published(epoch):
            return False
        marker = (
            first_marker(epoch, checkpoint)
            if self._marker is None
            else self._marker.then(epoch, checkpoint)
        )
        try:
            producer.begin_transaction()
            for batch in batches():
                _send(producer, topic, batch)
            failpoint("kafka.after_send")
            data = msgspec.json.encode(marker)
            producer.produce(self._markers.topic, key=self._key().encode(), value=data)
            failpoint("kafka.before_commit")
            self._commit(producer, "an epoch cannot be published", topic=topic)
        except BaseException as error:
            self._give_up(abort=isinstance(error, Exception))
            if isinstance(error, Exception) and _is_kafkas(error):
                raise kafka_failure(error, "an epoch cannot be published", topic=topic) from error
            raise
        failpoint("kafka.after_commit")
        self._marker = marker
        return True

    def put(self, records: Mapping[str, bytes]) -> None:
        """Write records of the topic of markers, in a transaction of their own."""
        producer = self._ready()
        try:
            producer.begin_transaction()
            for key, data in records.items():
                producer.produce(self._markers.topic, key=key.encode(), value=data)
            self._commit(producer, "a marker cannot be written", topic=self._markers.topic)
        except BaseException as error:
            self._give_up(abort=isinstance(error, Exception))
            if isinstance(error, Exception) and _is_kafkas(error):
                raise kafka_failure(error, "a marker cannot be written") from error
            raise

    def _commit(self, producer: Any, what: str, **facts: Any) -> None:
        """Commit; where a message was refused, its own error says more than the transaction's."""
        try:
            patiently(lambda: producer.commit_transaction(_CALL_S), what, **facts)
        except FencedError:
            raise
        except HoldfastError as error:
            if self._refused:
                kafka = require_client()
                cause = kafka.KafkaException(self._refused[0])
                raise kafka_failure(cause, what, **facts) from error
            raise

    def _ready(self) -> Any:
        """The producer; a new one has settled what was open, and knows the marker."""
        if self._producer is not None:
            return self._producer
        kafka = require_client()
        self._markers.ensure()
        config = {
            "transaction.timeout.ms": _TIMEOUT_MS,
            "linger.ms": 5,
            "compression.type": "lz4",
            # The partition of a key is the one that Java's clients choose.
            "partitioner": "murmur2_random",
            **client_config(self._servers, self._options),
            "transactional.id": self._ident(),
            "delivery.report.only.error": True,
            "on_delivery": self._note,
        }
        self._refused.clear()
        try:
            producer = kafka.Producer(config)
        except Exception as error:
            raise kafka_failure(error, "the Kafka producer cannot be made") from error
        patiently(lambda: producer.init_transactions(_INIT_S), "the sink cannot begin to publish")
        key = self._key()
        self._marker = parse_marker(self._markers.read({key}).get(key), key)
        self._producer = producer
        return producer

    def _note(self, error: Any, message: Any) -> None:
        """Remember why a message was refused; the first one is enough."""
        del message
        if error is not None and not self._refused:
            self._refused.append(error)

    def _give_up(self, *, abort: bool) -> None:
        """Forget the producer.

        What it has open would hold up readers, so it is aborted if it can; otherwise the next
        producer does that.
        """
        producer, self._producer, self._marker = self._producer, None, None
        if producer is None:
            return
        producer.purge()
        if abort:
            try:
                producer.abort_transaction(_ABORT_S)
            except Exception:  # fenced, or nobody answers: why it was given up counts
                log.debug("a transaction was not aborted", exc_info=True)


def _send(producer: Any, topic: str, batch: Messages) -> None:
    """Hand messages to the client; a full queue is waited for."""
    for key, value in zip(batch.keys, batch.values, strict=True):
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.1)
    producer.poll(0)


def _is_kafkas(error: Exception) -> bool:
    return type(error).__module__.startswith(("confluent_kafka", "cimpl"))

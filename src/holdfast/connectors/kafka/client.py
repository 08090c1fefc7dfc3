"""Shared by source and sink: what is asked of a broker, and what its errors mean.

Invariants:
- A call that can succeed later is repeated for `PATIENCE_MS`, with growing pauses; then it is a
  typed error that says `retryable`. What can never succeed is an error at once.
- No message of a client reaches a user without the names of Kafka's error and of what was asked.
"""

from __future__ import annotations

import base64
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from holdfast.clock import Clock, SystemClock
from holdfast.connectors.kafka.options import resolved, without_java
from holdfast.errors import (
    FencedError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)

log = logging.getLogger("holdfast.kafka")
T = TypeVar("T")
Partition = tuple[str, int]
"""Topic and number."""

CLEANUP_POLICY = ".".join(("cleanup", "policy"))  # noqa: FLY002 - else it looks like a failpoint
PATIENCE_MS = 60_000
_REQUEST_S = 10.0
_PAUSE_MS, _PAUSE_MAX_MS = 100, 2_000
_SEEN_TRIES = 100
_DENIED = frozenset(
    {
        "TOPIC_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "SASL_AUTHENTICATION_FAILED",
        "_AUTHENTICATION",
        "_SSL",
    }
)
_MISSING = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
_FENCED = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})
_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})
_AWAY = frozenset(
    {
        "_TRANSPORT",
        "_ALL_BROKERS_DOWN",
        "_TIMED_OUT",
        "_TIMED_OUT_QUEUE",
        "_RESOLVE",
        "_WAIT_COORD",
        "REQUEST_TIMED_OUT",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_FOR_PARTITION",
        "BROKER_NOT_AVAILABLE",
        "NETWORK_EXCEPTION",
        "CONCURRENT_TRANSACTIONS",
    }
)


def client_config(servers: str, options: Mapping[str, str]) -> dict[str, Any]:
    """What every client begins with; secrets are read here."""
    return {
        "bootstrap.servers": servers,
        "log_level": 0,
        "topic.metadata.propagation.max.ms": "5000",
        **without_java(resolved(options)),
    }


def require_client() -> Any:
    """The package `confluent_kafka`."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise InvalidInputError(
            "Kafka needs a client",
            kind="missing_extra",
            remedy="pip install 'holdfast-spark[kafka]'",
        ) from error
    return confluent_kafka


def kafka_failure(error: Exception, what: str, **facts: Any) -> HoldfastError:
    """A typed error for one of the client's."""
    if isinstance(error, HoldfastError):
        return error
    cause: Any = error.args[0] if error.args else None
    name = cause.name() if hasattr(cause, "name") else type(error).__name__
    reason = cause.str() if hasattr(cause, "str") else str(error)
    facts = {**facts, "error": name, "reason": reason[:300]}
    if name in _FENCED:
        return FencedError(
            f"{what}: another producer has taken over",
            remedy="stop this process: a successor publishes for it",
            **facts,
        )
    if name in _DENIED:
        return StorageError(
            f"{what}: Kafka refused access",
            kind="kafka_denied",
            remedy="check the credentials, the certificates and the permissions (ACLs)",
            **facts,
        )
    if name in _MISSING:
        return NotFoundError(
            f"{what}: the topic or partition does not exist",
            kind="unknown_topic",
            remedy="create the topic, or correct its name",
            **facts,
        )
    if name in _LARGE:
        return InvalidInputError(
            f"{what}: a row is larger than the broker takes",
            kind="kafka_message_too_large",
            remedy='raise max.message.bytes of the topic and options={"message.max.bytes": …}',
            **facts,
        )
    if name in {"_INVALID_ARG", "INVALID_CONFIG", "_CONFLICT"} or isinstance(error, TypeError):
        return InvalidInputError(
            f"{what}: the client refuses its options",
            kind="kafka_option",
            remedy="correct options=…; they have the names of librdkafka",
            **facts,
        )
    retryable = name in _AWAY or bool(getattr(cause, "retriable", bool)())
    return StorageError(
        f"{what}: Kafka does not answer" if name in _AWAY else f"{what}: Kafka reports an error",
        kind="kafka_unavailable" if retryable else "kafka_failed",
        retryable=retryable,
        remedy="nothing was lost: run again when the brokers can be reached"
        if retryable
        else "mend the cause and run again: the last checkpoint is untouched",
        **facts,
    )


def patiently(
    call: Callable[[], T],
    what: str,
    *,
    clock: Clock | None = None,
    patience_ms: int = PATIENCE_MS,
    heard: Sequence[Any] = (),
    **facts: Any,
) -> T:
    """The result of a call that is repeated while trying again can help.

    heard: errors that the client told apart from the call, which alone say that a login failed.
    """
    clock = clock or SystemClock()
    began, pause = clock.monotonic_ms(), _PAUSE_MS
    while True:
        try:
            return call()
        except Exception as error:
            typed = kafka_failure(_login_failure(heard) or error, what, **facts)
            waited = clock.monotonic_ms() - began
            if not getattr(typed, "retryable", False) or waited + pause > patience_ms:
                typed.facts.setdefault("waited_ms", waited)
                raise typed from error
            log.warning("%s: trying again after %s", what, typed.facts.get("error"))
        clock.sleep_ms(pause)
        pause = min(2 * pause, _PAUSE_MAX_MS)


def _login_failure(heard: Sequence[Any]) -> Exception | None:
    """A login that was refused; the call itself only says that nobody answered in time."""
    refused = [error for error in heard if error.name() in ("_AUTHENTICATION", "_SSL")]
    return require_client().KafkaException(refused[-1]) if refused else None


@dataclass(frozen=True)
class TopicInfo:
    """A topic as the broker describes it."""

    name: str
    ident: str
    partitions: tuple[int, ...]


class Admin:
    """Questions to a cluster, one client for all of them."""

    def __init__(
        self, servers: str, options: Mapping[str, str], clock: Clock | None = None
    ) -> None:
        """Nothing is asked yet."""
        self._servers, self._options, self._clock = servers, options, clock or SystemClock()
        self._client: Any = None
        self._heard: deque[Any] = deque(maxlen=8)

    @property
    def client(self) -> Any:
        """The client, made when it is first needed."""
        if self._client is None:
            kafka = require_client()
            config = client_config(self._servers, self._options)
            config["error_cb"] = self._heard.append
            try:
                self._client = kafka.admin.AdminClient(config)
            except Exception as error:
                raise kafka_failure(error, "the Kafka client cannot be made") from error
        return self._client

    def _ask(self, call: Callable[[], T], what: str, **facts: Any) -> T:
        def heeding() -> T:
            try:
                return call()
            finally:
                self.client.poll(0)  # hears what is told apart from the call

        self._heard.clear()
        return patiently(
            heeding, what, clock=self._clock, heard=self._heard, servers=self._servers, **facts
        )

    def names(self) -> list[str]:
        """All topics, without Kafka's own."""
        found = self._ask(
            lambda: self.client.list_topics(timeout=_REQUEST_S), "topics cannot be listed"
        )
        return sorted(name for name in found.topics if not name.startswith("__"))

    def describe(self, topics: Collection[str]) -> dict[str, TopicInfo]:
        """Ids and partitions of topics; one that does not exist is an error with its name."""
        kafka = require_client()
        found = {}
        for name in sorted(topics):
            found[name] = self._ask(
                lambda name=name: self._described(kafka, name),  # type: ignore[misc]
                "a topic cannot be described",
                topic=name,
            )
        return found

    def _described(self, kafka: Any, name: str) -> TopicInfo:
        asked = self.client.describe_topics(
            kafka.TopicCollection([name]), request_timeout=_REQUEST_S
        )
        told = asked[name].result()
        numbers = tuple(sorted(int(part.id) for part in told.partitions))
        return TopicInfo(name, _topic_id(told.topic_id), numbers)

    def offsets(
        self, partitions: Iterable[Partition], which: str, at_ms: int | None = None
    ) -> dict[Partition, int]:
        """Offsets of partitions. which: earliest, latest (last stable), end, or time (`at_ms`)."""
        kafka = require_client()
        admin = kafka.admin
        spec = {
            "earliest": admin.OffsetSpec.earliest,
            "time": lambda: admin.OffsetSpec.for_timestamp(at_ms),
        }.get(which, admin.OffsetSpec.latest)()
        committed = which != "end"
        level = kafka.IsolationLevel.READ_COMMITTED if committed else None
        wanted = {kafka.TopicPartition(topic, number): spec for topic, number in partitions}
        if not wanted:
            return {}

        def ask() -> dict[Partition, int]:
            level_of = {} if level is None else {"isolation_level": level}
            futures = self.client.list_offsets(wanted, request_timeout=_REQUEST_S, **level_of)
            return {(p.topic, p.partition): int(f.result().offset) for p, f in futures.items()}

        return self._ask(ask, "offsets cannot be listed")

    def settings_of(self, topic: str) -> dict[str, str]:
        """The settings of a topic."""
        admin = require_client().admin
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic)

        def ask() -> dict[str, str]:
            told = self.client.describe_configs([resource], request_timeout=_REQUEST_S)
            return {n: e.value for n, e in told[resource].result().items() if e.value is not None}

        return self._ask(ask, "a topic's settings cannot be read", topic=topic)

    def create(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Create a topic; one that is there already is left as it is."""
        admin = require_client().admin

        def ask() -> None:
            new = admin.NewTopic(topic, partitions, config=dict(settings))
            try:
                self.client.create_topics([new], request_timeout=_REQUEST_S)[topic].result()
            except Exception as error:
                if getattr(error.args[0] if error.args else None, "name", str)() != (
                    "TOPIC_ALREADY_EXISTS"
                ):
                    raise

        self._ask(ask, "a topic cannot be created", topic=topic)
        self._wait_for(topic)

    def _wait_for(self, topic: str) -> None:
        """A topic that was just made takes a moment until every broker knows it."""
        for _ in range(_SEEN_TRIES):
            try:
                self.settings_of(topic)
                self.describe([topic])
            except NotFoundError:
                self._clock.sleep_ms(_PAUSE_MS)
            else:
                return

    def commit_offsets(self, group: str, offsets: Mapping[Partition, int]) -> Any:
        """Begin to commit offsets of a consumer group; the future says how it went."""
        kafka = require_client()
        parts = [kafka.TopicPartition(t, n, at) for (t, n), at in sorted(offsets.items())]
        asked = self.client.alter_consumer_group_offsets(
            [kafka.ConsumerGroupTopicPartitions(group, parts)], request_timeout=_REQUEST_S
        )
        return asked[group]


def _topic_id(known: Any) -> str:
    """The id as Kafka's tools write it; the client's own text has another alphabet."""
    halves = (known.get_most_significant_bits(), known.get_least_significant_bits())
    raw = b"".join((half % 2**64).to_bytes(8, "big") for half in halves)
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def refuse(what: str, *, kind: str, remedy: str, **facts: Any) -> NoReturn:
    """What could never work."""
    raise InvalidInputError(what, kind=kind, remedy=remedy, **facts)

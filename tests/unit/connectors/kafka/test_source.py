"""What a source plans and refuses, on a real broker without Spark."""

from __future__ import annotations

import datetime as dt
import time

import pytest

import holdfast as hf
from holdfast.clock import ManualClock
from holdfast.connectors.kafka.fetch import fetch
from holdfast.connectors.kafka.source import KafkaReader
from holdfast.connectors.kafka.topics import LOOK_MS
from holdfast.errors import (
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    StorageError,
)
from holdfast.format.position import KafkaPosition, compare
from tests.helpers.kafka_broker import GUEST_PASSWORD


class Manifest:
    """As much of a manifest as a source asks for."""

    pipeline, lineage = "p", "x"

    def __init__(self, position):
        self._position = position

    def source(self, name):
        del name
        return type("Entry", (), {"position": self._position})


def reader(kafka, topics=None, clock=None, **more):
    return KafkaReader("in", hf.sources.Kafka(kafka.servers, topics, **more), clock)


def drain(source):
    """Splits until nothing is new."""
    splits = []
    while (split := source.plan()) is not None:
        splits.append(split)
        source.advance(split)
    return splits


def drain_soon(source):
    """The same; a commit takes a moment until it is seen."""
    for _ in range(100):
        if splits := drain(source):
            return splits
        time.sleep(0.05)
    return []


def values(kafka, splits):
    config = {"bootstrap.servers": kafka.servers}
    return [
        value
        for split in splits
        for one in split.detail
        for batch in fetch(config, one)
        for value in batch.column(1).to_pylist()
    ]


def test_epochs_are_bounded_and_hold_every_committed_record_once(kafka):
    """Aborted transactions are holes, an open one is not read before it is committed."""
    topic = kafka.topic("in", 3)
    producer = kafka.producer(topic)
    want = []
    for number in range(6):
        producer.begin_transaction()
        batch = [b"%d" % n for n in range(number * 100, number * 100 + 100)]
        kafka.send(topic, batch, producer)
        if number % 3 == 1:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            want += batch
    producer.begin_transaction()
    kafka.send(topic, [b"open"], producer)
    producer.flush()
    source = reader(kafka, topic, rows_max=70)
    splits = drain(source)
    assert all(sum(one.offsets for one in split.detail) <= 70 for split in splits)
    assert sorted(values(kafka, splits)) == sorted(want)
    producer.commit_transaction()
    assert values(kafka, drain_soon(source)) == [b"open"]
    assert source.backlog().done == source.backlog().total


def test_a_plan_ahead_continues_behind_the_split_that_is_worked_on(kafka):
    """Without a position that has moved: that happens when the work is done."""
    topic = kafka.topic("in", 1)
    kafka.send(topic, [b"%d" % n for n in range(10)])
    source = reader(kafka, topic, rows_max=4)
    first = source.plan()
    second = source.plan(first)
    third = source.plan(second)
    assert values(kafka, [first, second, third]) == [b"%d" % n for n in range(10)]
    assert source.plan(third) is None
    assert source.save(None).topics == {topic: {"0": 0}}


def test_a_position_has_ids_and_is_continued_from(kafka):
    """Another reader begins where the first one was saved."""
    topic = kafka.topic("in", 2)
    kafka.send(topic, [b"%d" % n for n in range(10)])
    source = reader(kafka, topic, rows_max=6)
    begun = source.plan()
    source.advance(begun)
    saved = source.save(None)
    assert isinstance(saved, KafkaPosition)
    assert set(saved.topic_ids) == {topic}
    again = reader(kafka, topic)
    again.restore(Manifest(saved), None)
    rest = drain(again)
    assert sorted(values(kafka, [begun, *rest])) == sorted(b"%d" % n for n in range(10))
    assert compare(saved, again.save(None)) == "before"


def test_a_topic_that_was_made_again_is_refused_at_the_start_and_in_mid_run(kafka):
    """Its offsets mean other records; the error has both ids."""
    topic = kafka.topic("in", 1)
    kafka.send(topic, [b"1"] * 3)
    source = reader(kafka, topic, clock=(clock := ManualClock()))
    drain(source)
    saved = source.save(None)
    kafka.delete(topic)
    kafka.create(topic, 1)
    kafka.send(topic, [b"2"] * 9)
    with pytest.raises(IncompatibleError, match="made again") as caught:
        reader(kafka, topic).restore(Manifest(saved), None)
    assert caught.value.kind == "topic_recreated"
    assert caught.value.facts["known_id"] != caught.value.facts["found_id"]
    clock.advance_ms(LOOK_MS + 1)
    with pytest.raises(IncompatibleError, match="made again"):
        source.plan()


def delete_records(kafka, topic, before):
    from confluent_kafka import TopicPartition

    parts = [TopicPartition(topic, 0, before)]
    admin = kafka.admin()
    for future in admin.delete_records(parts).values():
        future.result(20)


@pytest.mark.parametrize("on_lost", ["fail", "skip"])
def test_records_that_aged_out_unread_are_an_error_before_the_job_or_skipped(kafka, on_lost):
    """What was lost is named by partition and offsets; skipping is asked for by name."""
    topic = kafka.topic("in", 1)
    kafka.send(topic, [b"%d" % n for n in range(10)])
    source = reader(kafka, topic, rows_max=2, on_lost=on_lost)
    source.advance(source.plan())
    saved = source.save(None)
    delete_records(kafka, topic, 7)
    again = reader(kafka, topic, on_lost=on_lost)
    if on_lost == "skip":
        again.restore(Manifest(saved), None)
        assert values(kafka, drain(again)) == [b"7", b"8", b"9"]
        return
    for refused in (lambda: again.restore(Manifest(saved), None), source.plan):
        with pytest.raises(RefusedError, match="aged out") as caught:
            refused()
        assert caught.value.kind == "offsets_lost"
        assert caught.value.facts["lost"] == f"{topic}[0] 2..6"
        assert caught.value.facts["offsets"] == 5


@pytest.mark.parametrize("by", ["latest", "time", "offsets"])
def test_a_source_begins_where_start_says(kafka, by):
    """At the end, at a time, or at offsets; a partition that is not named at its first one."""
    topic = kafka.topic("in", 1)
    kafka.send(topic, [b"%d" % n for n in range(5)])
    time.sleep(0.05)
    now = dt.datetime.now(dt.UTC)
    time.sleep(0.05)
    start = {"latest": "latest", "time": now, "offsets": {topic: {0: 3}}}[by]
    source = reader(kafka, topic, start=start)
    before = values(kafka, drain(source))
    kafka.send(topic, [b"new"])
    assert before == ([b"3", b"4"] if by == "offsets" else [])
    assert values(kafka, drain(source)) == [b"new"]


def test_new_partitions_and_topics_are_read_from_their_first_record(kafka):
    """Also where the source began at the end: nothing that comes later may be missed."""
    from confluent_kafka.admin import NewPartitions

    name = kafka.topic("many", 1)
    kafka.send(name, [b"old"])
    clock = ManualClock()
    source = reader(kafka, pattern=f"{name}.*", start="latest", clock=clock)
    assert source.plan() is None
    admin = kafka.admin()
    admin.create_partitions([NewPartitions(name, 2)])[name].result()
    kafka.create(f"{name}-more", 1)
    producer = kafka.producer()
    for topic, number in ((name, 1), (f"{name}-more", 0)):
        for attempt in range(50):
            try:
                producer.produce(topic, b"new", partition=number)
                break
            except Exception:  # noqa: BLE001 - the client has not heard of it yet
                producer.poll(0.1)
    producer.flush()
    clock.advance_ms(LOOK_MS + 1)
    assert values(kafka, drain(source)) == [b"new", b"new"]


def test_a_rate_limits_what_a_second_takes(kafka):
    """By the clock, not by how often somebody plans; what was not used does not pile up."""
    topic = kafka.topic("in", 1)
    kafka.send(topic, [b"x"] * 1_000)
    clock = ManualClock()
    source = reader(kafka, topic, rate_max=100, clock=clock)
    assert sum(one.offsets for split in drain(source) for one in split.detail) == 100
    clock.advance_ms(500)
    assert sum(one.offsets for split in drain(source) for one in split.detail) == 50
    clock.advance_ms(60_000)
    assert sum(one.offsets for split in drain(source) for one in split.detail) == 100


def test_offsets_of_a_checkpoint_show_in_the_consumer_group(kafka):
    """After the checkpoint, under a name of the pipeline's or of the user's."""
    topic = kafka.topic("in", 2)
    kafka.send(topic, [b"x"] * 10)
    for group, named in ((None, "holdfast-p-in"), (f"g-{topic}", f"g-{topic}")):
        source = reader(kafka, topic, group=group)
        drain(source)
        source.committed(Manifest(source.save(None)), None)
        source._told.result(10)
        shown = kafka.group_offsets(named)
        assert sum(o for (t, _), o in shown.items() if t == topic) == 10


def test_history_is_given_again_only_where_kafka_still_holds_all_of_it(kafka):
    """A new operator is filled from it; never from a topic that has lost or compacted records."""
    topic = kafka.topic("in", 1)
    kafka.send(topic, [b"%d" % n for n in range(10)])
    source = reader(kafka, topic, rows_max=4)
    assert drain(source)
    assert values(kafka, source.history()) == [b"%d" % n for n in range(10)]
    delete_records(kafka, topic, 1)
    with pytest.raises(InvalidInputError, match="does not hold all"):
        source.history()
    compacted = kafka.topic("in", 1, cleanup_policy="compact")
    kafka.send(compacted, [(b"k", b"v")])
    other = reader(kafka, compacted)
    drain(other)
    with pytest.raises(InvalidInputError, match="does not hold all"):
        other.history()


def test_a_missing_topic_is_named_before_spark_starts(kafka):
    """The name, and what to do."""
    with pytest.raises(NotFoundError, match="does not exist") as caught:
        reader(kafka, "not-there").check()
    assert caught.value.kind == "unknown_topic"
    assert caught.value.facts["topic"] == "not-there"


def test_brokers_that_do_not_answer_are_a_retryable_error_after_patience():
    """Tried again with growing pauses; then it says that trying later can help."""
    from holdfast.connectors.kafka import client

    tries = []

    def call():
        tries.append(1)
        kafka = client.require_client()
        raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TRANSPORT))

    clock = ManualClock()
    with pytest.raises(StorageError, match="does not answer") as caught:
        client.patiently(call, "asked", clock=clock, patience_ms=60_000)
    assert caught.value.kind == "kafka_unavailable"
    assert caught.value.retryable
    assert 30 < len(tries) < 60
    assert clock.monotonic_ms() <= 60_000


LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "guest",
    "sasl.password": "env:GUEST_PASSWORD",
}


@pytest.mark.parametrize("password", ["right", "wrong"])
def test_no_permission_and_a_wrong_password_are_told_at_once(kafka, monkeypatch, password):
    """Not after a minute of patience; neither the password nor its guess is in the error."""
    if kafka.broker is None:
        pytest.skip("the broker in HOLDFAST_KAFKA_BROKER has no guest")
    topic = kafka.topic("in", 1)
    secret = {"right": GUEST_PASSWORD, "wrong": "hunter2"}[password]
    monkeypatch.setenv("GUEST_PASSWORD", secret)
    options = LOGIN | {"reconnect.backoff.max.ms": "500"}
    source = KafkaReader("in", hf.sources.Kafka(kafka.broker.secured, topic, options=options))
    began = time.perf_counter()
    with pytest.raises(StorageError, match="refused access") as caught:
        source.check()
    assert caught.value.kind == "kafka_denied"
    assert not caught.value.retryable
    assert secret not in str(caught.value)
    assert time.perf_counter() - began < 30

"""Kafka through a pipeline on Spark: formats, bad records, changes against a model, in and out.

The session of the tests has no connector jar, so Python reads here; tests/crash/test_kafka_kills.py
has the jars.
"""

from __future__ import annotations

import json
import random
import time

import pytest

import holdfast as hf
from holdfast.errors import InvalidInputError, RefusedError

pytestmark = pytest.mark.spark


def source(kafka, topic, **more):
    return hf.sources.Kafka(kafka.servers, topic, **more)


def rows_of(path):
    import pyarrow.dataset as ds

    return ds.dataset(path, partitioning="hive").to_table().to_pylist()


def image(number, values):
    return None if number not in values else {"id": number, "name": values[number]}


def changes(rng, table, count, wrapped):
    """Random changes of a table as Debezium tells them, and the table after them."""
    for _ in range(count):
        number = rng.randrange(6)
        before = image(number, table)
        if before is not None and rng.random() < 0.4:
            del table[number]
        else:
            table[number] = rng.choice("abcdef")
        after = image(number, table)
        op = "d" if after is None else "c" if before is None else "u"
        body = {"before": before, "after": after, "op": op, "ts_ms": 1}
        yield str(number), json.dumps({"schema": {}, "payload": body} if wrapped else body)
        if op == "d":
            yield str(number), None


@pytest.mark.parametrize("how", ["weights", "upsert", "compacted"])
def test_the_view_equals_the_table_after_every_epoch(spark, kafka, tmp_path, how):
    """Debezium's envelopes with and without images before, and a compacted topic, against a dict."""
    settings = {"cleanup_policy": "compact", "segment_ms": 500} if how == "compacted" else {}
    topic = kafka.topic("table", 2, **settings)
    rng, table = random.Random(11), {}
    schema, key = "id long, name string", {"key": "id long"}
    pipe = hf.Pipeline("p", store=tmp_path / "cp", partitions=2, spark=spark)
    if how == "compacted":
        rows = pipe.source(
            "in", source(kafka, topic, format="json", schema=schema, changes="upsert", **key)
        )
    else:
        keyed = key if how == "upsert" else {}
        rows = pipe.source(
            "in", source(kafka, topic, format="debezium-json", schema=schema, changes=how, **keyed)
        )
    if how == "weights":
        rows.group_by("id", "name").agg(n=hf.count(), name="table")
    else:
        rows.upsert("id", delete_when="deleted", name="newest").drop("deleted").group_by(
            "id", "name"
        ).agg(n=hf.count(), name="table")
    for number in range(4):
        sent = [*changes(rng, table, 12, wrapped=number % 2 == 1)]
        if how == "compacted":
            sent = [
                (k, v if v is None else json.dumps(found))
                for k, v in sent
                if v is None or (found := _after(v)) is not None
            ]
        if how == "upsert":
            sent = [(k, v if v is None else _without_before(v)) for k, v in sent]
        kafka.send(topic, sent)
        pipe.run()
        shown = {r["id"]: r["name"] for r in pipe.view("table").to_arrow().to_pylist()}
        counts = {r["n"] for r in pipe.view("table").to_arrow().to_pylist()}
        assert (shown, counts <= {1}) == (table, True), number


def _after(text):
    body = json.loads(text)
    return body.get("payload", body)["after"]


def _without_before(text):
    body = json.loads(text)
    body.get("payload", body)["before"] = None
    return json.dumps(body)


BAD = {
    b"": "empty",
    b"{": "no JSON",
    b"7": "no JSON",
    b'[{"id": 1}]': "no JSON",
    b'{"id": "x"}': "no JSON",
    b'{"id": 1.5}': "no JSON",
    b'{"id": 99999999999999999999}': "no JSON",
    b'{"id": 1}{"id": 2}': None,
    b"\xff\xfe": "UTF-8",
    None: "no value",
}


def test_records_that_cannot_be_read_go_aside_with_place_and_reason(spark, kafka, tmp_path):
    """Nothing is lost: each record is a row or a bad row with topic, partition, offset and value."""
    topic = kafka.topic("bad", 1)
    messages = [*BAD, b'{"id": 1, "more": 2}', b"{}", b'{"id": null}']
    kafka.send(topic, [("k", value) for value in messages])
    pipe = hf.Pipeline("p", store=tmp_path / "cp", partitions=2, spark=spark)
    rows = pipe.source(
        "in", source(kafka, topic, format="json", schema="id long", metadata=["offset"])
    )
    pipe.sink("rows", rows, hf.sinks.Parquet(tmp_path / "rows"))
    pipe.sink("aside", rows.bad, hf.sinks.Parquet(tmp_path / "aside"))
    pipe.run()
    good = {row["offset"] for row in rows_of(tmp_path / "rows")}
    bad = {row["offset"]: row for row in rows_of(tmp_path / "aside")}
    assert sorted([*good, *bad]) == list(range(len(messages)))
    assert {len(BAD), len(BAD) + 1, len(BAD) + 2} <= good
    for offset, (value, reason) in enumerate(BAD.items()):
        if reason is None:
            continue
        row = bad[offset]
        assert reason in row["reason"], row
        assert (row["raw"], row["topic"], row["partition"]) == (value, topic, 0)
        assert row["origin"] == f"{topic}[0]@{offset}"


def test_a_bad_record_fails_the_epoch_where_that_is_asked_for(spark, kafka, tmp_path):
    """The place is named, and nothing was committed."""
    topic = kafka.topic("bad", 1)
    kafka.send(topic, [b'{"id": 1}', b"{"])
    pipe = hf.Pipeline("p", store=tmp_path / "cp", partitions=2, spark=spark)
    rows = pipe.source("in", source(kafka, topic, format="json", schema="id long", on_bad="fail"))
    pipe.sink("rows", rows, hf.sinks.Parquet(tmp_path / "rows"))
    with pytest.raises(InvalidInputError, match="cannot be read") as caught:
        pipe.run()
    assert caught.value.kind == "bad_rows"
    assert f"{topic}[0]@1" in str(caught.value)


def test_records_have_all_their_columns_and_csv_its_own(spark, kafka, tmp_path):
    """Bytes give what Spark names; CSV is parsed with options; the timestamp is an event time."""
    topic = kafka.topic("plain", 1)
    sent_ms = round(time.time() * 1e3)  # an old one would age out at once
    producer = kafka.producer()
    producer.produce(topic, b"1;x", b"k", headers=[("h", b"v")], timestamp=sent_ms)
    producer.flush()
    pipe = hf.Pipeline("p", store=tmp_path / "cp", partitions=2, spark=spark)
    plain = pipe.source("plain", source(kafka, topic))
    lines = pipe.source(
        "lines",
        source(
            kafka, topic, format="csv", schema="n int, t string", parse={"sep": ";"},
            key="k string", metadata={"timestamp": "at"},
        ),
        event_time="at",
    )  # fmt: skip
    assert plain.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    pipe.sink("plain_out", plain, hf.sinks.Parquet(tmp_path / "plain"))
    pipe.sink("lines_out", lines, hf.sinks.Parquet(tmp_path / "lines"))
    reports = []
    pipe.run(on_epoch=reports.append)
    (row,) = rows_of(tmp_path / "plain")
    assert (row["key"], row["value"], row["topic"], row["offset"]) == (b"k", b"1;x", topic, 0)
    assert row["headers"] == [{"key": "h", "value": b"v"}]
    assert row["timestamp"].timestamp() == sent_ms / 1e3
    (line,) = rows_of(tmp_path / "lines")
    assert (line["n"], line["t"], line["k"]) == (1, "x", "k")
    assert line["at"].timestamp() == sent_ms / 1e3
    assert sum(report.rows for report in reports) == 2


def totals(spark, kafka, home, topic, out, mode, name="p"):
    pipe = hf.Pipeline(name, store=home / "cp", partitions=2, spark=spark)
    rows = pipe.source(
        "in", source(kafka, topic, format="json", schema="k int, v int, gone boolean", rows_max=50)
    )
    summed = rows.upsert("k", delete_when="gone", name="newest").group_by("v").agg(
        n=hf.count(), name="totals"
    )  # fmt: skip
    pipe.sink("out", summed, hf.sinks.Kafka(kafka.servers, out, mode=mode, key="v"))
    return pipe


@pytest.mark.parametrize("mode", ["upsert", "debezium"])
def test_a_consumer_of_the_output_has_the_table_that_the_view_shows(spark, kafka, tmp_path, mode):
    """Over restarts, with keys that come and go."""
    topic, out = kafka.topic("in", 2), kafka.topic("out", 2)
    rng = random.Random(3)
    for _ in range(3):
        kafka.send(
            topic,
            [
                (str(k), json.dumps({"k": k, "v": rng.randrange(5), "gone": rng.random() < 0.3}))
                for k in (rng.randrange(12) for _ in range(60))
            ],
        )
        pipe = totals(spark, kafka, tmp_path, topic, out, mode)
        pipe.run()
        shown = {row["v"]: row["n"] for row in pipe.view("totals").to_arrow().to_pylist()}
        if mode == "upsert":
            table = {json.loads(v)["v"]: json.loads(v)["n"] for v in kafka.table(out).values()}
        else:
            table = {}
            for message in kafka.read(out):
                body = json.loads(message.value())
                if body["before"] is not None:
                    assert table.pop(body["before"]["v"]) == body["before"]["n"]
                if body["after"] is not None:
                    table[body["after"]["v"]] = body["after"]["n"]
        assert table == shown


def test_another_pipeline_of_that_name_does_not_write_to_the_same_output(spark, kafka, tmp_path):
    """The owner record is in Kafka: a store that was made again is refused before anything is sent."""
    topic, out = kafka.topic("in", 1), kafka.topic("out", 1)
    kafka.send(topic, [json.dumps({"k": 1, "v": 1, "gone": False})])
    totals(spark, kafka, tmp_path / "one", topic, out, "upsert").run()
    sent = len(kafka.read(out))
    with pytest.raises(RefusedError, match="another owner") as caught:
        totals(spark, kafka, tmp_path / "two", topic, out, "upsert").run()
    assert caught.value.kind == "output_owned"
    assert len(kafka.read(out)) == sent


def test_an_output_that_was_made_again_is_filled_and_one_without_its_marker_is_refused(
    spark, kafka, tmp_path
):
    """A lost output is noticed; where the markers are lost, nothing is sent twice on a guess."""
    topic, out = kafka.topic("in", 1), kafka.topic("out", 1)
    markers = [kafka.topic("markers", 1, cleanup_policy="compact") for _ in range(2)]

    def run(marker):
        pipe = hf.Pipeline("p", store=tmp_path / "cp", partitions=2, spark=spark)
        rows = pipe.source("in", source(kafka, topic, format="json", schema="k int"))
        counts = rows.group_by("k").agg(n=hf.count(), name="counts")
        pipe.sink(
            "out",
            counts,
            hf.sinks.Kafka(kafka.servers, out, mode="upsert", key="k", markers=marker),
        )
        pipe.run()

    kafka.send(topic, [json.dumps({"k": k}) for k in (1, 1, 2)])
    run(markers[0])
    before = kafka.table(out)
    kafka.delete(out)
    kafka.create(out, 1)
    run(markers[0])
    assert kafka.table(out) == before
    assert len(before) == 2
    with pytest.raises(RefusedError) as caught:
        run(markers[1])
    assert caught.value.kind == "output_unknown"


def test_a_connector_that_is_not_there_is_named_with_its_coordinates(spark, kafka, tmp_path):
    """Where Spark's own reader is asked for by name."""
    topic = kafka.topic("in", 1)
    kafka.send(topic, [b"1"])
    pipe = hf.Pipeline("p", store=tmp_path / "cp", partitions=2, spark=spark)
    rows = pipe.source("in", source(kafka, topic, reader="spark"))
    pipe.sink("out", rows, hf.sinks.Parquet(tmp_path / "out"))
    with pytest.raises(InvalidInputError, match="spark-sql-kafka") as caught:
        pipe.run()
    assert caught.value.kind == "kafka_connector_missing"

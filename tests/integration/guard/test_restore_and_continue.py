"""Savepoints of real queries: restore any of them, go on, and nothing tells the difference."""

from __future__ import annotations

import os
import time

import pytest
from pyspark.sql import GroupedData

import holdfast as hf
from holdfast.clock import SystemClock
from holdfast.errors import CorruptionError
from tests.helpers.guard_queries import LAYOUTS, Collected, run_to_end, use_layout, write_input

CLOCK = SystemClock()
FILES = 5
SAVE_IN = (2, 4)  # while these batches run: what is saved is the batch before
# Every kind of query and every layout at least once; the rest of the matrix belongs to the soak.
ALWAYS = [
    ("aggregation", "rocksdb1"),
    ("aggregation", "rocksdb1-changelog"),
    ("dedupe", "rocksdb2"),
    ("join", "hdfs"),
    ("custom_state", "rocksdb2-changelog"),
    ("stateless", "hdfs"),
]
STATEFUL = ("aggregation", "dedupe", "join", "custom_state")
REST = [
    (query, layout)
    for query in STATEFUL
    for layout in LAYOUTS
    if (query, layout) not in ALWAYS and not (query == "custom_state" and layout == "hdfs")
]


def _needs(query):
    if query == "custom_state":
        pytest.importorskip("google.protobuf", reason="transformWithState in Python needs protobuf")
        pytest.importorskip("pandas", reason="transformWithState in Python needs pandas")
        if not hasattr(GroupedData, "transformWithState"):
            pytest.skip("this Spark has no transformWithState over rows")


def _check(spark, tmp_path, query, layout):
    use_layout(spark, layout)
    source, location, store = tmp_path / "in", tmp_path / "ck", tmp_path / "savepoints"
    write_input(source, FILES)

    def saving(batch):
        if batch in SAVE_IN:
            hf.guard.save(location, store, f"during-{batch}")

    straight = Collected(saving)
    run_to_end(spark, query, source, location, straight)
    assert len(straight.batches) >= FILES
    assert any(straight.batches.values())
    hf.guard.save(location, store, "end")
    expected_layout = "stateless" if query == "stateless" else LAYOUTS[layout][3]
    for batch in SAVE_IN:
        into = tmp_path / f"again-{batch}"
        done = hf.guard.restore(location, store, f"during-{batch}", into=into)
        assert done.batch == batch - 1
        assert hf.guard.show(location, store, batch - 1).layout == expected_layout
        hf.guard.protect(spark, into)
        again = Collected()
        run_to_end(spark, query, source, into, again)
        rest = {number: rows for number, rows in straight.batches.items() if number >= batch}
        assert again.batches == rest
        report = hf.guard.verify(into)
        assert report.ok, [str(finding) for finding in report.findings]
    report = hf.guard.verify(location, store)
    assert report.ok, [str(finding) for finding in report.findings]


@pytest.mark.parametrize(("query", "layout"), ALWAYS)
def test_every_savepoint_restores_and_goes_on_batch_by_batch(spark, tmp_path, query, layout):
    """From each savepoint on, every batch gives out exactly what the uninterrupted query gave."""
    _needs(query)
    _check(spark, tmp_path, query, layout)


@pytest.mark.soak
@pytest.mark.parametrize(("query", "layout"), REST)
def test_the_rest_of_the_matrix_restores_and_goes_on(spark, tmp_path, query, layout):
    """Every kind of query on every layout that Spark allows for it."""
    _needs(query)
    _check(spark, tmp_path, query, layout)


def test_the_one_cell_that_the_matrix_leaves_out_is_refused_by_spark(spark, tmp_path):
    """`transformWithState` on the HDFS-backed provider: Spark itself does not start it."""
    _needs("custom_state")
    use_layout(spark, "hdfs")
    write_input(tmp_path / "in", 1)
    with pytest.raises(
        Exception, match=r"(?i)transformWithState.*RocksDB|RocksDB.*transformWithState"
    ):
        run_to_end(spark, "custom_state", tmp_path / "in", tmp_path / "ck", Collected())


def test_rolling_back_in_place_leaves_no_source_ahead_and_no_shifted_batches(spark, tmp_path):
    """Over the old location: same batches again, the old one kept, newer savepoints abandoned."""
    use_layout(spark, "hdfs")
    source, location, store = tmp_path / "in", tmp_path / "ck", tmp_path / "savepoints"
    write_input(source, 6)
    straight = Collected(lambda batch: batch in (2, 4) and hf.guard.save(location, store))
    run_to_end(spark, "aggregation", source, location, straight)
    done = hf.guard.restore(location, store, 1)
    assert os.path.isdir(done.aside)
    assert done.abandoned == 1
    assert not os.path.exists(location / "offsets" / "2")
    assert sorted(p for p in os.listdir(location / "sources" / "0") if p[0] != ".") == ["0", "1"]
    again = Collected()
    run_to_end(spark, "aggregation", source, location, again)
    assert again.batches == {n: rows for n, rows in straight.batches.items() if n >= 2}
    report = hf.guard.verify(location, store)
    assert report.ok, [str(finding) for finding in report.findings]
    assert hf.guard.save(location, store, "after").batch == max(straight.batches)
    listed = hf.guard.ls(location, store)
    assert [(entry.batch, entry.abandoned) for entry in listed] == [
        (max(straight.batches), False), (3, True), (1, False),
    ]  # fmt: skip


def test_a_file_sink_is_set_back_with_its_checkpoint(spark, tmp_path):
    """With sink=…, `_spark_metadata` ends at the same batch and the rerun gives the same table."""
    use_layout(spark, "rocksdb2-changelog")
    from tests.helpers.guard_queries import aggregation

    source, location, store = tmp_path / "in", tmp_path / "ck", tmp_path / "savepoints"
    out = tmp_path / "out"

    def start():
        query = (
            aggregation(spark, source)
            .writeStream.option("checkpointLocation", str(location))
            .format("parquet")
            .option("path", str(out))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def table():
        return sorted(tuple(row) for row in spark.read.parquet(str(out)).collect())

    write_input(source, 4)
    start()
    saved = hf.guard.save(location, store, "four", sink=out)
    halfway = table()
    write_input(source, 8)
    start()
    expected = table()
    assert len(expected) > len(halfway)
    done = hf.guard.restore(location, store, "four", sink=out)
    assert table() == halfway
    assert os.path.isdir(done.sink_aside)
    assert any("stays published" in sentence for sentence in done.cannot_undo)
    start()
    assert table() == expected
    assert hf.guard.save(location, store, sink=out).batch > saved.batch


def test_a_clone_has_its_own_query_id_and_runs_beside_the_original(spark, tmp_path):
    """New id by default, the same one on demand; both go on from the same batch."""
    use_layout(spark, "rocksdb1-changelog")
    source, location, store = tmp_path / "in", tmp_path / "ck", tmp_path / "savepoints"
    write_input(source, 3)
    run_to_end(spark, "dedupe", source, location, Collected())
    hf.guard.save(location, store)
    write_input(source, 5)
    staging = hf.guard.clone(location, store, tmp_path / "staging")
    twin = hf.guard.clone(location, store, tmp_path / "twin", same_id=True)
    original, copy = Collected(), Collected()
    started = run_to_end(spark, "dedupe", source, location, original)
    cloned = run_to_end(spark, "dedupe", source, tmp_path / "staging", copy)
    assert copy.batches == original.batches
    assert (str(cloned.id), str(started.id)) == (staging.query, twin.query)
    assert staging.query != twin.query


@pytest.mark.parametrize("layout", [
    "hdfs", *(pytest.param(layout, marks=pytest.mark.soak) for layout in LAYOUTS if layout != "hdfs"),
])  # fmt: skip
def test_rate_source_goes_on_where_the_savepoint_stands(spark, tmp_path, layout):
    """After a restore the rate source loses no number and counts none twice."""
    use_layout(spark, layout)
    location, store = tmp_path / "ck", tmp_path / "savepoints"

    def run(where, batches):
        """Until so many batches with rows are committed; a stop may cut one that is not."""
        collected = Collected()
        counts = (
            spark.readStream.format("rate").option("rowsPerSecond", 30).load()
            .groupBy((spark_mod("value", 4)).alias("g")).count()
        )  # fmt: skip
        query = (
            counts.writeStream.option("checkpointLocation", str(where)).outputMode("update")
            .trigger(processingTime="100 milliseconds").foreachBatch(collected).start()
        )  # fmt: skip

        def committed():
            full = [number for number, rows in [*collected.batches.items()] if rows]
            return sum((where / "commits" / str(number)).exists() for number in full)

        _until(lambda: committed() >= batches)
        query.stop()
        return collected

    run(location, 2)
    hf.guard.save(location, store, "two")
    into, second = tmp_path / "again", tmp_path / "second-store"
    hf.guard.restore(location, store, "two", into=into)
    before = hf.guard.show(location, store).sources[0]["offset"]
    after = run(into, 1)
    end = hf.guard.save(into, second).batch
    offset = int(hf.guard.show(into, second).sources[0]["offset"])
    last = {
        g: n for number in sorted(after.batches) if number <= end for g, n in after.batches[number]
    }
    assert offset > int(before)
    assert last == {g: len(range(g, offset * 30, 4)) for g in range(4)}


def spark_mod(column, by):
    from pyspark.sql import functions as F

    return F.col(column) % by


def test_hot_query_with_aggressive_clean_up_is_never_saved_half(spark, tmp_path):
    """Saved as fast as possible with two batches retained: every savepoint restores."""
    _hot(spark, tmp_path, saves=8, restart=2)


@pytest.mark.soak
def test_hot_query_saved_a_hundred_times(spark, tmp_path):
    """A hundred savepoints of a hot query, every one restored and continued."""
    _hot(spark, tmp_path, saves=100, restart=100)


def _hot(spark, tmp_path, *, saves, restart):
    use_layout(spark, "rocksdb2-changelog", retain=2)
    location, store = tmp_path / "ck", tmp_path / "savepoints"

    def start(where, collected):
        numbers = (
            spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
            .groupBy(spark_mod("value", 7).alias("g")).count()
        )  # fmt: skip
        return (
            numbers.writeStream.option("checkpointLocation", str(where)).outputMode("update")
            .trigger(processingTime="0 seconds").foreachBatch(collected).start()
        )  # fmt: skip

    hot = Collected()
    query = start(location, hot)
    _until(lambda: len(hot.batches) >= 2)
    done, tries = [], 0
    while len(done) < saves:
        saved = hf.guard.save(location, store)
        tries += saved.tries
        if saved.reused:
            assert saved.batch == done[-1].batch
        else:
            done.append(saved)
    query.stop()
    assert len({saved.batch for saved in done}) == saves
    report = hf.guard.verify(location, store)
    assert report.ok, [str(finding) for finding in report.findings]
    savepoints = hf.guard.Savepoints.open(store, location=location)
    for number, saved in enumerate(done):
        into = tmp_path / f"again-{number}"
        hf.guard.restore(location, store, saved.checkpoint, into=into)
        report = hf.guard.verify(into)
        assert report.ok, [str(finding) for finding in report.findings]
        state = hf.guard.show(location, store, saved.checkpoint).state
        assert [entry.keys for entry in state] == [7]
        if number % (max(1, saves // restart)) == 0:
            again = Collected()
            query = start(into, again)
            _until(lambda again=again: len(again.batches) >= 1)
            query.stop()
            first = saved.batch + 1
            assert min(again.batches) == first
            rows = 10 * (first + 1)
            model = {g: len(range(g, rows, 7)) for g in range(7)}
            assert dict(again.batches[first]) == model
    assert len(savepoints.list()) == saves


def _until(condition, seconds=60):
    deadline = CLOCK.monotonic_ms() / 1_000 + seconds
    while not condition():
        assert CLOCK.monotonic_ms() / 1_000 < deadline, "the query did not get there in time"
        time.sleep(0.02)


def test_attached_query_is_saved_every_few_batches_off_its_path(spark, tmp_path):
    """attach() saves while the query runs, keeps what it was told to keep, and ends with it."""
    use_layout(spark, "rocksdb1-changelog")
    source, location, store = tmp_path / "in", tmp_path / "ck", tmp_path / "savepoints"
    write_input(source, 8)
    from tests.helpers.guard_queries import dedupe

    collected = Collected()
    query = (
        dedupe(spark, source)
        .writeStream.option("checkpointLocation", str(location))
        .trigger(processingTime="0 seconds")
        .foreachBatch(collected)
        .start()
    )
    attachment = hf.guard.attach(query, store, every="3 batches", retain=2, spark=spark)
    _until(lambda: len(collected.batches) >= 8)
    query.processAllAvailable()
    attachment.wait(2)
    query.stop()
    attachment.stop()
    assert attachment.errors == []
    assert len(attachment.saved) >= 2
    assert attachment.saved[-1].batch == max(collected.batches)
    assert len(hf.guard.ls(location, store)) == 2
    assert hf.guard.show(location, store).spark == spark.version
    assert hf.guard.protect(spark, location, store).ok


def test_plain_spark_restarts_with_a_changed_watermark_and_the_guard_does_not(spark, tmp_path):
    """One digit of a watermark in `offsets/N`: Spark drops every row, protect() refuses to start."""
    use_layout(spark, "hdfs")
    source, location, store = tmp_path / "in", tmp_path / "ck", tmp_path / "savepoints"
    write_input(source, 3)
    run_to_end(spark, "dedupe", source, location, Collected())
    hf.guard.save(location, store)
    assert hf.guard.protect(spark, location, store).ok
    path = max((location / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    text = path.read_text()
    at = text.index('"batchWatermarkMs":') + len('"batchWatermarkMs":')
    path.write_text(text[:at] + "9" + text[at + 1 :])
    with pytest.raises(CorruptionError, match=f"offsets/{path.name}"):
        hf.guard.protect(spark, location, store)
    with pytest.raises(CorruptionError, match="offsets/"):
        hf.guard.protect(spark, location)  # without a store: by the checksum beside it

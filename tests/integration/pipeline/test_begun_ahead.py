"""What begins ahead of its epoch, and what is left behind when an epoch does not end well."""

from __future__ import annotations

import time

import pytest

import holdfast as hf
from holdfast.checkpoint import open_store
from holdfast.errors import FencedError, HoldfastError
from holdfast.runtime import planner as frames
from tests.helpers.pipeline_world import SCHEMA, published, write_rows

FILES = 4


def chain(home, spark, *, step: str = "k", single: bool = False) -> hf.Pipeline:
    """An aggregate behind an aggregate: the second shuffle needs the state of the first."""
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=2)
    files = hf.sources.Files(str(home / "in"), schema=SCHEMA, files_max=1)
    rows = pipe.source("in", files).select(f"{step} AS k", "x")
    totals = rows.group_by("k").agg(n=hf.count(), name="totals")
    if single:
        pipe.sink("out", totals, hf.sinks.Parquet(str(home / "out")))
        return pipe
    counts = totals.group_by("n").agg(groups=hf.count(), name="counts")
    pipe.sink("out", counts, hf.sinks.Parquet(str(home / "out")))
    return pipe


def persisted(spark) -> bool:
    """Whether Spark keeps, or would keep, the rows of any frame."""
    return not spark._jsparkSession.sharedState().cacheManager().isEmpty()


@pytest.mark.parametrize("single", [True, False])
def test_only_a_shuffle_without_state_begins_ahead_and_nothing_changes(
    spark, tmp_path, monkeypatch, single
) -> None:
    """A source's shuffle begins before its epoch, one that needs state does not; rows count once."""
    for number in range(FILES):
        write_rows(tmp_path / "in", number, [(f"k{n}", n, 0.0, 1) for n in range(number + 1)])
    begun, plain = [], frames.begin_shuffles

    def begin(action):
        stages = plain(action)
        begun.append(len(stages))
        if stages:
            time.sleep(0.5)  # all of it is read ahead
        return stages

    monkeypatch.setattr(frames, "begin_shuffles", begin)
    reports = []
    chain(tmp_path, spark, single=single).run(on_epoch=reports.append)
    assert begun == [1 if single else 0] * (FILES - 1)
    assert [report.rows for report in reports] == list(range(1, FILES + 1))
    if single:
        want = {f'["k{n}", {FILES - n}]': 1 for n in range(FILES)}
        assert published(spark, tmp_path / "out", ["k", "n"]) == want
    else:
        want = {f"[{n}, 1]": 1 for n in range(1, FILES + 1)}
        assert published(spark, tmp_path / "out", ["n", "groups"]) == want


def test_later_jobs_of_the_session_carry_nothing_of_a_run(spark, tmp_path) -> None:
    """A session that the user goes on with has no properties and no kept rows of a pipeline."""
    spark.catalog.clearCache()
    write_rows(tmp_path / "in", 0, [("a", 1, 0.0, 1)])
    chain(tmp_path, spark).run()
    for stage in ("totals", "counts"):
        assert spark.sparkContext.getLocalProperty(f"holdfast.job.{stage}") is None
    assert not persisted(spark)


def test_a_failed_epoch_takes_the_plan_of_the_next_one_with_it(spark, tmp_path) -> None:
    """Nothing stays persisted after a row that Spark cannot compute, and the run can be repeated."""
    spark.catalog.clearCache()
    for number, key in enumerate(["a", "bad", "c"]):
        write_rows(tmp_path / "in", number, [(key, 1, 0.0, 1)])
    step = "CASE WHEN k = 'bad' THEN raise_error('no') ELSE k END"
    with pytest.raises(HoldfastError):
        chain(tmp_path, spark, step=step).run()
    assert not persisted(spark)
    with pytest.raises(HoldfastError):
        chain(tmp_path, spark, step=step).run()
    assert chain(tmp_path, spark, step=step).reader().resolve("latest").epoch == 0


def test_who_was_overtaken_learns_that_and_not_that_files_are_missing(spark, tmp_path) -> None:
    """A run whose files its successor has removed ends with `FencedError`."""
    for number in range(FILES):
        write_rows(tmp_path / "in", number, [("a", 1, 0.0, 1)])

    def overtake(report) -> None:
        if report.epoch == 1:  # so that epoch 0 is committed
            topology = chain(tmp_path, spark).reader().manifest("latest").topology
            open_store(tmp_path / "cp", "p", topology=topology, takeover=True).close()
            for kind in ("*.snap", "*.delta"):
                for run in (tmp_path / "cp").rglob(kind):
                    run.unlink()

    with pytest.raises(FencedError):
        chain(tmp_path, spark).run(on_epoch=overtake)


def test_what_cannot_begin_ahead_runs_in_its_epoch(spark, tmp_path, monkeypatch) -> None:
    """Beginning early is a favour: when it fails, the epoch does it all, and nothing is lost."""
    for number in range(FILES):
        write_rows(tmp_path / "in", number, [("a", 1, 1.0, 1)])

    def broken(action):
        raise RuntimeError("another Spark")

    monkeypatch.setattr(frames, "begin_shuffles", broken)
    pipe = chain(tmp_path, spark, single=True)
    assert pipe.run().epochs == FILES
    assert [row["n"] for row in pipe.view("totals").to_arrow().to_pylist()] == [FILES]

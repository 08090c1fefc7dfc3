"""Merges happen beside the epochs, and happen."""

from __future__ import annotations

import holdfast as hf
from holdfast.runtime import compaction_work as working
from holdfast.runtime import compactor as merging
from holdfast.state import CompactionPolicy, runs_of
from holdfast.state.partition import layers, run_slices
from tests.helpers.pipeline_world import write_rows

RUNS_MAX = 3
SHORT_RUNS = 8


def test_short_runs_do_not_leave_the_merging_to_each_other(spark, tmp_path, monkeypatch) -> None:
    """A pipeline that is started for one epoch at a time keeps as few layers as one that runs on."""
    policy = CompactionPolicy(fanout=3, runs_max=RUNS_MAX)
    monkeypatch.setattr(merging, "CompactionPolicy", lambda: policy)
    most = 0
    for number in range(SHORT_RUNS):
        write_rows(tmp_path / "in", number, [(f"k{number % 4}", 1, 1.0, 1)])
        pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=1)
        files = hf.sources.Files(
            str(tmp_path / "in"), schema="k string, x long, f double, w long", files_max=1
        )
        pipe.source("in", files).group_by("k").agg(n=hf.count(), name="t")
        pipe.run(epochs=1)
        manifest = pipe.reader().manifest("latest")
        most = max(most, len(layers(run_slices(runs_of(manifest, "t")))))
    assert most <= RUNS_MAX + 1
    counts = {row["k"]: row["n"] for row in pipe.view("t").to_spark(spark).collect()}
    assert counts == {f"k{key}": SHORT_RUNS // 4 for key in range(4)}


def test_a_start_without_new_rows_merges_nothing(spark, tmp_path, monkeypatch) -> None:
    """What is overdue waits for the next epoch: without one, nothing would list what was merged."""
    files = hf.sources.Files(
        str(tmp_path / "in"), schema="k string, x long, f double, w long", files_max=1
    )

    def run() -> hf.RunSummary:
        pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=1)
        pipe.source("in", files).group_by("k").agg(n=hf.count(), name="t")
        return pipe.run()

    with monkeypatch.context() as patch:
        patch.setattr(merging.Compactor, "start", lambda *_: None)
        for number in range(RUNS_MAX + 2):
            write_rows(tmp_path / "in", number, [("k", 1, 1.0, 1)])
        assert run().epochs == RUNS_MAX + 2
    policy, real, merges = CompactionPolicy(fanout=3, runs_max=RUNS_MAX), working.run_compaction, []
    monkeypatch.setattr(merging, "CompactionPolicy", lambda: policy)
    monkeypatch.setattr(
        working, "run_compaction", lambda *args, **more: (merges.append(1), real(*args, **more))[1]
    )
    assert run().epochs == 0
    assert merges == []
    write_rows(tmp_path / "in", 99, [("k", 1, 1.0, 1)])
    assert run().epochs == 1
    assert merges

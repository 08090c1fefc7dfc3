"""Run lists reach the tasks whole: inline where they are short, by partition where they are long."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from holdfast.errors import CorruptionError
from holdfast.format import paths
from holdfast.ids import SeededIds
from holdfast.runtime import run_lists
from holdfast.runtime.run_lists import DocumentWriter, needs_document, pack, read_part, unpack
from holdfast.runtime.stage_job import StageJob, received_job, sent_jobs, with_documents, with_lists
from holdfast.state import RunInfo, partition_range
from holdfast.storage.open import StorageLocation, storage_of
from tests.unit.runtime.test_stage_job import Context

ids = SeededIds(7)
numbers = itertools.count()


def run(partition: int, partitions: int, epoch: int, **more) -> RunInfo:
    vnodes = partition_range(partition, partitions)
    checkpoint = ids.checkpoint_id(0)
    facts = {
        "path": paths.run(checkpoint, "t", partition, ids.token(), snapshot=False),
        "size": 1_000 + epoch, "sha256": ids.token() * 4, "trace": "latest", "snapshot": False,
        "operator": "t", "partition": partition, "rows": 5, "hash_min": vnodes.hash_low,
        "hash_max": vnodes.hash_high, "vnodes": vnodes, "epoch_low": epoch, "epoch_high": epoch,
        "base": str(checkpoint),
    }  # fmt: skip
    return RunInfo(**{**facts, **more})


def lists(partitions: int, epochs: int = 3) -> dict[str, list[RunInfo]]:
    """Runs of all partitions, and wide ones of small epochs."""
    narrow = [run(n, partitions, epoch) for epoch in range(epochs) for n in range(partitions)]
    return {"t": [*narrow, run(0, 1, epochs), run(1, 2, epochs + 1)], "u": []}


def test_a_packed_list_has_every_fact():
    """Also those that are rarely there: times, another pipeline, a compaction without rows."""
    odd = run(
        2, 7, 4, time_min_us=-5, time_max_us=9, pipeline="other", generation=3, epoch_low=1,
        snapshot=True, base=None, rows=0,
    )  # fmt: skip
    given = {"t": [odd, run(0, 1, 0)], "empty": []}
    assert unpack(pack(given)) == given


def test_a_packed_run_is_less_than_half_of_what_it_was():
    """Names of facts and digests as text were most of it."""
    given = lists(64)
    assert len(pack(given)) < 0.5 * len(msgspec.json.encode(StageJob("c", None, 1, given)))


@pytest.mark.parametrize("tasks", [1, 2, 3, 64, 256])
def test_a_task_reads_what_its_partition_needs_and_no_more(tasks):
    """Every run that shares a vnode with the partition, in order, whatever wrote it."""
    given = lists(64)
    writer = DocumentWriter(ids.checkpoint_id(0), ids.token())
    first = writer.add({"v": [run(0, 1, 9)]}, 2)
    second = writer.add(given, tasks)
    content = writer.content

    def get_range(path: str, start: int, length: int) -> bytes:
        assert path == writer.path
        return content[start : start + length]

    for number in range(tasks):
        within = partition_range(number, tasks)
        expected = {t: [r for r in runs if r.vnodes.intersect(within)] for t, runs in given.items()}
        assert read_part(second, number, get_range) == expected
    assert [*read_part(first, 1, get_range)] == ["v"]


def test_other_bytes_are_refused():
    """A document that was overwritten or cut is no run list."""
    writer = DocumentWriter(ids.checkpoint_id(0), ids.token())
    document = writer.add(lists(2), 2)
    for damaged in (b"", bytes(len(writer.content))):
        with pytest.raises(CorruptionError) as caught:
            read_part(document, 1, lambda _, start, length, d=damaged: d[start : start + length])
        assert caught.value.kind == "run_lists_differ"


def test_a_document_is_written_only_where_it_saves_and_goes_with_its_job():
    """Short lists go inline; long ones to where a clean-up would find them, for one epoch."""
    place = StorageLocation(f"memory://lists{next(numbers)}")
    storage, context = storage_of(place), Context()
    checkpoint = str(ids.checkpoint_id(0))
    jobs = {"t": StageJob(checkpoint, None, 1, lists(256)), "s": StageJob(checkpoint, None, 1)}
    with with_documents(jobs, {"t": 1, "s": 256}, storage, "p", ids.token) as sent:
        assert sent == jobs
        assert [*storage.list("")] == []
    with (
        pytest.raises(ZeroDivisionError),
        with_documents(jobs, {"t": 256, "s": 256}, storage, "p", ids.token) as sent,
        sent_jobs(context, sent),
    ):
        assert max(len(text) for text in context.properties.values()) < 20_000
        (entry,) = storage.list("")
        found = paths.classify(entry.path.removeprefix("p/"))
        assert found is not None
        assert found.kind == "temporary"
        job = with_lists(received_job("t", None, context), 200, place, "p")
        assert job.runs["t"] == [
            r for r in jobs["t"].runs["t"] if r.vnodes.intersect(partition_range(200, 256))
        ]
        assert with_lists(received_job("s", None, context), 3, place, "p") == jobs["s"]
        raise ZeroDivisionError
    assert [*storage.list("")] == []


def test_what_all_tasks_carry_together_is_bounded(monkeypatch):
    """Runs times tasks decide: many runs to one task are as good as few to many."""
    monkeypatch.setattr(run_lists, "INLINE_BYTES_MAX", 300 * 1_000)
    some = {"t": [run(0, 1, 0)] * 100}
    assert not needs_document(some, 10)
    assert needs_document(some, 11)
    assert not needs_document({}, 256)

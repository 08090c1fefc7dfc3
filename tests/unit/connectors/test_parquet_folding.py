"""Folding a changelog: readers see the same rows at every moment, and a crash changes nothing."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections import Counter
from unittest.mock import patch

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.checkpoint import PendingToken
from holdfast.connectors.base import StagedFile, token_text
from holdfast.connectors.parquet import folding
from holdfast.connectors.parquet.fold_files import FoldTask
from holdfast.connectors.parquet.folding import Directory, plan_folds
from holdfast.connectors.parquet.sink import Parquet
from holdfast.errors import InvalidInputError, RefusedError
from holdfast.format.owner import new_owner
from holdfast.ids import Epoch, SeededIds
from holdfast.storage import open_storage
from holdfast.storage.local.disk import Disk, installed_disk
from holdfast.testing import SimulatedCrash, crash_at

POINTS = [
    "fold.after_attempts",
    "fold.after_directory",
    "fold.after_tree",
    "fold.after_exchange",
    "fold.after_swap",
]


def publish(writer, path, epoch: int, values: list[int]) -> PendingToken:
    """Stage and publish one epoch as the epoch loop does."""
    checkpoint = SeededIds(epoch).checkpoint_id(0)
    _, directory = writer.staging(checkpoint)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": values}), sink)
    data = sink.getvalue().to_pybytes()
    name = f"{directory}/part-00000-{epoch}.parquet"
    open_storage(str(path)).put(name, data)
    text = token_text(directory, [StagedFile("out", name, len(data), "", len(values))])
    token = PendingToken(checkpoint, Epoch(epoch), "out", text, "retracts", "pending")
    writer.commit(token)
    return token


def opened(path, **options):
    """A writer that owns its output."""
    writer = Parquet(str(path), **options).open("out", "p", None, None)
    found = writer.inspect(None)
    writer.claim(found.owner or new_owner("lineage", "p", "out"))
    return writer


def rows(path) -> Counter:
    """What DuckDB finds in the directory."""
    found = duckdb.connect().sql(f"SELECT x FROM read_parquet('{path}/hf_epoch=*/*.parquet')")
    return Counter(x for (x,) in found.fetchall())


def directories(path) -> list[int]:
    return sorted(int(n.partition("=")[2]) for n in os.listdir(path) if n.startswith("hf_epoch="))


def test_a_plan_folds_neighbours_of_one_level_and_never_past_the_limit() -> None:
    """Directories stay logarithmic in the epochs, each row is rewritten once for each level."""
    there: list[Directory] = []
    rewritten = 0
    for epoch in range(1, 1_001):
        there.append(Directory(epoch, epoch, 10))
        for group in plan_folds(there, epoch - 5, every=10, target_bytes=1 << 30):
            assert len(group) >= 10 and group[-1].last <= epoch - 5
            rewritten += sum(d.bytes for d in group)
            there = [d for d in there if d not in group]
            there.append(Directory(group[0].first, group[-1].last, sum(d.bytes for d in group)))
            there.sort(key=lambda d: d.last)
    assert len(there) <= 3 * 10 + 5
    assert rewritten <= 3 * 1_000 * 10
    assert sum(d.span for d in there) == 1_000
    big = [Directory(n, n, 100) for n in range(1, 9)]
    assert plan_folds(big, 8, every=2, target_bytes=100) == []
    assert [len(g) for g in plan_folds(big, 8, every=None, target_bytes=300)] == [3, 3, 2]


def test_readers_see_every_row_once_while_directories_are_folded(tmp_path) -> None:
    """A concurrent reader of the real path never sees a row less, twice or half an epoch."""
    path = tmp_path / "out"
    writer = opened(path, compact_after=4, compact_grace_ms=600_000)
    stop, wrong, seen = threading.Event(), [], [0]
    done = [0]

    def read() -> None:
        while not stop.is_set():
            before = done[0]
            found = rows(os.path.realpath(path)) if before else Counter()
            numbers = sorted(found)
            if before and (numbers[:before] != [*range(before)] or set(found.values()) != {1}):
                wrong.append((before, found))
            seen[0] += 1

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for epoch in range(60):
            publish(writer, path, epoch, [epoch])
            done[0] = epoch + 1
            if writer.compaction_due(epoch - 3):
                writer.compact(epoch - 3, requested=False)
    finally:
        stop.set()
        reader.join()
    assert not wrong and seen[0] > 10
    assert rows(path) == Counter(range(60))
    assert len(directories(path)) < 20


class NoExchange(Disk):
    """A file system that cannot swap two names."""

    def exchange(self, one: str, other: str) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), other)


def test_an_output_with_a_policy_is_a_link_from_the_beginning(tmp_path) -> None:
    """Where names cannot be exchanged, a new output can still be folded; an old one is refused."""
    path, old = tmp_path / "new", tmp_path / "old"
    with installed_disk(NoExchange()):
        writer, plain = opened(path, compact_after=2), opened(old)
        for epoch in range(5):
            publish(writer, path, epoch, [epoch])
            publish(plain, old, epoch, [epoch])
        assert path.is_symlink() and not old.is_symlink()
        writer.compact(4, requested=False)
        assert rows(path) == Counter(range(5)) and len(directories(path)) == 1
        with pytest.raises(RefusedError) as caught:
            plain.compact(4, requested=True)
        assert caught.value.kind == "fold_unsupported"
        assert rows(old) == Counter(range(5)) and len(directories(old)) == 5
        assert opened(path).inspect(4).whole and opened(old).inspect(4).whole


@pytest.mark.parametrize("options", [{}, {"driver_bytes": 0}], ids=["driver", "tasks"])
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_every_step_of_a_fold_leaves_all_rows(tmp_path, point, options) -> None:
    """Before and after the crash the output has every row, and the next fold goes through."""
    path = tmp_path / "out"
    writer = opened(path, **options)
    for epoch in range(6):
        publish(writer, path, epoch, [epoch, epoch + 100])
    want = Counter([*range(6), *range(100, 106)])
    with pytest.raises(SimulatedCrash), crash_at(point):
        writer.compact(4, requested=True)
    assert rows(path) == want
    writer = opened(path, **options)
    writer.remove_stale_staging([])
    writer.compact(4, requested=True)
    assert not [n for n in os.listdir(tmp_path / ".out.versions") if n.startswith("attempts")]
    assert rows(path) == want
    assert directories(path) == [4, 5]
    found = writer.inspect(4)
    assert found.owner.folds == [(0, 4)] and found.whole and found.retractable
    assert not writer.inspect(3).retractable
    token = publish(writer, path, 6, [6])
    writer.commit(token)
    writer.retract(4)
    assert rows(path) == want - Counter([5, 105])
    writer.clear()
    assert directories(path) == [] and writer.folds() == []


def test_folded_files_are_cut_by_bytes_and_keep_order_and_rows(tmp_path) -> None:
    """Driver and tasks write the same rows in the same order; where tasks do not reach it, the driver does."""
    found = []
    for name, options in (("driver", {}), ("tasks", {"driver_bytes": 0}), ("far", {})):
        path = tmp_path / name
        writer, rng = (
            opened(path, compact_after=4, compact_bytes=40_000, **options),
            random.Random(1),
        )
        for epoch in range(4):
            publish(writer, path, epoch, [rng.getrandbits(62) for _ in range(3_000)])
        if name == "far":
            writer._folder._driver_bytes = 0

            def elsewhere(attempts: str, target_bytes: int) -> FoldTask:
                return FoldTask(f"{attempts}-of-another-machine", target_bytes)

            with patch.object(folding, "FoldTask", elsewhere):
                writer.compact(3, requested=False)
        else:
            writer.compact(3, requested=False)
        files = sorted((path).glob("hf_epoch=*/*.parquet"))
        found.append([pq.ParquetFile(file).read()["x"].to_pylist() for file in files])
        assert directories(path) == [3]
    assert found[0] == found[1] == found[2]
    assert [len(values) for values in found[0]] == [6_000, 6_000]


def test_old_trees_go_after_the_grace_period_and_staged_rows_stay(tmp_path) -> None:
    """What was staged before a fold can be published after it; old trees do not pile up."""
    path = tmp_path / "out"
    writer = opened(path, compact_grace_ms=0)
    rng = random.Random(3)
    want: Counter = Counter()
    for turn in range(4):
        for epoch in range(turn * 3, turn * 3 + 3):
            values = [rng.randrange(9) for _ in range(3)]
            publish(writer, path, epoch, values)
            want.update(values)
        staged = writer.staging("waiting")[1]
        open_storage(str(path)).put(f"{staged}/part-1.parquet", b"rows")
        writer.compact(turn * 3 + 1, requested=True)
        assert (path / staged / "part-1.parquet").read_bytes() == b"rows"
        assert rows(path) == want
    writer.remove_stale_staging(["waiting"])
    assert len(os.listdir(tmp_path / ".out.versions")) == 1
    assert (path / staged / "part-1.parquet").exists()


def test_what_cannot_be_folded_is_refused_when_it_is_declared() -> None:
    """Object stores and upsert outputs have no fold."""
    for path, options in (("s3://b/o", {}), ("out", {"mode": "upsert"})):
        with pytest.raises(InvalidInputError) as caught:
            Parquet(path, compact_after=10, **options)
        assert caught.value.kind == "cannot_compact"
    with pytest.raises(InvalidInputError):
        Parquet("out", compact_after=1)

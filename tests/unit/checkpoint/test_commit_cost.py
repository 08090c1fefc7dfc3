"""What a commit writes and looks at follows the change, however many files there are."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.counting_storage import CountingStorage
from benchmarks.fake_runs import FakePipeline, shape, traces_of
from holdfast import Settings
from holdfast.checkpoint import open_store, read_store, verify_store
from holdfast.checkpoint.commit import protocol
from holdfast.errors import InvalidInputError
from holdfast.format import validate as validation
from holdfast.format.inventory import Inventory
from holdfast.state import RunIndex, TraceKind, put_index, runs_of

SETTINGS = Settings(recovery_verify="shallow")


def filled(files):
    """A store with so many runs, of which only the sizes exist."""
    storage = CountingStorage()

    def write(runs):
        for run in runs:
            storage.phantom(f"p/{run.path}", run.size)

    store = open_store(storage, "p", topology=shape(traces_of(files)), settings=SETTINGS)
    return storage, store, FakePipeline.filled(store, write, files)


def epochs(storage, store, pipeline, count):
    """Requests and bytes of so many epochs with 4 runs added and 8 replaced."""
    before, put = storage.requests.copy(), storage.bytes_put
    for _ in range(count):
        pipeline.commit(pipeline.change())
        assert store.retain().error is None
    return storage.requests - before, storage.bytes_put - put


def test_requests_and_bytes_of_a_commit_do_not_grow_with_the_files():
    """At 8,000 files a commit sends as many requests as at 200, and a few lines for segments."""
    sent, written = {}, {}
    for files in (200, 8_000):
        world = filled(files)
        epochs(*world, 3)
        sent[files], written[files] = epochs(*world, 40)
        assert verify_store(read_store(world[0], "p")).ok
    assert sent[200]["HEAD"] == sent[8_000]["HEAD"] == 0
    assert sent[8_000]["GET"] <= sent[200]["GET"] + 2
    assert sent[8_000]["LIST"] <= sent[200]["LIST"] + 2
    assert sent[8_000]["PUT"] <= sent[200]["PUT"] + 4  # a segment now and then
    assert written[8_000] <= written[200] + 40 * 60_000


def test_no_step_of_a_commit_walks_the_inventory(monkeypatch):
    """Draft, validation, the look at files and retention see what is new, and nothing else."""
    storage, store, pipeline = filled(8_000)
    epochs(storage, store, pipeline, 3)
    seen = Counter()

    def counted(owner, name):
        real = getattr(owner, name)

        def call(*args, **kwargs):
            seen[name] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    counted(Inventory, "__iter__")
    counted(validation, "_plain_run")
    counted(validation, "_file")
    counted(protocol, "check_file")
    counted(RunIndex, "runs")
    epochs(storage, store, pipeline, 10)
    assert seen["__iter__"] == seen["check_file"] == seen["runs"] == 0
    assert seen["_plain_run"] + seen["_file"] <= 10 * 8


def test_a_store_goes_on_from_what_its_checkpoint_lists():
    """After a restart the index begins with the runs of the checkpoint, and nothing is lost."""
    storage, store, pipeline = filled(600)
    epochs(storage, store, pipeline, 5)
    expected = {run.path for index in pipeline.indexes.values() for run in index}
    topology = store.topology
    store.close()
    with open_store(storage, "p", topology=topology, settings=SETTINGS) as again:
        manifest = again.current
        indexes = {
            name: RunIndex(pipeline.partitions, runs_of(manifest, name))
            for name in pipeline.indexes
        }
        assert {run.path for index in indexes.values() for run in index} == expected
        other = FakePipeline(again, pipeline._write, indexes)
        epochs(storage, again, other, 5)
        listed = {e.path for e in again.current.files if e.kind in ("snapshot", "delta")}
        assert listed == {run.path for index in indexes.values() for run in index}
    assert verify_store(read_store(storage, "p")).ok


def test_an_index_that_began_otherwise_is_put_whole():
    """A checkpoint lists a run that no index has: the next one lists what the index has."""
    storage, store, pipeline = filled(60)
    epochs(storage, store, pipeline, 2)
    index = pipeline.indexes["op0"]
    pipeline.indexes["op0"] = RunIndex(index.partitions, index.runs()[:-1])
    epochs(storage, store, pipeline, 2)
    listed = {e.path for e in store.current.files if e.kind in ("snapshot", "delta")}
    assert listed == {run.path for run in pipeline.indexes["op0"]}
    assert index.runs()[-1].path not in listed


def test_only_files_of_the_draft_can_leave_it():
    """A name that neither the parent nor the draft lists is refused."""
    storage, store, pipeline = filled(60)
    epochs(storage, store, pipeline, 1)
    with pytest.raises(InvalidInputError) as caught:
        store.draft().remove_files("op0", [(None, "checkpoints/nobody")])
    assert caught.value.kind == "file_not_listed"


def test_full_checkpoints_take_the_whole_index():
    """Where nothing is inherited, an index puts all of its runs into the draft."""
    storage, store, pipeline = filled(60)
    topology = store.topology
    store.close()
    settings = Settings(recovery_verify="shallow", incremental=False)
    with open_store(storage, "p", topology=topology, settings=settings) as again:
        draft = again.draft()
        with pytest.raises(InvalidInputError) as caught:
            put_index(draft, "op0", TraceKind.LATEST, pipeline.indexes["op0"])
        assert caught.value.kind == "not_incremental"

"""Forks: nothing is copied, both sides can be collected, and a crash leaves nothing half-made."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.checkpoint.replication.fork import fork_pipeline
from holdfast.errors import ConflictError, CorruptionError, RefusedError
from holdfast.storage import MemoryStorage
from holdfast.testing.wrapped_storage import WRITES, WrappedStorage
from tests.helpers.cli_world import World, call, damage, holdfast


def follow(world, name):
    """The fork as a world of its own, knowing what its first checkpoint must hold."""
    fork = World(world.root, name=name, options=world.options)
    (first,) = [s for s in fork.reader.list() if not s.sinks]
    fork.truth[first.checkpoint] = {}
    fork.ids.append(first.checkpoint)
    return fork


def test_a_fork_copies_nothing_and_goes_on_alone(world):
    """The fork shares every file, has the epoch and rows of its origin, and grows by itself."""
    before = {p for p in (world.root / "orders" / "checkpoints").rglob("*") if p.is_file()}
    answer = holdfast("fork", world.address, "epoch:1", "trial", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["pin"] == "fork-trial"
    runs = [*(world.root / "trial").rglob("*.snap"), *(world.root / "trial").rglob("*.delta")]
    assert runs == []
    assert {p for p in (world.root / "orders" / "checkpoints").rglob("*") if p.is_file()} == before
    rows = call("state", f"{world.root}/trial", "totals", "--limit", 0, "--json").json["rows"]
    assert {r[0]: (r[1], r[2]) for r in rows} == world.truth[world.ids[1]]
    fork = follow(world, "trial")
    fork.truth[fork.ids[0]] = world.truth[world.ids[1]]
    fork.grow({"only-here": 5})
    rows = call("state", fork.address, "totals", "--limit", 0, "--json").json["rows"]
    assert {r[0] for r in rows} == {*world.truth[world.ids[1]], "only-here"}
    assert "only-here" not in call("state", world.address, "totals", "--limit", 0).out
    assert (
        call("show", fork.address, "--json").json["properties"]["forked_from"].startswith("orders/")
    )
    for each in (world, fork):
        assert hf.checkpoint.verify_store(each.reader, deep=True).ok


def test_both_collections_respect_the_shared_files(world):
    """The origin's gc keeps what the fork needs, the fork's gc touches nothing of the origin."""
    call("fork", world.address, "epoch:0", "trial")
    call("gc", world.address, "--retain", 2)
    fork = follow(world, "trial")
    assert hf.checkpoint.verify_store(fork.reader, deep=True).ok
    fork.truth[fork.ids[0]] = world.truth[world.ids[0]]
    fork.grow({"a": 1}, {"b": 2}, {"c": 3})
    call("gc", fork.address, "--retain", 2)
    assert hf.checkpoint.verify_store(fork.reader, deep=True).ok
    assert hf.checkpoint.verify_store(world.reader, deep=True).ok
    refused = call("unpin", world.address, "fork-trial")
    assert refused.code == 1
    assert "still needs" in refused.err


def test_the_origins_savepoint_goes_when_the_fork_needs_nothing_of_it(world):
    """Once no live checkpoint of the fork names a file of its origin, its gc lets the pin go."""
    call("fork", world.address, "epoch:1", "trial")
    fork = World(world.root, name="trial", settings=hf.Settings(retain=2))
    store = fork.open()
    for n in range(3):  # full snapshots: nothing inherited
        draft = store.draft()
        run = draft.write_run("totals", 0, b"whole", snapshot=True, rows=1)
        draft.set_operator("totals", trace="latest", files=[run], rows=1, keys=1)
        draft.set_source(
            "orders", hf.checkpoint.CounterPosition(partitions={"0": 30 + n, "1": 30 + n})
        )
        store.commit(draft)
    fork.close()
    assert [p.label for p in world.reader.pins()] == ["fork-trial"]
    early = call("gc", fork.address, "--json").json
    assert early["released"] == []
    late = call("gc", fork.address, "--retain", 2, "--json").json
    assert late["released"] == ["orders"]
    assert list(world.reader.pins()) == []


def test_a_fork_of_a_fork_shares_the_first_origins_files(world):
    """Files are found where they lie, however many forks are between."""
    call("fork", world.address, "epoch:2", "second")
    call("fork", f"{world.root}/second", "latest", "third")
    call("gc", world.address, "--retain", 2)
    call("gc", f"{world.root}/second", "--retain", 2)
    third = follow(world, "third")
    assert hf.checkpoint.verify_store(third.reader, deep=True).ok
    rows = call("state", third.address, "totals", "--limit", 0, "--json").json["rows"]
    assert {r[0]: (r[1], r[2]) for r in rows} == world.truth[world.ids[2]]


def test_a_taken_name_and_a_damaged_checkpoint_are_refused(world):
    """A fork never lands in an existing pipeline, and never begins at a checkpoint with lost files."""
    storage = world.storage
    fork_pipeline(storage, "orders", "latest", "trial")
    with pytest.raises(ConflictError, match="exists already"):
        fork_pipeline(storage, "orders", "latest", "trial")
    damage(world.file_of(f"checkpoints/{world.ids[3]}/operators/totals/*"), "remove")
    with pytest.raises(CorruptionError, match="damaged"):
        fork_pipeline(storage, "orders", "latest", "other")
    assert not storage.exists("orders/pins/fork-other.json")


class Dies(WrappedStorage):
    """Ends with the n-th operation that changes something, before or after it took effect."""

    def __init__(self, inner, nth, *, after):
        super().__init__(inner)
        self.left, self.after = nth, after

    def around(self, operation, path, call, size=0):
        if operation in WRITES:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise KeyboardInterrupt
            result = call()
            if self.left == 0:
                raise KeyboardInterrupt
            return result
        return call()


def test_a_fork_that_dies_anywhere_can_be_made_again():
    """After death at any write the origin is whole, the fork is empty or complete, and forking
    again succeeds or says that it is there."""
    nth, finished = 0, False
    while not finished:
        nth += 1
        for after in (False, True):
            memory = MemoryStorage("m")
            store = hf.checkpoint.open_store(memory, "orders", topology=_TOPOLOGY)
            _plain(store, 2)
            store.close()
            try:
                fork_pipeline(Dies(memory, nth, after=after), "orders", "latest", "trial")
                finished = True
            except KeyboardInterrupt:
                pass
            assert hf.checkpoint.verify_store(
                hf.checkpoint.read_store(memory, "orders"), deep=True
            ).ok
            if (
                not hf.checkpoint.list_pipelines(memory) == ["orders", "trial"]
                or not hf.checkpoint.read_store(memory, "trial").list()
            ):
                fork_pipeline(memory, "orders", "latest", "trial")
            fork = hf.checkpoint.read_store(memory, "trial")
            assert [s.epoch for s in fork.list()] == [1]
            assert hf.checkpoint.verify_store(fork, deep=True).ok
            hf.checkpoint.open_store(memory, "trial", topology=_TOPOLOGY).close()
    assert nth > 5


_TOPOLOGY = hf.checkpoint.topology(
    hf.checkpoint.Part(name="in", kind="source", what="counter"),
    hf.checkpoint.Part(name="op", kind="operator", what="sum", inputs=["in"], stateful=True),
)


def _plain(store, count):
    for _ in range(count):
        draft = store.draft()
        snapshot = store.current is None
        run = draft.write_run("op", 0, b"r%d" % draft.epoch, snapshot=snapshot, rows=1)
        if snapshot:
            draft.set_operator("op", trace="latest", files=[run], rows=1, keys=1)
        else:
            draft.add_file(run)
        draft.set_source("in", hf.checkpoint.CounterPosition(partitions={"0": draft.epoch + 1}))
        store.commit(draft)


def test_unpinning_a_forks_savepoint_can_be_forced(world):
    """A forced unpin works; without force it is refused by the library as well."""
    fork_pipeline(world.storage, "orders", "epoch:0", "trial")
    store = world.open()
    with pytest.raises(RefusedError, match="fork"):
        store.unpin("fork-trial")
    store.unpin("fork-trial", force=True)
    world.close()

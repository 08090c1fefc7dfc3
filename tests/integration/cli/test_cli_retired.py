"""What is read while retention takes it away: retired, never damaged."""

from __future__ import annotations

import pyarrow as pa  # noqa: F401 - loaded before the clock of a test runs
import pytest

import holdfast as hf
from holdfast.cli.commands.diff import diff_places
from holdfast.cli.commands.ls import list_checkpoints
from holdfast.cli.commands.show import show_checkpoint
from holdfast.cli.commands.state import query_state
from holdfast.cli.targets import Place
from holdfast.state import TraceKind, put_trace
from holdfast.storage import MemoryStorage
from tests.helpers.cli_world import PARTITIONS, World
from tests.helpers.interleave import at_every_moment


class InMemory(World):
    """The same world in a storage that is given."""

    @property
    def storage(self):
        return self.memory

    def snapshots(self):
        """Three checkpoints that inherit nothing, and then retention."""
        for number in range(3):
            before, draft = self.store.current, self.store.draft()
            made = self._runs(self.store, draft, [], {"z": (number, 1), "y": (number, 2)})
            put_trace(
                draft,
                "totals",
                TraceKind.LATEST,
                made,
                partitions=PARTITIONS,
                rows=2,
                keys=2,
                counts="live",
            )
            draft.put_small("note", b"new")
            draft.set_source("orders", before.sources[0].position)
            draft.stage_sink("out", "token", replay=self.replay)
            done = self.store.commit(draft)
            self.store.record_outcome(done.checkpoint, "out", "committed")
        assert self.store.retain().error is None


def busy():
    world = InMemory(root="memory://busy", settings=hf.Settings(retain=2, exclusive=False))
    world.memory = MemoryStorage()
    world.open()
    world.grow({"a": 1, "b": 2}, {"a": 3, "c": 4})
    world.live = [*reversed(world.store.list())]
    return world


def at(world, on):
    return Place(on(world.memory), "memory://busy", world.name)


READERS = {
    "state": lambda w, on: query_state(at(w, on), w.live[1], "totals"),
    "diff": lambda w, on: diff_places(at(w, on), *w.live, operator="totals"),
    "show": lambda w, on: show_checkpoint(at(w, on), w.live[0], 0),
    "ls": lambda w, on: list_checkpoints(at(w, on), 0),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_retention_takes_while_it_is_read_is_retired(reader):
    """Every command answers, or says that the checkpoint was given up; none speaks of damage."""

    def check(world, answer):
        if isinstance(answer, Exception):
            assert (type(answer), answer.kind) == (hf.errors.NotFoundError, "retired"), answer
        elif reader == "ls":
            assert answer.checkpoints
            assert {row.health for row in answer.checkpoints} == {"ok"}

    at_every_moment(busy, READERS[reader], InMemory.snapshots, check)

"""Scenarios of the crash and fault suites: what is prepared, and the steps that may be cut off.

Every step is one call on the public interface, can be repeated, and takes a store from one snapshot
to the next. A crash inside step i must leave snapshot i or snapshot i + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.checkpoint import rebuild_catalog, upgrade_store
from holdfast.settings import Settings
from tests.helpers.scenes import PIPELINE, SETTINGS, World, as_version_1, fill

Step = Callable[[World], object]


def _nothing(world: World) -> None:
    del world


def several(count: int, *, outcomes: bool = True) -> Step:
    def prepare(world: World) -> None:
        world.open()
        for _ in range(count):
            world.commit()
            if outcomes:
                world.outcome()
        world.store.close()

    return prepare


def with_leftovers(world: World) -> None:
    """A crash in the middle of a draft, and temporary files of crashed puts."""
    several(2)(world)
    store = world.open()
    fill(store.draft(), 77, [0, 1])
    world.storage.put(f"{PIPELINE}/catalog/.hf-tmp-00000000000000aa", b"half a rec")
    world.storage.put(f"{PIPELINE}/.hf-tmp-00000000000000ab", b"")


def lost_catalog(world: World) -> None:
    several(3)(world)
    for entry in [*world.storage.list(f"{PIPELINE}/catalog")]:
        world.storage.delete(entry.path)


def lost_header(world: World) -> None:
    several(2)(world)
    world.storage.delete(f"{PIPELINE}/holdfast.json")


def pinned(world: World) -> None:
    several(3)(world)
    world.open().pin("gold", "epoch:0")
    world.store.close()


def rolled_back(world: World) -> None:
    several(3)(world)
    world.open(resume="epoch:0", accept_duplicates=True)
    world.store.close()


@dataclass(frozen=True)
class Scenario:
    name: str
    prepare: Step
    steps: Sequence[Step]
    settings: Settings = SETTINGS
    rebuilds: bool = field(default=False)


def _with(**changes: object) -> Settings:
    return msgspec.structs.replace(SETTINGS, **changes)


OPEN: Step = World.open
COMMIT: Step = World.commit


def outcome(world: World) -> None:
    world.outcome()


def failed(world: World) -> None:
    world.outcome("failed")


def retain(world: World) -> None:
    world.sweep(world.store.retain())


def gc(world: World) -> None:
    world.sweep(world.store.gc())


def clean_up(world: World) -> None:
    world.sweep(world.store.clean_up())


def delete_first(world: World) -> None:
    world.sweep(world.store.delete("epoch:0"))


def delete_newest_abandoned(world: World) -> None:
    world.sweep(world.store.delete("epoch:2"))


def compact(world: World) -> None:
    world.store.compact()


def pin(world: World) -> None:
    world.store.pin("gold", "latest")


def unpin(world: World) -> None:
    world.store.unpin("gold")


def rebuild(world: World) -> None:
    rebuild_catalog(world.storage, PIPELINE, clock=world.clock)


def version_1(world: World) -> None:
    several(2)(world)
    as_version_1(world.storage)


def upgrade(world: World) -> None:
    upgrade_store(world.storage, PIPELINE, takeover=True, clock=world.clock)


def go_back(world: World) -> None:
    world.open(resume="epoch:0", accept_duplicates=True)


def go_forward_again(world: World) -> None:
    world.open(resume="epoch:2", accept_duplicates=True)


SCENARIOS = [
    Scenario("fresh", _nothing, [OPEN, COMMIT, outcome, COMMIT, failed, outcome]),
    Scenario("reopen", several(3), [OPEN, COMMIT, outcome]),
    Scenario("reopen with pending sinks", several(2, outcomes=False), [OPEN, outcome, COMMIT]),
    Scenario("pin", several(2), [OPEN, pin, COMMIT, unpin]),
    Scenario("retain", several(3), [OPEN, COMMIT, outcome, retain], _with(retain=2)),
    Scenario("gc", several(3), [OPEN, COMMIT, gc], _with(retain=2)),
    Scenario("gc beside a pin", pinned, [OPEN, COMMIT, outcome, gc], _with(retain=2)),
    Scenario("delete", several(3), [OPEN, delete_first, COMMIT]),
    Scenario("delete an abandoned one", rolled_back, [OPEN, delete_newest_abandoned, COMMIT]),
    Scenario("compact", several(2), [OPEN, compact, COMMIT, outcome, compact, COMMIT]),
    Scenario(
        "retain and compact",
        several(3),
        [OPEN, COMMIT, outcome, retain, COMMIT],
        _with(retain=2, base_every_min=2),
    ),
    Scenario("clean-up", with_leftovers, [OPEN, clean_up, COMMIT]),
    Scenario("rebuild", lost_catalog, [rebuild, OPEN, COMMIT], rebuilds=True),
    Scenario("rebuild the header", lost_header, [rebuild, OPEN, COMMIT], rebuilds=True),
    Scenario("upgrade", version_1, [upgrade, OPEN, COMMIT]),
    Scenario("go on from version 1", version_1, [OPEN, COMMIT, outcome, upgrade]),
    Scenario("go back", several(3), [go_back, COMMIT, outcome]),
    Scenario("go back and forward again", rolled_back, [go_forward_again, COMMIT]),
]

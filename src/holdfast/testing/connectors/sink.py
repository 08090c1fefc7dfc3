"""Checks of a sink: each runs a small pipeline into it, and raises if a rule is broken.

The pipeline counts numbers by their remainder, so that every epoch retracts what the one before
gave. A crash is one of the process as far as the sink can tell: everything is made again from
declarations afterwards.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.connectors import (
    HoldfastError,
    Location,
    OutputWriter,
    StorageLocation,
    identity,
    storage_of,
)
from holdfast.testing.connectors.rigs import NAME, ConformanceError, SinkRig, require
from holdfast.testing.crash import SimulatedCrash, crash_at

if TYPE_CHECKING:
    from holdfast.api.pipeline import Pipeline

_PIPELINE = "conformance"
_KEYS, _EPOCH_ROWS = 3, 4


def _store(rig: SinkRig, name: str = "store") -> Path:
    return rig.home / name


def _pipeline(rig: SinkRig, rows: int, store: str = "store", *, other: Any = None) -> Pipeline:
    """Numbers 0 to `rows`, counted by their remainder, into the sink. other: a second sink."""
    import holdfast as hf

    pipe = hf.Pipeline(_PIPELINE, store=_store(rig, store), spark=rig.spark, partitions=2)
    numbers = hf.sources.Generator({"k": f"id % {_KEYS}"}, rows=rows, rows_per_epoch=_EPOCH_ROWS)
    counts = pipe.source("numbers", numbers).group_by("k").agg(n=hf.count(), name="counts")
    pipe.sink(NAME, counts, rig.sink())
    if other is not None:
        pipe.sink("other", counts, other)
    return pipe


def _expected(rows: int) -> Counter[tuple[int, int]]:
    return Counter(Counter(number % _KEYS for number in range(rows)).items())


def _rows(rig: SinkRig) -> Counter[tuple[int, int]]:
    return Counter((int(k), int(n)) for k, n in rig.rows())


def _compare(rig: SinkRig, rows: int, check: str, what: str) -> None:
    there, expected = _rows(rig), _expected(rows)
    require(
        there == expected, check, what, expected=sorted(expected), there=sorted(there.elements())
    )


def _crash(rig: SinkRig, rows: int, check: str, point: str, nth: int) -> None:
    try:
        with crash_at(point, nth):
            _pipeline(rig, rows).run()
    except SimulatedCrash:
        return
    raise ConformanceError(check, "the crash did not happen", point=point)


def check_publishes(rig: SinkRig) -> None:
    """Every epoch is published, over two runs; an epoch without rows does no harm."""
    check = "publishes"
    _pipeline(rig, 8).run()
    _compare(rig, 8, check, "the first run is not there")
    _pipeline(rig, 8).run()
    _pipeline(rig, 14).run()
    _compare(rig, 14, check, "the second run is not there")


def check_unseen_before_commit(rig: SinkRig) -> None:
    """What tasks have staged is not seen before the checkpoint is durable."""
    check = "unseen_before_commit"
    _crash(rig, 12, check, "epoch.after_execute", 2)
    there = _rows(rig)
    require(there in (Counter(), _expected(4)), check, "staged rows are seen", there=sorted(there))
    _pipeline(rig, 12).run(takeover=True)
    _compare(rig, 12, check, "the run after the crash is not whole")


def check_kill_before_publishing(rig: SinkRig) -> None:
    """An epoch that is durable and was not published is published by the next process, once."""
    check = "kill_before_publishing"
    _crash(rig, 12, check, "epoch.after_commit", 2)
    _pipeline(rig, 12).run(takeover=True)
    _compare(rig, 12, check, "an epoch is lost or doubled")


def check_same_epoch_twice(rig: SinkRig) -> None:
    """An epoch that was published, and whose record was lost, is published again: it is one."""
    check = "same_epoch_twice"
    _crash(rig, 12, check, "outcome.before_record", 2)
    _pipeline(rig, 12).run(takeover=True)
    _compare(rig, 12, check, "an epoch is doubled")


def check_staging_removed(rig: SinkRig) -> None:
    """What a dead process has staged is removed by the next one."""
    check = "staging_removed"
    _crash(rig, 12, check, "epoch.after_execute", 2)
    left = _staged(rig)
    require(left, check, "the tasks staged nothing where `staging` says")
    _pipeline(rig, 12).run(takeover=True)
    stale = left & _staged(rig)
    require(not stale, check, "staged rows of a dead process stay", first=next(iter(stale), None))


def _staged(rig: SinkRig) -> set[str]:
    """What lies in the staging directory of checkpoints that are not the newest."""
    store = StorageLocation(str(_store(rig)))
    writer = rig.sink().open(NAME, _PIPELINE, store, rig.spark)
    place, directory = writer.staging("checkpoint")
    root = directory.rpartition("/")[0]
    return {entry.path for entry in storage_of(place).list(root)}


def check_other_owner(rig: SinkRig) -> None:
    """Another pipeline is refused before it changes anything, where outputs have one owner."""
    check = "other_owner"
    _pipeline(rig, 8).run()
    store = StorageLocation(str(_store(rig)))
    writer = rig.sink().open(NAME, _PIPELINE, store, rig.spark)
    if not rig.owned or not isinstance(writer, OutputWriter):
        return
    refused = None
    try:
        _pipeline(rig, 12, "another-store").run()
    except HoldfastError as error:
        refused = error
    require(refused is not None, check, "another pipeline was let in")
    _compare(rig, 8, check, "another pipeline changed the output")


def check_going_back(rig: SinkRig) -> None:
    """Running epochs again that were published does as `replay` says, or is refused untouched."""
    check = "going_back"
    replay = rig.sink().replay
    _pipeline(rig, 8).run(label="then")
    _pipeline(rig, 16).run()
    try:
        _pipeline(rig, 16).run(from_checkpoint="then", epochs=1)
    except HoldfastError as error:
        require(
            replay == "none", check, "refused, though it says it can", replay=replay, error=error
        )
        _compare(rig, 16, check, "refused, and the output was changed")
        return
    require(replay != "none", check, "published twice without being asked")
    if replay == "retracts":
        _compare(rig, 12, check, "what lies after the checkpoint was not retracted")
    _pipeline(rig, 16).run()
    _compare(rig, 16, check, "epochs are doubled or lost after going back")


def check_asked_before_touched(rig: SinkRig) -> None:
    """Where another sink cannot go back, this one is asked, and is not touched."""
    import holdfast as hf

    check = "asked_before_touched"

    def build(rows: int) -> Pipeline:
        return _pipeline(rig, rows, other=hf.sinks.Function(_nothing))

    build(8).run(label="then")
    build(16).run()
    build(16).plan_outputs(from_checkpoint="then")
    _compare(rig, 16, check, "the output was changed when it was only asked")
    refused = None
    try:
        build(16).run(from_checkpoint="then")
    except HoldfastError as error:
        refused = error
    require(refused is not None, check, "a sink that would publish twice was not asked")
    _compare(rig, 16, check, "the output was changed before all were asked")


def _nothing(rows: object, epoch: int, key: str) -> None:
    """A user function that does not deduplicate."""


def check_replace(rig: SinkRig) -> None:
    """An output that is rebuilt for a new store has the rows of the new one, and no other."""
    check = "replace"
    _pipeline(rig, 16).run()
    store = StorageLocation(str(_store(rig)))
    writer = rig.sink().open(NAME, _PIPELINE, store, rig.spark)
    if not rig.owned or not isinstance(writer, OutputWriter):
        return
    _pipeline(rig, 8, "new-store").run(outputs={NAME: "adopt"})
    _compare(rig, 8, check, "the rebuilt output has other rows")


def check_declaration(rig: SinkRig) -> None:
    """Two declarations are one in the fingerprint; no secret is in it."""
    check = "declaration"
    first, second = rig.sink(), rig.sink()
    require(first.kind and first.kind == second.kind, check, "the kind is not stable")
    require(dict(first.params) == dict(second.params), check, "the params are not stable")
    texts = all(isinstance(v, str) for pair in first.params.items() for v in pair)
    require(texts, check, "params are not texts")
    require(first.replay in ("retracts", "deduplicates", "none"), check, "replay is unknown")
    shown = [repr(first), *first.params.values(), *(one.path for one in first.locations())]
    for secret in rig.secrets:
        require(not any(secret in text for text in shown), check, "a secret leaves the declaration")


def check_sink_locations(rig: SinkRig) -> None:
    """Directories that it writes are told, so that no other part of a pipeline disturbs them."""
    check = "locations"
    told = rig.sink().locations()
    require(all(isinstance(one, Location) for one in told), check, "something else than Locations")
    places = [identity(one.path) for one in told]
    for directory in rig.directories():
        own = identity(os.path.abspath(directory))
        inside = any(own.startswith(place) for place in places)
        require(inside, check, "a directory is not told", directory=directory)


SINK_CHECKS = (
    check_publishes,
    check_unseen_before_commit,
    check_kill_before_publishing,
    check_same_epoch_twice,
    check_staging_removed,
    check_other_owner,
    check_going_back,
    check_asked_before_touched,
    check_replace,
    check_declaration,
    check_sink_locations,
)
"""Every check of a sink, in the order in which they are best read."""

"""Checks of a source: each is one rule of `Source` and `SourceReader`, and raises if broken."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from holdfast.checkpoint import OpenPosition, Part
from holdfast.connectors import (
    BAD,
    BAD_COLUMNS,
    HoldfastError,
    Location,
    SourceReader,
    compare,
    identity,
    quoted,
)
from holdfast.testing.connectors.rigs import NAME, Reading, SourceRig, reading, require, texts

_FEW = 7


def check_splits_repeat(rig: SourceRig) -> None:
    """A split gives the same rows whenever it is read, until it is committed."""
    check = "splits_repeat"
    rig.add(_FEW)
    with reading(rig, rig.home) as world:
        reader = world.opened()
        for split in world.drain(reader):
            first = world.rows(reader, split)
            require(first == world.rows(reader, split), check, "a split gave other rows")
            require(
                split.rows is None or split.rows >= first.total(),
                check,
                "a split says that it has fewer rows than it gives",
                says=split.rows,
                gives=first.total(),
            )


def check_splits_bounded(rig: SourceRig) -> None:
    """Rows that come after a split was planned are not in it."""
    check = "splits_bounded"
    there = texts(rig.add(_FEW))
    with reading(rig, rig.home) as world:
        reader = world.opened()
        splits = []
        for split in world.drain(reader):
            splits.append(split)
            if rig.grows and len(splits) == 1:
                rig.add(3)
                got = world.rows(reader, split)
                require(not got - there, check, "a split has rows that came later")
            if len(splits) > 50:
                break


def check_position(rig: SourceRig) -> None:
    """Planning and reading move nothing; a position is behind a split when it was advanced."""
    check = "position"
    rig.add(_FEW)
    with reading(rig, rig.home) as world:
        reader = world.opened()
        before = reader.save(world.draft(reader))
        split = reader.plan()
        require(split is not None, check, "rows came, and there is no split")
        assert split is not None
        world.rows(reader, split)
        same = compare(before, reader.save(world.draft(reader)))
        require(same == "equal", check, "planning or reading moved the position", order=same)
        reader.advance(split)
        moved = compare(before, reader.save(world.draft(reader)))
        require(moved in ("before", "unordered"), check, "the position did not move", order=moved)


def check_ahead(rig: SourceRig) -> None:
    """`plan(after=split)` gives what follows a split that is still being worked on."""
    check = "ahead"
    expected = texts(rig.add(_FEW))
    with reading(rig, rig.home) as world:
        reader = world.opened()
        total: Counter[tuple[str, ...]] = Counter()
        split = reader.plan()
        for _ in range(100):
            if split is None:
                break
            following = reader.plan(split)
            total += world.rows(reader, split)
            reader.advance(split)
            split = following
        if split is None:  # what was not planned ahead is planned now
            for late in world.drain(reader):
                total += world.rows(reader, late)
        require(total == expected, check, "rows are lost or doubled when planning ahead")


def check_restore(rig: SourceRig) -> None:
    """After a restart exactly the rest comes, whatever was read beyond the checkpoint."""
    check = "restore"
    expected = texts(rig.add(_FEW))
    with reading(rig, rig.home) as world:
        first = world.opened()
        split = first.plan()
        require(split is not None, check, "rows came, and there is no split")
        assert split is not None
        done = world.rows(first, split)
        first.advance(split)
        world.commit(first)
        beyond = first.plan()
        if beyond is not None:  # a crash: this was never committed
            world.rows(first, beyond)
            first.advance(beyond)
        expected += texts(rig.add(3))
        reader = world.restored()
        rest: Counter[tuple[str, ...]] = Counter()
        for one in world.drain(reader):
            rest += world.rows(reader, one)
        require(done + rest == expected, check, "rows are lost or doubled over a restart")
        again = compare(
            world.opened().save(world.draft(world.opened())), reader.save(world.draft(reader))
        )
        require(again in ("before", "unordered"), check, "positions do not grow", order=again)


def check_restore_older(rig: SourceRig) -> None:
    """A checkpoint without this source changes nothing; a position of another kind is refused."""
    check = "restore_older"
    expected = texts(rig.add(_FEW))
    other = Part(name="other", kind="source", what="other", schema="")
    foreign = OpenPosition(kind="conformance", offsets={"x": "1"}, order="none", meta={"by": "us"})
    with reading(rig, rig.home, other) as world:
        draft = world.store.draft(checkpoint=world.store.reserve(), epoch=world.store.epoch_next)
        draft.set_source("other", foreign)
        world.store.commit(draft)
        reader = world.restored()
        total: Counter[tuple[str, ...]] = Counter()
        for split in world.drain(reader):
            total += world.rows(reader, split)
        require(total == expected, check, "an older checkpoint made it begin elsewhere")
    own = Part(name=NAME, kind="source", what="other", schema="")
    with reading(rig, rig.home / "foreign", own) as world:
        draft = world.store.draft(checkpoint=world.store.reserve(), epoch=world.store.epoch_next)
        draft.set_source(NAME, foreign)
        world.store.commit(draft)
        refused = None
        try:
            world.restored()
        except HoldfastError as error:
            refused = error
        require(refused is not None, check, "a position of another connector was taken")


def check_history(rig: SourceRig) -> None:
    """The past can be given again up to the position and no further, or it is refused by name."""
    check = "history"
    rig.add(_FEW)
    with reading(rig, rig.home) as world:
        reader = world.opened()
        split = reader.plan()
        require(split is not None, check, "rows came, and there is no split")
        assert split is not None
        read = world.rows(reader, split)
        reader.advance(split)
        world.commit(reader)
        rig.add(2)
        reader.plan()
        restored = world.restored()
        try:
            past = restored.history()
        except HoldfastError as error:
            require(error.kind == "history_lost", check, "refused for another reason", error=error)
            return
        total: Counter[tuple[str, ...]] = Counter()
        for one in past:
            total += world.rows(restored, one)
        require(total == read, check, "the past is not what was read")


def check_backlog(rig: SourceRig) -> None:
    """What is left is told, never negative, and nothing when the source is drained."""
    check = "backlog"
    rig.add(_FEW)
    with reading(rig, rig.home) as world:
        reader = world.opened()
        split = reader.plan()
        now = reader.backlog()
        require(now.total > now.done, check, "rows wait, and the backlog says nothing", is_=now)
        known = [now.rows, now.bytes, now.seconds]
        require(all(v is None or v >= 0 for v in known), check, "less than nothing", is_=now)
        done = now.done
        while split is not None:
            reader.advance(split)
            split = reader.plan()
            now = reader.backlog()
            require(done <= now.done <= now.total, check, "what is done went back", is_=now)
            done = now.done
        require(now.done == now.total, check, "drained, and something is left", is_=now)
        left = [now.rows, now.bytes]
        require(all(not value for value in left), check, "drained, and rows are left", is_=now)


def check_committed(rig: SourceRig) -> None:
    """Nothing is forgotten or acknowledged before the checkpoint is durable."""
    check = "committed"
    expected = texts(rig.add(_FEW))
    with reading(rig, rig.home) as world:
        first = world.opened()
        for split in world.drain(first):
            world.rows(first, split)
        world.draft(first)  # never committed: the process dies
        second = world.opened()
        total: Counter[tuple[str, ...]] = Counter()
        for split in world.drain(second):
            try:
                total += world.rows(second, split)
            except Exception as error:  # noqa: BLE001 - whatever a lost row looks like
                require(False, check, "what was read is gone", error=error)  # noqa: FBT003
        require(total == expected, check, "what was read but never committed is gone")
        world.commit(second)
        third = world.restored()
        require(third.plan() is None, check, "what was committed comes again")


def check_schema(rig: SourceRig) -> None:
    """Columns, the empty DataFrame and splits agree; the fingerprint is stable."""
    check = "schema"
    rig.add(_FEW)
    source, again = rig.source(), rig.source()
    for name in ("kind", "schema_text", "weight", "bad"):
        same = getattr(source, name) == getattr(again, name)
        require(same, check, "two declarations differ", attribute=name)
    require(isinstance(source.kind, str) and source.kind, check, "the connector has no kind")
    empty = source.empty(rig.spark)
    require(not empty.take(1), check, "the empty DataFrame has rows")
    names = [*source.columns(), *([source.weight] if source.weight else [])]
    require(sorted(_types(empty)) == sorted(names), check, "columns() and empty() differ")
    if source.weight:
        kind = _types(empty)[source.weight]
        whole = ("tinyint", "smallint", "int", "bigint")
        require(kind in whole, check, "the weight is no whole number", type=kind)
    with reading(rig, rig.home) as world:
        reader = world.opened()
        split = reader.plan()
        require(split is not None, check, "rows came, and there is no split")
        types = _types(world.frame(reader, split)) if split is not None else {}
        require(
            types == _types(empty), check, "a split has other types", says=_types(empty), is_=types
        )


def _types(frame: Any) -> dict[str, str]:
    return {f.name: f.dataType.simpleString() for f in frame.schema.fields if f.name != BAD}


def check_locations(rig: SourceRig) -> None:
    """Directories that it reads or changes are told, so that no output is written there."""
    check = "locations"
    rig.add(1)
    told = rig.source().locations()
    require(all(isinstance(one, Location) for one in told), check, "something else than Locations")
    places = [identity(one.path) for one in told]
    for directory in rig.directories():
        own = identity(os.path.abspath(directory))
        inside = any(own.startswith(place) for place in places)
        require(inside, check, "a directory is not told", directory=directory)


def check_bad_rows(rig: SourceRig) -> None:
    """A row that cannot be read is told with its value, origin and reason; none is left out."""
    check = "bad_rows"
    good = texts(rig.add(_FEW))
    if not rig.add_bad(2):
        return
    source = rig.source()
    require(source.bad is not None, check, "the source has bad rows and does not declare them")
    with reading(rig, rig.home) as world:
        reader = world.opened()
        bad, total = 0, Counter[tuple[str, ...]]()
        for split in world.drain(reader):
            total += world.rows(reader, split)
            frame = reader.read(rig.spark, split)
            if BAD not in frame.columns:
                continue
            rows = frame.where(f"{quoted(BAD)} IS NOT NULL").select(f"{quoted(BAD)}.*").collect()
            for row in rows:
                told = all(row[name] is not None for name in BAD_COLUMNS)
                require(told, check, "a bad row lacks its value, origin or reason", row=row)
            bad += len(rows)
        require(total == good, check, "good rows are lost next to bad ones")
        require(bad == 2, check, "bad rows are left out or doubled", expected=2, actual=bad)


def check_rate_limit(rig: SourceRig) -> None:
    """No split has more rows than the declaration allows, and all of them come in the end."""
    check = "rate_limit"
    if rig.rows_max is None:
        return
    expected = texts(rig.add(3 * rig.rows_max + 1))
    with reading(rig, rig.home) as world:
        reader = world.opened()
        total: Counter[tuple[str, ...]] = Counter()
        for split in world.drain(reader):
            rows = world.rows(reader, split)
            require(
                rows.total() <= rig.rows_max,
                check,
                "a split is larger than allowed",
                limit=rig.rows_max,
                rows=rows.total(),
            )
            total += rows
        require(total == expected, check, "the limit loses rows")


def check_drained(rig: SourceRig) -> None:
    """Nothing new is None, not an empty split; rows that come later are found."""
    check = "drained"
    rig.add(2)
    with reading(rig, rig.home) as world:
        reader = world.opened()
        _advance_all(world, reader)
        require(reader.plan() is None, check, "drained, and there is a split")
        if rig.grows:
            more = texts(rig.add(2))
            total: Counter[tuple[str, ...]] = Counter()
            for split in world.drain(reader):
                total += world.rows(reader, split)
            require(total == more, check, "rows that came later are not found")


def _advance_all(world: Reading, reader: SourceReader) -> None:
    for split in world.drain(reader):
        world.rows(reader, split)


def check_secrets(rig: SourceRig) -> None:
    """What was given as a secret stands in no fingerprint, position or text."""
    check = "secrets"
    rig.add(2)
    source = rig.source()
    with reading(rig, rig.home) as world:
        reader = world.opened()
        for split in world.drain(reader):
            world.rows(reader, split)
        shown = [
            source.kind,
            source.schema_text,
            repr(source),
            repr(reader.save(world.draft(reader))),
        ]
        shown += [one.path for one in source.locations()]
    for secret in rig.secrets:
        leaks = [text for text in shown if secret in text]
        require(not leaks, check, "a secret leaves the declaration", where=len(leaks))


SOURCE_CHECKS = (
    check_splits_repeat,
    check_splits_bounded,
    check_position,
    check_ahead,
    check_restore,
    check_restore_older,
    check_history,
    check_backlog,
    check_committed,
    check_schema,
    check_locations,
    check_bad_rows,
    check_rate_limit,
    check_drained,
    check_secrets,
)
"""Every check of a source, in the order in which they are best read."""

"""A connector that breaks one rule fails the check of that rule: one wrong variant for each check."""

from __future__ import annotations

import itertools

import pytest

from holdfast.connectors import (
    Backlog,
    OutputState,
    Sink,
    SinkWriter,
    Split,
    StorageLocation,
)
from holdfast.connectors.parquet.sink import ParquetWriter
from holdfast.testing.connectors import SINK_CHECKS, SOURCE_CHECKS, ConformanceError
from tests.helpers.connector_rigs import (
    FunctionRig,
    Lines,
    LinesReader,
    LinesRig,
    ParquetRig,
    SqliteRig,
    net,
)
from tests.helpers.toy_sink import SqliteTable, SqliteTableWriter

_calls = itertools.count()


class OtherRowsAgain(LinesReader):
    """Gives other rows each time."""

    def read(self, spark, split):
        return self.frame(spark, [f"call {next(_calls)}"])


class ReadsToTheEnd(LinesReader):
    """Takes what came after the split was planned."""

    def read(self, spark, split):
        return self.frame(spark, self.lines()[split.detail[0] :])

    def plan(self, after=None):
        start = self.at if after is None else after.detail[1]
        stop = len(self.lines())
        return Split(self.name, None, 0, (start, stop)) if stop > start else None


class MovesWhilePlanning(LinesReader):
    """Its position is ahead of what was read."""

    def plan(self, after=None):
        split = super().plan(after)
        if split is not None:
            self.at = split.detail[1]
        return split


class ForgetsAfter(LinesReader):
    """Plans the same split ahead again."""

    def plan(self, after=None):
        del after
        return super().plan()


class BeginsAgain(LinesReader):
    """Does not restore."""

    def restore(self, manifest, reader) -> None:
        pass


class TakesAnyPosition(LinesReader):
    """Begins at the start with a position of another connector."""

    def restore(self, manifest, reader) -> None:
        entry = manifest.source(self.name)
        if entry is not None:
            self.at = int(entry.position.offsets.get("line", 0))


class TooMuchHistory(LinesReader):
    """Gives what was not read yet as its past."""

    def history(self):
        count = len(self.lines())
        return [Split(self.name, count, 0, (0, count))]


class SaysNothingIsLeft(LinesReader):
    """Has no lag, ever."""

    def backlog(self):
        return Backlog(self.at, self.at, "rows")


class AcknowledgesEarly(LinesReader):
    """Forgets lines when they were read, not when the checkpoint is durable."""

    def advance(self, split) -> None:
        text = ["" if i < split.detail[1] else line for i, line in enumerate(self.lines())]
        self.source.path.write_text("".join(f"{line}\n" for line in text))
        super().advance(split)


class OtherTypes(LinesReader):
    """Gives bytes where it says text."""

    def frame(self, spark, lines):
        return super().frame(spark, lines).selectExpr("CAST(line AS binary) AS line")


class NoLocations(Lines):
    """Does not say where it reads."""

    def locations(self):
        return []


class DropsBadRows(LinesReader):
    """Leaves out what it cannot read."""

    def frame(self, spark, lines):
        return super().frame(spark, [line for line in lines if not line.startswith("!")])


class NoLimit(LinesReader):
    """Knows no limit."""

    rows_max = 1_000_000


class NeverDrained(LinesReader):
    """Gives empty splits when there is nothing."""

    def plan(self, after=None):
        split = super().plan(after)
        start = self.at if after is None else after.detail[1]
        return split or Split(self.name, 0, 0, (start, start))


class TellsThePassword(Lines):
    """Puts a secret into the fingerprint."""

    def __init__(self, path, password="") -> None:
        super().__init__(path, password)
        self.schema_text = f"line string; password {password}"


SOURCES = {
    "check_splits_repeat": OtherRowsAgain,
    "check_splits_bounded": ReadsToTheEnd,
    "check_position": MovesWhilePlanning,
    "check_ahead": ForgetsAfter,
    "check_restore": BeginsAgain,
    "check_restore_older": TakesAnyPosition,
    "check_history": TooMuchHistory,
    "check_backlog": SaysNothingIsLeft,
    "check_committed": AcknowledgesEarly,
    "check_schema": OtherTypes,
    "check_locations": NoLocations,
    "check_bad_rows": DropsBadRows,
    "check_rate_limit": NoLimit,
    "check_drained": NeverDrained,
    "check_secrets": TellsThePassword,
}


def source_of(wrong: type) -> type[Lines]:
    """A declaration whose reader is the wrong one."""
    if issubclass(wrong, Lines):
        return wrong
    return type("Wrong", (Lines,), {"open": lambda self, name: wrong(name, self)})


@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.__name__)
def test_a_source_that_breaks_a_rule_fails_its_check(check, spark, tmp_path):
    """The check raises, and says which rule it was."""
    rig = LinesRig(tmp_path, spark)
    rig.kind = source_of(SOURCES[check.__name__])
    with pytest.raises(ConformanceError) as caught:
        check(rig)
    assert caught.value.check == check.__name__.removeprefix("check_")


# Sinks


class Deaf(SqliteTableWriter):
    """Publishes nothing."""

    def commit(self, token) -> None:
        pass


class InSight(Sink):
    """Stages rows where readers look."""

    kind = "in_sight"

    def __init__(self, path) -> None:
        self.path = path

    def open(self, name, pipeline, store, spark):
        return InSightWriter(self.path)


class InSightWriter(SinkWriter):
    def __init__(self, path) -> None:
        self.place = StorageLocation(str(path))

    def staging(self, checkpoint):
        return self.place, f"rows/{checkpoint}"

    def commit(self, token) -> None:
        pass

    def remove_stale_staging(self, keep) -> None:
        pass


class InSightRig(ParquetRig):
    owned = False

    def sink(self):
        (self.home / "out").mkdir(exist_ok=True)
        return InSight(self.home / "out")

    def rows(self):
        if not any((self.home / "out").rglob("*.parquet")):
            return []
        frame = self.spark.read.option("recursiveFileLookup", True).parquet(str(self.home / "out"))
        return net((r["k"], r["n"], r["_weight"]) for r in frame.collect())


class RemembersInMemory(SqliteTableWriter):
    """Publishes only what was staged while it lived."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.mine: set[str] = set()

    def staging(self, checkpoint):
        self.mine.add(checkpoint)
        return super().staging(checkpoint)

    def commit(self, token) -> None:
        if token.checkpoint in self.mine:
            super().commit(token)


class ForgetsEpochs(SqliteTableWriter):
    """Writes no marker that anybody finds again."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self._owner = f"somebody {next(_calls)}"


class LeavesStaging(SqliteTableWriter):
    """Never removes what was staged."""

    def remove_stale_staging(self, keep) -> None:
        pass


class NoOwner(ParquetWriter):
    """Does not look whose output it is."""

    def inspect(self, after):
        state = super().inspect(after)
        return OutputState(where=state.where, owner=None, epochs=(), empty=True)

    def commit(self, token) -> None:
        self._remove([int(token.epoch)])
        super().commit(token)


class ChangesWhenAsked(ParquetWriter):
    """Goes back when it is only asked whether it could."""

    def inspect(self, after):
        state = super().inspect(after)
        if after is not None and state.epochs and state.epochs[-1] > after:
            self.retract(after)
        return state


class AddsInstead(ParquetWriter):
    """Keeps part of what was there when it is to replace it."""

    def replace(self, token) -> None:
        self._remove([int(token.epoch)])
        self.commit(token)

    def clear(self) -> None:
        self._remove([epoch for epoch in self._published() if epoch < 2])


class ClaimsToDeduplicate(FunctionRig):
    """Says that it knows epochs again, and adds them."""

    deduplicates = True

    def _handle(self, rows, epoch, key) -> None:
        self.seen[epoch, key] = [(r["k"], r["n"], r["_weight"]) for r in rows.collect()]

    def rows(self):
        return [(k, n) for rows in self.seen.values() for k, n, weight in rows if weight > 0]


class NewKindEachTime(SqliteRig):
    def sink(self):
        sink = super().sink()
        sink.kind = f"sqlite {next(_calls)}"
        return sink


class NoSinkLocations(ParquetRig):
    def sink(self):
        sink = super().sink()
        sink.locations = list
        return sink


def sqlite_of(writer: type) -> type[SqliteRig]:
    """A rig whose sink opens the wrong writer."""

    def opened(self, name, pipeline, store, spark):
        return writer(name, pipeline, store, self)

    return type("Wrong", (SqliteRig,), {"kind": type("W", (SqliteTable,), {"open": opened})})


def parquet_of(writer: type) -> type[ParquetRig]:
    """The same for a sink with an owner record."""

    def sink(self):
        declared = ParquetRig.sink(self)
        opened = declared.open

        def wrong(*args):
            made = opened(*args)
            made.__class__ = writer
            return made

        declared.open = wrong
        return declared

    return type("Wrong", (ParquetRig,), {"sink": sink})


SINKS = {
    "check_publishes": sqlite_of(Deaf),
    "check_unseen_before_commit": InSightRig,
    "check_kill_before_publishing": sqlite_of(RemembersInMemory),
    "check_same_epoch_twice": sqlite_of(ForgetsEpochs),
    "check_staging_removed": sqlite_of(LeavesStaging),
    "check_other_owner": parquet_of(NoOwner),
    "check_going_back": ClaimsToDeduplicate,
    "check_asked_before_touched": parquet_of(ChangesWhenAsked),
    "check_replace": parquet_of(AddsInstead),
    "check_declaration": NewKindEachTime,
    "check_sink_locations": NoSinkLocations,
}


@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
def test_a_sink_that_breaks_a_rule_fails_its_check(check, spark, tmp_path):
    """The check raises, and says which rule it was."""
    with pytest.raises(ConformanceError) as caught:
        check(SINKS[check.__name__](tmp_path, spark))
    assert caught.value.check == check.__name__.removeprefix("check_").removeprefix("sink_")

"""Plays a program: writes its files, runs its pipeline, and compares everything with plain Spark."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import holdfast as hf
from holdfast.checkpoint.pins import pin
from holdfast.checkpoint.replication.fork import fork_pipeline
from holdfast.clock import SystemClock
from holdfast.errors import (
    HoldfastError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
)
from holdfast.journal import JournalReader
from holdfast.storage import open_storage
from holdfast.testing import SimulatedCrash, crash_at
from tests.helpers.fuzz.model import MAY_REFUSE, Node, Phase, Program, Sink, Source
from tests.helpers.fuzz.values import Rows, difference, rows_of

ODD_NAMES = ["a*", "a?", "[x]", "b{1,2}", "c:d", "back\\slash", "k%20e", "ü #'+=,", "a[12]"]
BEFORE = (IncompatibleError, InvalidInputError, RefusedError)  # what analysis and opening raise
FIRST_US = 1_700_000_000_000_000


class Failure(AssertionError):  # noqa: N818 - it is what the fuzzer looks for
    """The pipeline and plain Spark do not agree."""


class Refused(Exception):  # noqa: N818 - an outcome, not a fault
    """The program was refused before anything ran, as it may be."""


def counting(names: list[str]):
    """A function for `apply`: how many rows a key has, as changes."""

    def count(changes, state, context):
        import pyarrow as pa

        def same(row):
            return repr([v + 0.0 if isinstance(v, float) else v for v in map(row.get, names)])

        had = {same(row): row["n"] for row in state.to_pylist()}
        now = dict(had)
        for row in changes.to_pylist():
            now[same(row)] = now.get(same(row), 0) + row.get("_weight", 1)
        keys = context.keys.to_pylist()
        rows = [(row, had.get(same(row), 0), now.get(same(row), 0)) for row in keys]
        gone = [({**row, "n": n}, -1) for row, n, new in rows if n and n != new]
        come = [({**row, "n": new}, 1) for row, n, new in rows if new and n != new]
        shape = context.keys.schema.append(pa.field("n", pa.int64()))
        out = pa.Table.from_pylist([row for row, _ in gone + come], schema=shape)
        weights = pa.array([weight for _, weight in gone + come], pa.int64())
        kept = [{**row, "n": new} for row, _, new in rows if new]
        return out.append_column("_weight", weights), pa.Table.from_pylist(kept, schema=shape)

    return count


def written(directory: str):
    """A function sink that writes each key's rows once, under the key's name."""

    def handler(rows, epoch, key):
        Path(directory).mkdir(parents=True, exist_ok=True)
        done = Path(directory) / f"{key.replace(':', '-')}.parquet"
        if not done.exists():
            pq.write_table(rows.toArrow(), done.with_suffix(".part"))
            done.with_suffix(".part").rename(done)

    return handler


class World:
    """A home directory with the files, the store and the outputs of one program."""

    def __init__(self, spark, program: Program, home: Path) -> None:
        self.spark, self.program, self.home = spark, program, home
        self.out, self.store = home / "out", home / "cp"
        self.net: dict[str, Counter] = {s.name: Counter() for s in program.sources}
        self.files: dict[str, list[Path]] = {s.name: [] for s in program.sources}
        names = random.Random(program.seed).sample(ODD_NAMES, len(ODD_NAMES))
        self.names = ["a1", "a2", *names]
        self.compared = 0

    # Files

    def add(self, source: Source, rows) -> None:
        """Write one file, and count its rows."""
        parts = [("", rows)]
        if source.layout == "hive":
            by: dict[int, list] = {}
            for row, weight in rows:
                by.setdefault(row[-1], []).append((row, weight))
            last = source.fields[-1]
            parts = [(f"{last.name}={last.pool[value]}/", found) for value, found in by.items()]
        for folder, found in parts:
            self._write(source, folder, found)
        for row, weight in rows:
            self.net[source.name][row] += weight or 0

    def _write(self, source: Source, folder: str, rows) -> None:
        number = len(self.files[source.name])
        name = f"f{number:04d}"
        if source.layout == "odd" and number < len(self.names):
            name = self.names[number]
        suffix = "csv" if source.layout == "csv" else "parquet"
        path = self.home / source.name / f"{folder}{name}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        table = self.table(source, [row for row, _ in rows], [w for _, w in rows])
        if source.layout == "hive":
            table = table.drop_columns([source.fields[-1].name])
        temporary = path.parent / ".part"
        if suffix == "csv":
            stamps = [
                (k, "" if at is None else at.strftime("%Y-%m-%d %H:%M:%S.%f"))
                for k, at in zip(*(c.to_pylist() for c in table.columns), strict=True)
            ]
            temporary.write_text("".join(f"{'' if k is None else k},{at}\n" for k, at in stamps))
        else:
            pq.write_table(table, temporary)
        moment = (FIRST_US + len(self.files[source.name]) * 1_000_000) * 1_000
        os.utime(temporary, ns=(moment, moment))
        temporary.rename(path)
        self.files[source.name].append(path)

    def table(self, source: Source, rows, weights=None) -> pa.Table:
        """Rows as an Arrow table, with their weights if they have some."""
        arrays = {}
        for place, field in enumerate(source.fields):
            values = (*field.pool, *field.outliers)
            arrays[field.name] = pa.array([values[row[place]] for row in rows], field.arrow)
        if weights is not None and source.weighted:
            arrays["w"] = pa.array(weights, pa.int64())
        return pa.table(arrays)

    # The pipeline and the oracle

    def pipeline(
        self, name: str = "p", partitions: int = 2, out: Path | None = None
    ) -> hf.Pipeline:
        p = hf.Pipeline(name, store=self.store, spark=self.spark, partitions=partitions)
        given = {
            "hf": hf,
            "p": p,
            "home": self.home,
            "out": out or self.out,
            "written": written,
            "counting": counting,
        }
        exec(self.program.code(), given)
        return p

    def frames(self) -> dict:
        """Plain Spark's answer for every node, lazily."""
        from pyspark.sql import functions as F

        given = {"F": F}
        for source in self.program.sources:
            given[source.name] = self._frame(source)
        for node in self.program.needed:
            given[node.name] = eval(node.batch, given)
        return given

    def _frame(self, source: Source):
        bare = ", ".join(f"{f.column.sql} {f.ddl}" for f in source.fields)
        reader = self.spark.read.schema(bare)
        if not source.weighted and source.layout == "csv":
            return reader.csv(str(self.home / source.name))
        if not source.weighted and source.layout == "hive":
            return reader.parquet(str(self.home / source.name))
        rows = [row for row, count in self.net[source.name].items() for _ in range(count)]
        path = self.home / "net" / f"{source.name}-{self.compared}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(self.table(source, rows), path)
        return reader.parquet(str(path))

    # Outputs

    def published(self, sink: Sink, out: Path, frame) -> Rows | None:
        """What a sink holds now, added up; None if it holds nothing."""
        path, columns = out / sink.path, list(self.program.node(sink.node).columns)
        if not path.exists():
            return Counter()
        if sink.kind == "journal":  # made with its first rows
            there = (path / "journal.meta").exists()
            return self._journal(path, columns, frame) if there else Counter()
        if sink.kind == "function":
            tables = [pq.read_table(file) for file in sorted(path.glob("*.parquet"))]
            table = pa.concat_tables(tables) if tables else None
        elif not any(path.rglob("*.parquet")):
            return Counter()
        else:
            table = self.spark.read.parquet(str(path)).toArrow()
        if table is None:
            return Counter()
        weight = "_weight" if "_weight" in table.column_names and sink.kind != "upsert" else None
        return rows_of(table, columns, weight)

    def _journal(self, path: Path, columns, frame) -> Rows:
        from pyspark.sql import functions as F

        payloads = [
            (value.encode() if isinstance(value, str) else bytes(value),)
            for batch, _ in JournalReader(str(path)).follow(timeout_ms=50)
            for value in batch.column("payload").to_pylist()
        ]
        if not payloads:
            return Counter()
        changes = self.program.node(self._journal_sink().node).changes
        ddl = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in frame.schema.fields)
        source = hf.sources.Journal(path, payload=ddl + (", _weight bigint" if changes else ""))
        events = self.spark.createDataFrame(payloads, "payload binary")
        shape = self.spark.createDataFrame([], source.raw_schema()).columns
        head = [F.lit(None).alias(name) for name in shape if name != "payload"]
        events = events.select(*head, "payload")
        table = source.shaped(events).toArrow()
        return rows_of(table, columns, "_weight" if changes else None)

    def _journal_sink(self) -> Sink:
        return next(sink for sink in self.program.sinks if sink.kind == "journal")

    def check(
        self,
        *,
        name: str = "p",
        out: Path | None = None,
        kinds=("changelog", "upsert", "function", "journal"),
    ) -> None:
        """Every sink and every view against plain Spark over the rows that are there."""
        self.compared += 1
        frames, answers = self.frames(), {}
        by_path: dict[str, list[Sink]] = {}
        for sink in self.program.sinks:
            by_path.setdefault(sink.path, []).append(sink)
        for sinks in by_path.values():
            sink, node = sinks[0], self.program.node(sinks[0].node)
            if sink.kind not in kinds:
                continue
            want = self._want(answers, frames, node)
            want = Counter({row: n * len(sinks) for row, n in want.items()})
            try:
                got = self.published(sink, out or self.out, frames[node.name])
            except HoldfastError as error:
                raise Failure(f"{sink.kind} sink {sink.name} cannot be read: {error}") from error
            except Exception as error:
                text = " ".join(str(error).splitlines()[:2])[:300]
                raise Failure(f"{sink.kind} sink {sink.name} cannot be read: {text}") from error
            found = difference(got, want, list(node.columns))
            if found:
                raise Failure(f"{sink.kind} sink {sink.name} of {name}: {found}")
        self._check_views(name, answers, frames)

    def _check_views(self, name: str, answers: dict, frames: dict) -> None:
        pipe = self.pipeline(name)
        for node in self.program.needed:
            if not node.view:
                continue
            try:
                table = pipe.view(node.name).to_spark(self.spark).toArrow()
            except NotFoundError as error:
                if error.kind == "nothing_to_show":
                    continue
                raise
            found = difference(
                rows_of(table, list(node.columns)),
                self._want(answers, frames, node),
                list(node.columns),
            )
            if found:
                raise Failure(f"view {node.name} of {name}: {found}")

    def _want(self, answers: dict, frames: dict, node: Node) -> Rows:
        if node.name not in answers:
            answers[node.name] = rows_of(frames[node.name].toArrow(), list(node.columns))
        return answers[node.name]

    # Phases

    def checkpoints(self) -> list:
        try:
            return list(hf.checkpoint.read_store(self.store, "p").list())
        except HoldfastError:
            return []

    def run(self, partitions: int, crash=None, **more) -> None:
        if crash is not None:
            try:
                with crash_at(*crash):
                    self.pipeline(partitions=partitions).run(**more)
            except SimulatedCrash:
                self.pipeline(partitions=partitions % 7 + 1).run(takeover=True)
            return
        self.pipeline(partitions=partitions).run(**more)

    def play(self) -> None:
        """All phases; a difference is a Failure, an early refusal that is allowed is Refused."""
        self.spark.conf.set("spark.sql.session.timeZone", self.program.zone)
        try:
            for number, phase in enumerate(self.program.phases):
                try:
                    if not self.phase(number, phase):
                        return
                except HoldfastError as error:
                    early = not self.checkpoints() and number == 0
                    if early and self.program.edge in MAY_REFUSE and isinstance(error, BEFORE):
                        raise Refused(error.kind) from error
                    raise Failure(f"phase {number}: {error.kind}: {str(error)[:400]}") from error
        finally:
            self.spark.conf.set("spark.sql.session.timeZone", "UTC")

    def phase(self, number: int, phase: Phase) -> bool:
        """One phase; False if the program ends here."""
        bad: list = []
        for source in self.program.sources:
            for rows in phase.files[source.name]:
                if any(weight is None for _, weight in rows):
                    bad.append((source, rows))
                else:
                    self.add(source, rows)
            (self.home / source.name).mkdir(exist_ok=True)
        if bad:
            return self._null_weight(phase, bad)
        action = getattr(self, f"_{phase.action}")
        return action(number, phase)

    def _run(self, number: int, phase: Phase) -> bool:
        self.run(phase.partitions, phase.crash)
        if self.program.edge == "two_pipelines" and number == 0:
            try:
                self.pipeline("other").run()
            except HoldfastError:
                self.program.phases[-1].action = "run"
        self.check()
        if self.program.edge.startswith("restore"):
            self._pin(f"after-{number}")
        return True

    def _pin(self, label: str) -> None:
        reader = hf.checkpoint.read_store(self.store, "p")
        storage = open_storage(str(self.store))
        pin(reader, storage, SystemClock(), label=label, ref="latest")

    def _null_weight(self, phase: Phase, bad) -> bool:
        self.run(phase.partitions)
        self.check()
        net = {name: Counter(rows) for name, rows in self.net.items()}
        for source, rows in bad:
            self.add(source, rows)
        self.net = net
        try:
            self.run(phase.partitions)
        except HoldfastError as error:
            if "column=w" not in str(error):
                raise Failure(f"a null weight, without its column: {error}") from error
        else:
            raise Failure("a null weight was accepted")
        self.check()
        return False

    def _restore(self, number: int, phase: Phase) -> bool:
        self.run(phase.partitions)
        self.check()
        oldest = "after-0" if self.program.edge.startswith("restore") else ""
        ref = oldest or str(min(self.checkpoints(), key=lambda s: s.epoch).checkpoint)
        safe = all(sink.kind in ("changelog", "upsert") for sink in self.program.sinks)
        try:
            self.run(phase.partitions, from_checkpoint=ref)
        except HoldfastError as error:
            if safe:
                text = f"restore of {ref}: {error.kind}: {str(error)[:300]}"
                raise Failure(text) from error
            self.check()
            self.run(phase.partitions)
        self.check()
        return True

    def _fork(self, number: int, phase: Phase) -> bool:
        if not self.checkpoints():
            return self._run(number, phase)
        fork_pipeline(open_storage(str(self.store)), "p", "latest", "q")
        self.pipeline("q", out=self.home / "fork").run()
        self.check(name="q", out=self.home / "fork", kinds=("upsert",))
        self.run(phase.partitions)
        self.check()
        return True

    def _fork_same(self, number: int, phase: Phase) -> bool:
        self.run(phase.partitions)
        self.check()
        first = min(self.checkpoints(), key=lambda s: s.epoch)
        fork_pipeline(open_storage(str(self.store)), "p", str(first.checkpoint), "q")
        self._elsewhere("q", [files[-1] for files in self.files.values() if len(files) > 1])
        self.check()
        return True

    def _elsewhere(self, name: str, hidden: list[Path]) -> None:
        """Run another pipeline with the same outputs, which sees fewer files: it may be refused."""
        for path in hidden:
            path.rename(path.with_name(f".{path.name}"))
        try:
            self.pipeline(name).run()
        except HoldfastError:
            pass
        finally:
            for path in hidden:
                path.with_name(f".{path.name}").rename(path)

    def _intrude(self, number: int, phase: Phase) -> bool:
        self.run(phase.partitions)
        self.check()
        self._elsewhere("other", [path for files in self.files.values() for path in files[1:]])
        self.check()
        return True

    def _lose(self, number: int, phase: Phase) -> bool:
        path = self.out / self.program.sinks[0].path
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path, ignore_errors=True)
        try:
            self.run(phase.partitions)
        except HoldfastError:
            return False
        self.check()
        return True

    def _touch(self, number: int, phase: Phase) -> bool:
        read = [files[0] for files in self.files.values() if files]
        os.utime(read[0])
        self.run(phase.partitions)
        self.check()
        return True

    def _move(self, number: int, phase: Phase) -> bool:
        if self.store.exists():
            self.store.rename(self.home / "moved")
            self.store = self.home / "moved"
        return self._run(number, phase)

"""Outputs have owners: lost, moved, shared, older or newer ones are found at start, and rebuilt."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.errors import HoldfastError
from holdfast.runtime.output_manager import Outputs
from holdfast.testing import SimulatedCrash, crash_at

SINKS = ("log", "now", "raw")


def put(directory: Path, number: int, rows: list[tuple[int, int]]) -> None:
    """One input file, whole at once."""
    directory.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {"k": [k for k, _ in rows], "x": [x for _, x in rows]},
        pa.schema([("k", pa.int64()), ("x", pa.int64())]),
    )
    pq.write_table(table, directory / f".{number}")
    (directory / f".{number}").rename(directory / f"{number:04d}.parquet")


class World:
    """A pipeline with a changelog, an upsert and a raw output."""

    def __init__(self, home: Path, spark) -> None:
        self.home, self.spark, self.files = home, spark, 0
        self.rng = random.Random(11)

    def feed(self, count: int = 1) -> None:
        for _ in range(count):
            rows = [(self.rng.randrange(6), self.rng.randrange(100)) for _ in range(4)]
            put(self.home / "in", self.files, rows)
            self.files += 1

    def pipe(self, name="p", store="cp", suffix="", retain=3, **paths) -> hf.Pipeline:
        settings = hf.Settings(epochs_max=1, log_bytes_min=0, retain=retain)
        pipe = hf.Pipeline(
            name, store=self.home / store, spark=self.spark, partitions=1, settings=settings
        )
        source = pipe.source(
            "s", hf.sources.Files(str(self.home / "in"), schema="k long, x long", files_max=1)
        )
        totals = source.group_by("k").agg(t=hf.sum("x"), name="totals")
        at = {sink: str(self.home / f"{sink}{suffix}") for sink in SINKS} | paths
        pipe.sink("log", totals, hf.sinks.Parquet(at["log"]))
        pipe.sink("now", totals, hf.sinks.Parquet(at["now"], mode="upsert"))
        pipe.sink("raw", source.where("x % 2 = 0"), hf.sinks.Parquet(at["raw"]))
        return pipe

    def run(self, **options):
        made = {k: options.pop(k) for k in ("name", "store", "suffix", "retain") if k in options}
        return self.pipe(**made).run(**options)

    def batch(self, files: int | None = None) -> tuple[Counter, Counter]:
        """What DuckDB says of the input: totals, and the raw rows."""
        names = sorted(str(p) for p in (self.home / "in").glob("*.parquet"))[: files or None]
        if not names:
            return Counter(), Counter()
        data = f"read_parquet({names})"
        totals = duckdb.sql(f"SELECT k, sum(x)::BIGINT FROM {data} GROUP BY k").fetchall()
        raw = duckdb.sql(f"SELECT k, x FROM {data} WHERE x % 2 = 0").fetchall()
        return Counter(totals), Counter(raw)

    def check(self, files: int | None = None, suffix: str = "") -> None:
        totals, raw = self.batch(files)
        assert changelog(self.home / f"log{suffix}", "t") == totals
        assert upserted(self.home / f"now{suffix}") == totals
        assert changelog(self.home / f"raw{suffix}", "x") == raw

    def cli(self, *arguments) -> str:
        words = [sys.executable, "-m", "holdfast", *map(str, arguments)]
        made = subprocess.run(words, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout + made.stderr
        return made.stdout

    def refused(self, **options) -> str:
        before = picture(self.home)
        with pytest.raises(HoldfastError) as caught:
            self.run(**options)
        after = picture(self.home)
        changed = {p for p in before | after if before.get(p) != after.get(p)}
        assert not {p for p in changed if not p.startswith(("cp", "other"))}, changed
        assert caught.value.remedy
        return caught.value.kind


def picture(home: Path) -> dict[str, object]:
    """Every file, by name, with its inode and size."""
    found = {}
    for base, _, names in os.walk(home):
        for name in names:
            stat = os.lstat(f"{base}/{name}")
            found[os.path.relpath(f"{base}/{name}", home)] = (stat.st_ino, stat.st_size)
    return found


def changelog(path: Path, column: str) -> Counter:
    """A changelog added up, read as a plain directory by DuckDB."""
    if not [*path.glob("*/*.parquet")]:
        return Counter()
    rows = duckdb.sql(
        f"SELECT * FROM read_parquet('{path}/*/*.parquet', hive_partitioning=false,"
        " union_by_name=true)"
    )
    weight = "_weight" if "_weight" in rows.columns else "1"
    found = duckdb.sql(f"SELECT k, {column}, sum({weight})::INT FROM rows GROUP BY ALL").fetchall()
    assert all(n >= 0 for _, _, n in found)
    return Counter({(k, x): n for k, x, n in found if n})


def upserted(path: Path) -> Counter:
    """The rows as they are now."""
    if not path.exists():
        return Counter()
    return Counter(duckdb.read_parquet(f"{path}/*.parquet").fetchall())


@pytest.fixture
def world(spark, tmp_path) -> World:
    return World(tmp_path, spark)


def test_lost_and_moved_outputs_are_rebuilt_at_the_next_start(world) -> None:
    """Deleted, unlinked, half deleted and moved outputs are complete after the next run."""
    world.feed(3)
    world.run()
    world.check()

    def gone(path: Path) -> None:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    damages = [
        lambda: gone(world.home / "log"),
        lambda: (gone(world.home / "now"), gone(world.home / ".now.versions")),
        lambda: gone(world.home / "now"),
        lambda: gone(min((world.home / "log").glob("hf_epoch=*"))),
        lambda: gone(min((world.home / "now").glob("*.parquet"))),
        lambda: [gone(world.home / name) for name in ("log", "raw", "now")],
        lambda: (world.home / "now").rename(world.home / "elsewhere"),
    ]
    for number, damage in enumerate(damages):
        damage()
        if number % 2:
            world.feed()
        summary = world.run()
        assert any("rebuild" in note for note in summary.notes), number
        world.check()
        assert not any("rebuild" in note for note in world.run().notes), number
    world.feed()
    world.run(suffix="-2")
    world.check(suffix="-2")
    assert world.refused(name="q", suffix="-2") == "output_owned"


def test_going_back_rebuilds_what_cannot_go_back_by_itself(world) -> None:
    """A savepoint older than every kept version, and one before the first row, are both exact."""
    put(world.home / "in", 0, [])
    world.files = 1
    world.run()
    world.cli("pin", world.home / "cp" / "p", "empty")
    world.feed(2)
    world.run()
    world.cli("pin", world.home / "cp" / "p", "early")
    world.feed(12)
    world.run()
    world.check()
    lines = world.pipe().plan_outputs(from_checkpoint="early")
    assert [line.split(":")[1].split(",")[0].strip() for line in lines] == [
        "retract",
        "rebuild",
        "retract",
    ]
    world.check()
    for label, files in (("early", 3), ("empty", 1)):
        world.cli("restore", "--to", label, world.home / "cp" / "p")
        world.run(epochs=0)
        world.check(files)
        world.run()
        world.check()
    for file in (world.home / "in").iterdir():
        file.unlink()
    world.cli("restore", "--to", "early", world.home / "cp" / "p")
    shutil.rmtree(world.home / "raw")
    assert world.refused() == "output_not_rebuildable"
    world.run(outputs={"raw": "empty"})
    assert changelog(world.home / "raw", "x") == Counter()


def test_a_fork_has_outputs_of_its_own_and_they_are_complete(world) -> None:
    """The origin's outputs are refused; new ones hold the past; adoption is asked for by name."""
    world.feed(2)
    world.run()
    world.cli("fork", world.home / "cp" / "p", "latest", "q")
    world.feed()
    assert world.refused(name="q") == "output_owned"
    world.run(name="q", suffix="-fork")
    world.check(suffix="-fork")
    world.check(2)
    world.run()
    world.check()
    wish = dict.fromkeys(SINKS, "adopt")
    world.run(name="q", outputs=wish)
    world.check()
    assert world.refused() == "output_owned"


def test_a_copy_of_the_store_is_told_from_a_moved_one(world) -> None:
    """A moved store continues; a copy that is behind or went apart is refused, and can adopt."""
    world.feed(2)
    world.run()
    shutil.copytree(world.home / "cp", world.home / "other")
    world.feed()
    world.run()
    assert world.refused(store="other") == "output_ahead"
    shutil.rmtree(world.home / "other")
    shutil.copytree(world.home / "cp", world.home / "other")
    world.feed()
    world.run(store="other")
    world.check()
    assert world.refused() in ("output_ahead", "output_diverged")
    world.run(outputs=dict.fromkeys(SINKS, "adopt"))
    world.check()
    assert world.refused(store="other") in ("output_ahead", "output_diverged")
    empty = world.home / "far"
    world.cli("sync", world.home / "cp", empty)
    world.feed()
    world.run(store="far", suffix="-far")
    world.check(suffix="-far")


def test_outputs_without_a_record_are_taken_over_only_if_they_fit(world, monkeypatch) -> None:
    """What the version before wrote continues; rows of others are refused."""
    monkeypatch.setattr(Outputs, "properties", {})
    world.feed(2)
    world.run()
    forget(world)
    world.feed()
    world.run()
    world.check()
    forget(world)
    victim = max((world.home / "log").glob("hf_epoch=*/*.parquet"))
    victim.rename(victim.with_name("part-other.parquet"))
    world.feed()
    assert world.refused() == "output_unknown"
    world.run(outputs={"log": "adopt"})
    world.check()


def forget(world: World) -> None:
    """Make the outputs look as the version before has left them."""
    for record in ("log/_holdfast.json", "raw/_holdfast.json", ".now.versions/_holdfast.json"):
        (world.home / record).unlink()


CRASHES = [
    *(("publish", p, n) for p in ("output.after_rows", "output.after_record") for n in (1, 2)),
    ("publish", "output.after_version", 1),
    ("publish", "outcome.before_record", 2),
    ("back", "output.after_first_delete", 1),
    ("back", "output.after_first_delete", 2),
    ("back", "output.after_retract", 1),
    ("back", "output.after_retract", 2),
    ("lost log", "output.after_mark", 1),
    ("lost log", "fill.after_execute", 1),
    ("lost log", "commit.after_record", 1),
    ("lost log", "output.after_rows", 1),
    ("lost now", "output.after_mark", 1),
    ("lost now", "output.after_version", 1),
    ("unlinked", "output.after_first_delete", 1),
]


@pytest.mark.parametrize("case", ["publish", "back", "lost log", "lost now", "unlinked"])
def test_a_crash_at_every_step_of_an_output_changes_nothing(world, case) -> None:
    """Publishing, going back and rebuilding are continued by the next start, wherever they died."""
    world.feed(3)
    world.run(retain=30)
    for point, nth in [(point, nth) for kind, point, nth in CRASHES if kind == case]:
        world.feed()
        if case == "back":
            older = world.pipe().reader().list()[2].checkpoint
            world.cli("restore", "--to", older, world.home / "cp" / "p")
        elif case == "lost log":
            shutil.rmtree(world.home / "log")
        elif case == "lost now":
            shutil.rmtree(world.home / ".now.versions")
            (world.home / "now").unlink()
        elif case == "unlinked":
            (world.home / "now").unlink()
        with pytest.raises((SimulatedCrash, HoldfastError)) as caught:
            with crash_at(point, nth=nth):
                world.run(retain=30)
        causes = (caught.value, caught.value.__cause__)
        assert any(isinstance(cause, SimulatedCrash) for cause in causes), (case, point)
        world.run(retain=30)
        world.check()


def test_an_epoch_that_cannot_be_published_is_set_aside_and_published_later(world) -> None:
    """The pipeline stands until it is asked to go on; then nothing is lost and nothing doubles."""
    seen: Counter = Counter()
    broken = [True]

    def handler(rows, epoch, key) -> None:
        if broken[0]:
            raise ValueError("the service is down")
        seen.update((row.k, row.x) for row in rows.collect())

    def pipe(sinks=("calls", "out")) -> hf.Pipeline:
        made = hf.Pipeline("p", store=world.home / "cp", spark=world.spark, partitions=1)
        source = made.source(
            "s", hf.sources.Files(str(world.home / "in"), files_max=1, schema="k long, x long")
        )
        made.sink("out", source, hf.sinks.Parquet(str(world.home / "out")))
        if "calls" in sinks:
            made.sink("calls", source, hf.sinks.Function(handler))
        return made

    world.feed(1)
    for _ in range(2):
        with pytest.raises(HoldfastError) as caught:
            pipe().run()
        assert caught.value.kind == "sink_failed" and "set-aside" in caught.value.remedy
    with pytest.raises(HoldfastError) as caught:
        pipe(("out",)).run(allow_changes=True)
    assert caught.value.kind == "removed_sink_pending"
    broken[0] = False
    with crash_at("output.after_quarantine"), pytest.raises(SimulatedCrash):
        pipe().run(set_aside=["calls"])
    summary = pipe().run(set_aside=["calls"])
    assert any("set aside" in note for note in summary.notes)
    assert not seen
    world.feed(2)
    pipe().run()
    everything = Counter(rows_of(world))
    late = everything - seen
    assert sum(late.values()) == 4
    with crash_at("output.after_redrive"), pytest.raises(SimulatedCrash):
        pipe().run(redrive=["calls"])
    seen_once = Counter(seen)
    assert seen_once == everything
    summary = pipe().run(redrive=["calls"])
    assert any("published late" in note for note in summary.notes)
    seen.clear()
    assert not any("published late" in note for note in pipe().run(redrive=["calls"]).notes)
    assert not seen
    broken[0] = True
    world.feed(1)
    with pytest.raises(HoldfastError):
        pipe().run()
    pipe(("out",)).run(allow_changes=True, set_aside=["calls"])
    assert [*(world.home / "cp" / ".quarantine" / "p" / "calls").iterdir()]
    assert changelog(world.home / "out", "x") == Counter(rows_of(world))


def rows_of(world: World) -> list[tuple]:
    names = sorted(str(p) for p in (world.home / "in").glob("*.parquet"))
    return duckdb.read_parquet(names).fetchall()


def joined_pipe(world: World, name: str, suffix: str) -> hf.Pipeline:
    """A join and a dedupe: their state does not hold their output."""
    pipe = hf.Pipeline(name, store=world.home / "cp", spark=world.spark, partitions=2)
    left = pipe.source(
        "s", hf.sources.Files(str(world.home / "in"), files_max=1, schema="k long, x long")
    )
    right = pipe.source(
        "r", hf.sources.Files(str(world.home / "names"), files_max=1, schema="k long, x long")
    )
    both = left.join(right.select("k", "x AS y"), on="k", name="both")
    once = left.dedupe("k", name="once").select("k")
    pipe.sink("both_out", both, hf.sinks.Parquet(str(world.home / f"both{suffix}"), mode="upsert"))
    pipe.sink("once_out", once, hf.sinks.Parquet(str(world.home / f"once{suffix}")))
    return pipe


def test_outputs_behind_joins_and_dedupes_are_rebuilt_by_replaying_their_sources(world) -> None:
    """What no state holds comes from the sources again, and the live state is as it was."""

    def check(suffix: str) -> None:
        left, right = (f"read_parquet('{world.home}/{n}/*.parquet')" for n in ("in", "names"))
        want = duckdb.sql(f"SELECT l.k, l.x, r.x FROM {left} l JOIN {right} r USING (k)").fetchall()
        assert upserted(world.home / f"both{suffix}") == Counter(want)
        keys = duckdb.sql(f"SELECT DISTINCT k FROM {left}").fetchall()
        got = duckdb.sql(f"SELECT k FROM read_parquet('{world.home}/once{suffix}/*/*.parquet')")
        assert Counter(got.fetchall()) == Counter(keys)

    for number in range(3):
        world.feed()
        put(world.home / "names", number, [(number, number), (number + 3, 7)])
    joined_pipe(world, "p", "").run()
    check("")
    shutil.rmtree(world.home / "once")
    (world.home / "both").unlink()
    world.feed()
    joined_pipe(world, "p", "").run()
    check("")
    world.cli("fork", world.home / "cp" / "p", "latest", "q")
    world.feed(2)
    joined_pipe(world, "q", "-fork").run()
    check("-fork")
    joined_pipe(world, "p", "").run()
    check("")
    world.cli("verify", "--deep", world.home / "cp" / "p")


def test_a_changelog_is_folded_by_policy_and_on_request(world) -> None:
    """Few directories, the same rows; going back to every retained checkpoint still works."""

    def pipe(after: int | None = 3) -> hf.Pipeline:
        settings = hf.Settings(epochs_max=1, log_bytes_min=0, retain=2)
        made = hf.Pipeline(
            "p", store=world.home / "cp", spark=world.spark, partitions=1, settings=settings
        )
        source = made.source(
            "s", hf.sources.Files(str(world.home / "in"), files_max=1, schema="k long, x long")
        )
        totals = source.group_by("k").agg(t=hf.sum("x"), name="totals")
        made.sink(
            "log",
            totals,
            hf.sinks.Parquet(str(world.home / "log"), compact_after=after, compact_grace_ms=0),
        )
        return made

    def dirs() -> int:
        return len([*(world.home / "log").glob("hf_epoch=*")])

    world.feed(14)
    pipe(None).run()
    assert dirs() == 14
    assert pipe().compact_output("log") and dirs() <= 3
    assert changelog(world.home / "log", "t") == world.batch()[0]
    world.feed(12)
    pipe().run()
    assert dirs() <= 9
    assert changelog(world.home / "log", "t") == world.batch()[0]
    spark_rows = world.spark.read.parquet(str(world.home / "log")).groupBy("k").count().count()
    assert spark_rows == len({k for k, _ in world.batch()[0]})
    older = pipe().reader().list()[-1]
    world.cli("restore", "--to", older.checkpoint, world.home / "cp" / "p")
    pipe().run(epochs=0)
    assert changelog(world.home / "log", "t") == world.batch(world.files - 1)[0]
    for point in ("fold.after_tree", "fold.after_swap"):
        world.feed(4)
        with crash_at(point), pytest.raises(SimulatedCrash):
            pipe().run()
        pipe().run()
        assert changelog(world.home / "log", "t") == world.batch()[0]


@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_of_accidents_and_restores_ends_in_what_batch_says(world, seed) -> None:
    """Restores, forks, deleted, moved and renamed outputs in random order, after every run."""
    rng = random.Random(seed)
    name, suffix, store, forks = "p", "", "cp", 0
    world.feed(2)
    world.run(retain=4)
    for step in range(6):
        world.feed(rng.randrange(3))
        what = rng.choice(["restore", "delete", "path", "fork", "move store", "run", "rename"])
        root, home = world.home / store, world.home
        if what == "restore":
            target = rng.choice(world.pipe(name, store, suffix).reader().list())
            world.cli("restore", "--to", target.checkpoint, root / name)
        elif what == "delete":
            victim = rng.choice(["log", "raw"])
            shutil.rmtree(home / f"{victim}{suffix}")
            (home / f"now{suffix}").unlink(missing_ok=True)
        elif what == "path":
            suffix = f"-at{step}"
        elif what == "rename":
            (home / f"log{suffix}").rename(home / f"log{suffix}-r{step}")
            (home / f"raw{suffix}").rename(home / f"raw{suffix}-r{step}")
            suffix = f"{suffix}-r{step}"
        elif what == "fork":
            forks += 1
            world.cli("fork", root / name, "latest", f"f{forks}")
            name, suffix = f"f{forks}", f"-f{forks}"
        elif what == "move store":
            root.rename(home / f"cp{step}")
            store = f"cp{step}"
        world.run(name=name, suffix=suffix, store=store, retain=4)
        world.check(suffix=suffix)

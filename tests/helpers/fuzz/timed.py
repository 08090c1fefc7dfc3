"""Random pipelines that go by event time, against small models in plain Python.

What is late and what is forgotten depends on how epochs were cut, so batch has no answer. A model gets
the rows of each epoch and the watermark that the epoch meets, as the guide defines it: the newest time of
all epochs before, less the delay. Times are even, lengths odd: nothing lies exactly on a bound.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import holdfast as hf
from tests.helpers.fuzz.values import STAMP

SECOND, BEGIN, DELAY = 1_000_000, 1_700_000_000, 4
KINDS = ("timers", "dedupe", "windows", "sessions", "interval")
Row = tuple  # (key, second or None, x, weight); x is the wake of a timer where there are timers
Epoch = tuple[int | None, dict[str, list[Row]]]


@dataclass
class Timed:
    """A pipeline, its files by run and source, and the model of what it puts out."""

    seed: int
    kind: str
    code: str
    model: Callable[[list[Epoch]], dict[str, Counter]]
    columns: dict[str, list[str]]
    weighted: bool
    files_max: int
    runs: list[dict[str, list[list[Row]]]] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)

    def epochs(self) -> list[Epoch]:
        """How the engine cuts the files, with one epoch more where only the watermark has moved."""
        marks: dict[str, int] = {}
        found: list[Epoch] = []
        settled: int | None = None
        for files in self.runs:
            waiting = {name: list(given) for name, given in files.items()}
            while any(waiting.values()):
                taken = {n: [r for f in w[: self.files_max] for r in f] for n, w in waiting.items()}
                waiting = {n: w[self.files_max :] for n, w in waiting.items()}
                found.append((settled, taken))
                for name, rows in taken.items():
                    times = [row[1] for row in rows if row[1] is not None]
                    if times:
                        marks[name] = max(max(times) - DELAY, marks.get(name, -(10**9)))
                if len(marks) == len(files):
                    settled = min(marks.values())
            if found and settled != found[-1][0]:
                found.append((settled, {name: [] for name in files}))
        return found


def make_timed(seed: int) -> Timed:
    """The program of a seed."""
    rng = random.Random(f"timed {seed}")
    made = {
        "timers": _timers,
        "dedupe": _dedupe,
        "windows": _windows,
        "sessions": _sessions,
        "interval": _interval,
    }[KINDS[seed % len(KINDS)]](seed, rng)
    names = ["s0", "s1"] if made.kind == "interval" else ["s0"]
    live: Counter = Counter()
    now = dict.fromkeys(names, 0)
    for _ in range(rng.randint(1, 2)):
        run = {}
        for name in names:
            run[name] = [_rows(rng, made, now, name, live) for _ in range(rng.randint(1, 4))]
        made.runs.append(run)
        made.partitions.append(rng.randint(1, 7))
    return made


def _rows(rng: random.Random, made: Timed, now: dict, name: str, live: Counter) -> list[Row]:
    """Rows out of order, some late, some hopelessly; retractions only of rows that are on time."""
    rows, seen = [], set()
    for _ in range(rng.randint(1, 8)):
        there = [row for row, n in live.items() if n > 0 and (row[1] or 0) >= now[name]]
        if made.weighted and there and rng.random() < 0.3:
            row, weight = rng.choice(there), -1
        else:
            at = now[name] + rng.randint(0, 30) * 2
            if rng.random() < 0.15:
                at = now[name] - rng.randint(1, 40) * 2
            key = rng.choice(["a", "b", "c", None])
            x: int | None = rng.choice([None, 0, 1, 5])
            if made.kind == "timers":
                x = None if rng.random() < 0.4 else at + rng.choice([6, 20, 60, 100])
            if rng.random() < 0.05 and made.kind in ("windows", "sessions", "dedupe"):
                at = None
            row, weight = (key, at, x), 1
        if made.kind == "timers" and row[:2] in seen:
            continue
        seen.add(row[:2])
        live[row] += weight
        rows.append((*row, weight))
    times = [row[1] for row in rows if row[1] is not None]
    now[name] = max([now[name], *(t - DELAY for t in times)])
    if rng.random() < 0.2:  # a jump, so that much is forgotten at once
        now[name] += 200
    return rows


def _source(name: str, files_max: int, *, weighted: bool = False, wake: bool = False) -> str:
    schema = f"k string, at timestamp, x {'timestamp' if wake else 'long'}"
    schema += ", w long" if weighted else ""
    more = ", weight='w'" if weighted else ""
    return (
        f"p.source({name!r}, hf.sources.Files(f'{{home}}/{name}', schema={schema!r}, "
        f"files_max={files_max}{more}), event_time='at', delay='{DELAY} seconds')"
    )


def _parquet(name: str, stream: str) -> str:
    return f"p.sink({name!r}, {stream}, hf.sinks.Parquet(f'{{out}}/{name}'))"


# The models


def _timers(seed: int, rng: random.Random) -> Timed:
    files_max, ttl = rng.choice([1, 1, 2]), rng.choice([11, 31, 101])
    code = "\n".join(
        [
            f"s0 = {_source('s0', files_max, wake=True)}",
            (
                "a = s0.apply(remember, key=['k'], state_schema='x timestamp', output_schema='k string, "
                f"x timestamp', name='a', time='at', ttl='{ttl} seconds', timers='x', text='remember')"
            ),
            _parquet("o", "a"),
        ]
    )

    def model(epochs: list[Epoch]) -> dict[str, Counter]:
        out: Counter = Counter()
        state: dict = {}
        before = None
        for mark, taken in epochs:
            if mark is not None:
                state = {k: v for k, v in state.items() if v["touched"] >= mark - ttl}
            moved, before = mark != before, mark
            due = [k for k, v in state.items() if moved and v["armed"] and v["wake"] <= mark]
            for key in due:
                out[(key, state[key]["wake"])] += 1
                state[key]["armed"] = False
            rows = [r for r in taken["s0"] if mark is None or r[1] >= mark - ttl]
            for key, at, wake, _ in sorted(rows, key=lambda r: r[1]):
                had = state.setdefault(key, {"wake": None, "armed": False, "touched": at})
                had["touched"] = max(had["touched"], at)
            last = {key: wake for key, _, wake, _ in sorted(rows, key=lambda r: r[1])}
            for key, wake in last.items():
                if wake != state[key]["wake"]:
                    state[key] |= {"wake": wake, "armed": wake is not None}
        return {"o": out}

    return Timed(seed, "timers", code, model, {"o": ["k", "x"]}, False, files_max)


def remembering():
    """A function for `apply`; nested, so that it travels by value."""

    def remember(changes, state, context):
        """The last wake of each key is its timer; keys that are due are put out with it."""
        import pyarrow as pa

        had = dict(zip(state["k"].to_pylist(), state["x"].to_pylist(), strict=True))
        last = had | dict(zip(changes["k"].to_pylist(), changes["x"].to_pylist(), strict=True))
        keys, due = context.keys["k"].to_pylist(), context.due["k"].to_pylist()
        stamp = pa.timestamp("us", "UTC")

        def table(names, values):
            return pa.table({"k": pa.array(names, pa.string()), "x": pa.array(values, stamp)})

        return table(due, [had[k] for k in due]), table(keys, [last.get(k) for k in keys])

    return remember


def _dedupe(seed: int, rng: random.Random) -> Timed:
    files_max, within = rng.choice([1, 1, 2]), rng.choice([5, 21, 81])
    code = "\n".join(
        [
            f"s0 = {_source('s0', files_max)}",
            f"d = s0.dedupe('k', name='d', time='at', within='{within} seconds').select('k', 'at')",
            _parquet("o", "d"),
        ]
    )

    def model(epochs: list[Epoch]) -> dict[str, Counter]:
        out: Counter = Counter()
        seen: dict = {}
        for mark, taken in epochs:
            bound = -(10**9) if mark is None else mark - within
            seen = {k: at for k, at in seen.items() if at is None or at >= bound}
            rows = [r for r in taken["s0"] if r[1] is None or r[1] >= bound]
            for key, at, *_ in sorted(rows, key=lambda r: (r[1] is None, r[1] or 0)):
                if key not in seen:
                    seen[key] = at
                    out[(key, at)] += 1
        return {"o": out}

    return Timed(seed, "dedupe", code, model, {"o": ["k", "at"]}, False, files_max)


def _aggregated(bag: Counter) -> tuple:
    """n and the sum of x of a bag of values."""
    values = [x for x in bag.elements() if x is not None]
    return sum(bag.values()), sum(values) if values else None


RESULT = ["k", "window_start", "window_end", "n", "t"]


def _windows(seed: int, rng: random.Random) -> Timed:
    files_max, weighted = rng.choice([1, 2, 3]), rng.random() < 0.5
    size, parts = rng.choice([(15, 1), (45, 3), (21, 3), (61, 1)])
    slide, late, emit = size // parts, rng.choice([0, 0, 11]), rng.choice(["update", "close"])
    options = f"emit='{emit}', allowed_lateness='{late} seconds'"
    window = f"hf.sliding('at', size='{size} seconds', slide='{slide} seconds', {options})"
    if parts == 1:
        window = f"hf.tumbling('at', size='{size} seconds', {options})"
    code = [
        f"s0 = {_source('s0', files_max, weighted=weighted)}",
        (f"g = s0.group_by('k', {window}).agg(n=hf.count(), t=hf.sum('x'), name='g')"),
        _parquet("o", "g"),
    ]
    columns = {"o": RESULT}
    if not weighted:
        code.append(_parquet("late", "g.late"))
        columns["late"] = ["k", "at", "x"]

    def model(epochs: list[Epoch]) -> dict[str, Counter]:
        bags: dict = defaultdict(Counter)
        late_rows: Counter = Counter()
        for mark, taken in epochs:
            for key, at, x, weight in taken["s0"]:
                if at is None:
                    continue
                newest = (BEGIN + at) // slide * slide - BEGIN
                starts = [newest - n * slide for n in range(size // slide + 1)]
                starts = [s for s in starts if s <= at < s + size]
                open_ = [s for s in starts if mark is None or s + size + late > mark]
                for start in open_:
                    bags[key, start][x] += weight
                if len(open_) < len(starts):
                    late_rows[(key, at, x)] += weight
        final = epochs[-1][0]
        out = Counter(
            (key, start, start + size, *_aggregated(bag))
            for (key, start), bag in bags.items()
            if sum(bag.values()) > 0
            and (emit == "update" or (final is not None and start + size + late <= final))
        )
        return {"o": out, "late": late_rows}

    return Timed(seed, "windows", "\n".join(code), model, columns, weighted, files_max)


def _walked(live: dict, gap: int) -> list[tuple[tuple, Counter]]:
    """Sessions of rows by key: what each one shows, and its rows."""
    found = []
    for key, rows in live.items():
        sessions: list[tuple[int, int, Counter]] = []
        for (at, x), count in sorted(rows.items(), key=lambda item: item[0][0]):
            if count <= 0:
                continue
            start, used = at, Counter()
            if sessions and at < sessions[-1][1]:
                start, _, used = sessions.pop()
            used[at, x] += count
            sessions.append((start, at + gap, used))
        for start, end, used in sessions:
            bag: Counter = Counter()
            for (_, x), count in used.items():
                bag[x] += count
            found.append(((key, start, end, *_aggregated(bag)), used))
    return found


def _sessions(seed: int, rng: random.Random) -> Timed:
    files_max, weighted = rng.choice([1, 2]), rng.random() < 0.5
    gap, emit = rng.choice([7, 15, 31]), rng.choice(["update", "close"])
    code = "\n".join(
        [
            f"s0 = {_source('s0', files_max, weighted=weighted)}",
            (
                f"g = s0.group_by('k', hf.session_window('at', gap='{gap} seconds', emit='{emit}'))"
                ".agg(n=hf.count(), t=hf.sum('x'), name='g')"
            ),
            _parquet("o", "g"),
        ]
    )

    def model(epochs: list[Epoch]) -> dict[str, Counter]:
        live: dict = defaultdict(Counter)
        done: Counter = Counter()
        before = None
        for mark, taken in epochs:
            if mark != before:  # what a new watermark closes, before it meets rows
                for row, used in _walked(live, gap):
                    if row[2] <= mark:
                        done[row] += 1
                        live[row[0]].subtract(used)
            before = mark
            for key, at, x, weight in taken["s0"]:
                if at is not None and (mark is None or at + gap > mark):
                    live[key][at, x] += weight
        if emit == "update":
            done.update(row for row, _ in _walked(live, gap))
        return {"o": done}

    return Timed(seed, "sessions", code, model, {"o": RESULT}, weighted, files_max)


def _interval(seed: int, rng: random.Random) -> Timed:
    files_max, how = rng.choice([1, 2]), rng.choice(["inner", "left"])
    before, after = rng.choice([5, 21]), rng.choice([3, 41])
    code = "\n".join(
        [
            f"s0 = {_source('s0', files_max)}",
            f"s1 = {_source('s1', files_max)}",
            "r = s1.select('k', 'at AS at_r', 'x AS x_r')",
            (
                f"j = s0.join(r, 'k', '{how}', name='j', within=hf.interval('at', 'at_r', "
                f"before='{before} seconds', after='{after} seconds'))"
            ),
            _parquet("o", "j"),
        ]
    )

    def model(epochs: list[Epoch]) -> dict[str, Counter]:
        sides: dict[str, list] = {"s0": [], "s1": []}
        for mark, taken in epochs:
            for name, rows in taken.items():
                sides[name] += [r for r in rows if mark is None or r[1] >= mark]
        out: Counter = Counter()
        for key, at, x, _ in sides["s0"]:
            met = [
                (at_r, x_r)
                for k, at_r, x_r, _ in sides["s1"]
                if k is not None and k == key and at - before <= at_r <= at + after
            ]
            for pair in met or ([(None, None)] if how == "left" else []):
                out[(key, at, x, *pair)] += 1
        return {"o": out}

    columns = {"o": ["k", "at", "x", "at_r", "x_r"]}
    return Timed(seed, "interval", code, model, columns, False, files_max)


# Playing


def play_timed(spark, made: Timed, home: Path) -> str:
    """Run it, with a restart between the runs; empty, or what differs from the model."""
    numbers = dict.fromkeys(made.runs[0], 0)
    for run, partitions in zip(made.runs, made.partitions, strict=True):
        for name, files in run.items():
            for rows in files:
                _write(home / name, numbers[name], made, rows)
                numbers[name] += 1
        p = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=partitions)
        given = {"p": p, "hf": hf, "home": home, "out": home / "out", "remember": remembering()}
        exec(made.code, given)
        p.run()
    want = made.model(made.epochs())
    for name, columns in made.columns.items():
        got = _published(spark, home / "out" / name, columns)
        if got != +want[name]:
            return (
                f"{name}: only got {dict(got - want[name])}, only wanted {dict(want[name] - got)}"
            )
    return ""


def _write(directory: Path, number: int, made: Timed, rows: list[Row]) -> None:
    directory.mkdir(parents=True, exist_ok=True)

    def stamps(values):
        micros = [None if v is None else (BEGIN + v) * SECOND for v in values]
        return pa.array(micros, pa.int64()).cast(STAMP)

    keys, times, values, weights = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = {"k": pa.array(keys, pa.string()), "at": stamps(times)}
    columns["x"] = stamps(values) if made.kind == "timers" else pa.array(values, pa.int64())
    if made.weighted:
        columns["w"] = pa.array(weights, pa.int64())
    pq.write_table(pa.table(columns), directory / ".part")
    (directory / ".part").rename(directory / f"f{number:04d}.parquet")


def _published(spark, path: Path, columns: list[str]) -> Counter:
    if not path.exists() or not any(path.rglob("*.parquet")):
        return Counter()
    table = spark.read.parquet(str(path)).toArrow()
    weights = [1] * table.num_rows
    if "_weight" in table.column_names:
        weights = table.column("_weight").to_pylist()
    found: Counter = Counter()
    lists = [table.column(name).to_pylist() for name in columns]
    for row, weight in zip(zip(*lists, strict=True), weights, strict=True):
        found[tuple(_second(value) for value in row)] += weight
    return Counter({row: count for row, count in found.items() if count})


def _second(value):
    if isinstance(value, dt.datetime):
        return int(value.replace(tzinfo=value.tzinfo or dt.UTC).timestamp()) - BEGIN
    return value

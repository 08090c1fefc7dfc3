"""A source and a sink that are one file each run in a real pipeline, through a crash and restarts."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing

import pytest

import holdfast as hf
from holdfast.errors import InvalidInputError
from holdfast.testing import SimulatedCrash, crash_at
from tests.helpers.toy_sink import SqliteTable
from tests.helpers.toy_source import TextLines


def pipeline(spark, home) -> hf.Pipeline:
    """Words as they come, and how often each has come."""
    pipe = hf.Pipeline("toys", home / "cp", spark=spark, partitions=2)
    words = pipe.source("words", TextLines(home / "words.txt", bytes_max=24))
    pipe.sink("seen", words.where("line <> ''"), SqliteTable(home / "seen.db", "words"))
    counts = words.group_by("line").agg(n=hf.count(), name="counts")
    pipe.sink("totals", counts, SqliteTable(home / "totals.db", "counts"))
    return pipe


def append(home, words: list[str]) -> None:
    with open(home / "words.txt", "a", encoding="utf-8") as file:
        file.write("".join(f"{word}\n" for word in words))


def rows(path, table: str) -> list[tuple]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(f'SELECT * FROM "{table}"').fetchall()


def check(home, words: list[str]) -> None:
    """Both tables against a plain Counter."""
    assert Counter(word for (word,) in rows(home / "seen.db", "words")) == Counter(words)
    totals: Counter = Counter()
    for word, count, weight in rows(home / "totals.db", "counts"):
        totals[word, count] += weight
    assert {key: n for key, n in totals.items() if n} == dict.fromkeys(Counter(words).items(), 1)


def test_connectors_of_one_file_lose_and_double_nothing(spark, tmp_path) -> None:
    """Epochs, a crash before and after publishing, and restarts: every line counts exactly once."""
    words = ["to", "be", "or", "not", "to", "be", "that", "is", "the", "question"]
    append(tmp_path, words)
    assert pipeline(spark, tmp_path).run().epochs > 1
    check(tmp_path, words)
    for point in ("epoch.after_commit", "epoch.after_publish"):
        more = ["whether", "tis", "nobler", "in", "the", "mind", point]
        append(tmp_path, more)
        words += more
        with pytest.raises(SimulatedCrash), crash_at(point):
            pipeline(spark, tmp_path).run()
        append(tmp_path, ["to"])
        words.append("to")
        assert pipeline(spark, tmp_path).run().epochs >= 1
        check(tmp_path, words)
    assert pipeline(spark, tmp_path).run().epochs == 0
    check(tmp_path, words)


def test_what_a_toy_refuses_is_refused_before_anything_runs(spark, tmp_path) -> None:
    """The contract's checks reach connectors that the runtime has never heard of."""
    with pytest.raises(InvalidInputError) as missing:
        pipeline(spark, tmp_path).run()
    assert missing.value.kind == "no_such_file"
    append(tmp_path, ["a"])
    pipe = pipeline(spark, tmp_path)
    again = SqliteTable(tmp_path / "seen.db", "others")
    pipe.sink("again", pipe.source("more", TextLines(tmp_path / "words.txt")), again)
    with pytest.raises(InvalidInputError) as shared:
        pipe.run()
    assert shared.value.kind == "output_shared"

"""Small files, small pipelines, and what an output holds now."""

from __future__ import annotations

import decimal
import math
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import holdfast as hf
from holdfast.errors import HoldfastError

D = decimal.Decimal


def put(directory: Path, name: str, **columns) -> Path:
    """One Parquet file, under its name in one step."""
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / ".part"
    pq.write_table(pa.table(columns), temporary)
    return temporary.rename(directory / name)


class Place:
    """A home directory with a store, inputs and outputs."""

    def __init__(self, spark, home: Path) -> None:
        self.spark, self.home = spark, home

    def pipeline(self, name: str = "p", store: str = "cp", partitions: int = 2) -> hf.Pipeline:
        return hf.Pipeline(name, store=self.home / store, spark=self.spark, partitions=partitions)

    def files(self, schema: str, directory: str = "in", **more) -> hf.sources.Files:
        return hf.sources.Files(str(self.home / directory), schema=schema, **more)

    def out(self, name: str = "out", **more) -> hf.sinks.Parquet:
        return hf.sinks.Parquet(str(self.home / name), **more)

    def committed(self, name: str = "p", store: str = "cp") -> int:
        """How many checkpoints with an epoch the store lists."""
        try:
            return len(hf.checkpoint.read_store(self.home / store, name).list())
        except HoldfastError:
            return 0

    def rows(self, path: str, *columns: str) -> Counter:
        """What a changelog or an upsert output holds now, read the documented way."""
        place = self.home / path
        if not place.exists() or not any(place.rglob("*.parquet")):
            return Counter()
        table = self.spark.read.parquet(str(place)).toArrow()
        weights = [1] * table.num_rows
        if "_weight" in table.column_names:
            weights = table.column("_weight").to_pylist()
        lists = [table.column(name).to_pylist() for name in columns]
        found: Counter = Counter()
        for row, weight in zip(zip(*lists, strict=True), weights, strict=True):
            found[tuple(_plain(value) for value in row)] += weight
        return Counter({row: count for row, count in found.items() if count})


def _plain(value):
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return tuple(_plain(v) for v in value) if isinstance(value, list) else value


def refused(place: Place, use, *, name: str = "p", store: str = "cp") -> HoldfastError | None:
    """None if it ran; otherwise the typed error, which must have come before any epoch."""
    before = place.committed(name, store)
    try:
        use()
    except HoldfastError as error:
        assert place.committed(name, store) == before, f"refused too late: {error}"
        return error
    return None

"""Source: a seeded generator, the same rows in every run, wherever it is resumed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.arguments import value_map, whole_number
from holdfast.checkpoint import Draft, StoreReader
from holdfast.connectors.base import Backlog, Source, SourceReader, Split
from holdfast.errors import IncompatibleError, InvalidInputError
from holdfast.format.manifest import Manifest
from holdfast.format.position import CounterPosition, Position
from holdfast.spark.ddl import check_columns, check_weight, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_HISTORY_ROWS = 1_000_000
_SEED = re.compile(r"\bseed\b")


class Generator(Source):
    """Rows computed from their number.

    columns: SQL expressions over `id` (0, 1, 2 ...) and `seed`, for example
        `{"customer": "'c' || pmod(xxhash64(id, seed), 1000)", "amount": "pmod(id, 100) / 4.0"}`.
        They must depend on nothing else: no rand(), no current time.
    rows: how many in all; None for no end. rows_per_epoch: how many at a time.
    weight: which of the columns is the weight of a row (+1 adds it, -1 retracts it).
    """

    kind = "generator"
    in_order = True

    def __init__(
        self,
        columns: Mapping[str, str],
        *,
        rows: int | None = None,
        rows_per_epoch: int = 10_000,
        seed: int = 0,
        weight: str | None = None,
    ) -> None:
        """Refuse what can never work."""
        columns = value_map(columns, "columns")
        whole_number(rows_per_epoch, "rows_per_epoch", least=1, kind="invalid_generator")
        whole_number(0 if rows is None else rows, "rows", least=0, kind="invalid_generator")
        whole_number(seed, "seed", least=-(2**63), most=2**63 - 1, kind="invalid_generator")
        if not columns or not all(isinstance(text, str) for text in columns.values()):
            raise InvalidInputError(
                "a generator needs columns as SQL text",
                kind="invalid_generator",
                remedy='for example Generator({"n": "id"}, rows=1000, rows_per_epoch=100)',
            )
        self.columns_sql = dict(columns)
        self.rows, self.rows_per_epoch = rows, rows_per_epoch
        self.seed, self.weight = seed, weight
        check_columns(self.columns(), "generator")
        texts = ", ".join(f"{name} = {text}" for name, text in self.columns_sql.items())
        self.schema_text = f"{texts}; seed {self.seed}"  # the expressions stand for the schema
        check_weight(weight, list(columns))

    def columns(self) -> list[str]:
        """Column names without the weight."""
        return [name for name in self.columns_sql if name != self.weight]

    def empty(self, spark: SparkSession) -> DataFrame:
        """A DataFrame of the right shape without rows."""
        return self.rows_between(spark, 0, 0)

    def rows_between(self, spark: SparkSession, start: int, stop: int) -> DataFrame:
        """Rows by number."""
        texts = [
            f"{_SEED.sub(str(self.seed) + 'L', text)} AS {quoted(name)}"
            for name, text in self.columns_sql.items()
        ]
        return spark.range(start, stop).selectExpr(*texts)

    def open(self, name: str) -> GeneratorReader:
        """Begin at row 0."""
        return GeneratorReader(name, self)


class GeneratorReader(SourceReader):
    """A generator while the pipeline runs."""

    def __init__(self, name: str, source: Generator) -> None:
        """Begin at row 0."""
        self._name = name
        self._source = source
        self._next = 0
        self._most = source.rows_per_epoch

    def limit_rows(self, rows: int | None) -> None:
        """Limit the next splits; exactly, since every row is known by its number."""
        most = self._source.rows_per_epoch
        self._most = most if rows is None else min(most, rows)

    def restore(self, manifest: Manifest, reader: StoreReader) -> None:
        """Go to where a checkpoint stands."""
        del reader
        entry = manifest.source(self._name)
        if entry is None:
            return
        if not isinstance(entry.position, CounterPosition):
            raise IncompatibleError("the position is not a generator's", source=self._name)
        self._next = entry.position.partitions.get("0", 0)

    def plan(self, after: Split | None = None) -> Split | None:
        """The next rows."""
        start = self._next if after is None else int(after.detail[1])
        stop = start + self._most
        if self._source.rows is not None:
            stop = min(stop, self._source.rows)
        if stop <= start:
            return None
        return Split(self._name, stop - start, 0, (start, stop))

    def read(self, spark: SparkSession, split: Split) -> DataFrame:
        """The rows of a split."""
        return self._source.rows_between(spark, *split.detail)

    def advance(self, split: Split) -> None:
        """Behind the split."""
        self._next = split.detail[1]

    def save(self, draft: Draft) -> Position:
        """The next row."""
        del draft
        return CounterPosition(partitions={"0": self._next})

    def history(self) -> list[Split]:
        """Everything so far can be made again."""
        step = max(self._source.rows_per_epoch, _HISTORY_ROWS)
        found = []
        for start in range(0, self._next, step):
            stop = min(start + step, self._next)
            found.append(Split(self._name, stop - start, 0, (start, stop)))
        return found

    def backlog(self) -> Backlog:
        """Rows; they take no bytes anywhere."""
        return Backlog(self._next, self._source.rows or self._next, "rows", bytes=0)

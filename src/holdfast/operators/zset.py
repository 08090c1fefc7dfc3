"""Rows of several keys with counts, between a batch and a bag trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.state.arrow.batches import group_rows


@dataclass(frozen=True)
class Rows:
    """The number of the key of each row, its columns, and how many there are of it.

    Columns are normalised: one NaN, no negative zero.
    """

    numbers: np.ndarray
    columns: list[Any]
    weights: np.ndarray

    def take(self, index: np.ndarray) -> Rows:
        """Some rows, in this order."""
        picks = pa.array(index)
        columns = [column.take(picks) for column in self.columns]
        return Rows(self.numbers[index], columns, self.weights[index])

    def of(self, keys: np.ndarray) -> Rows:
        """Rows of the keys that are marked."""
        return self.take(np.flatnonzero(keys[self.numbers]))

    def plus(self, other: Rows) -> Rows:
        """These rows and others."""
        pairs = zip(self.columns, other.columns, strict=True)
        return Rows(
            np.concatenate([self.numbers, other.numbers]),
            [pa.concat_arrays([a, b]) for a, b in pairs],
            np.concatenate([self.weights, other.weights]),
        )

    def summed(self) -> Rows:
        """Each different row of a key once, without those whose weights come to zero."""
        groups = group_rows(self.numbers, self.columns)
        sums = groups.sums(self.weights)
        kept = np.flatnonzero(sums)
        found = self.take(groups.first()[kept] if len(kept) else np.zeros(0, np.int64))
        return Rows(found.numbers, found.columns, sums[kept])

    def present(self) -> Rows:
        """Rows that are there at least once."""
        return self.take(np.flatnonzero(self.weights > 0))

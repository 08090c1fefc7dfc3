"""Z-sets: rows of several keys, each with a weight, between a batch and a bag trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.state.arrow.batches import group_rows


@dataclass(frozen=True)
class ZSet:
    """The number of the key of each row, its columns, and how many there are of it.

    Columns are normalised: one NaN, no negative zero.
    """

    numbers: np.ndarray
    columns: list[Any]
    weights: np.ndarray

    def take(self, index: np.ndarray) -> ZSet:
        """Some rows, in this order."""
        picks = pa.array(index)
        columns = [column.take(picks) for column in self.columns]
        return ZSet(self.numbers[index], columns, self.weights[index])

    def for_keys(self, keys: np.ndarray) -> ZSet:
        """Rows of the keys that are marked."""
        return self.take(np.flatnonzero(keys[self.numbers]))

    def concat(self, other: ZSet) -> ZSet:
        """These rows and others."""
        pairs = zip(self.columns, other.columns, strict=True)
        return ZSet(
            np.concatenate([self.numbers, other.numbers]),
            [pa.concat_arrays([a, b]) for a, b in pairs],
            np.concatenate([self.weights, other.weights]),
        )

    def consolidate(self) -> ZSet:
        """Each distinct row of a key once, without those whose weights come to zero."""
        groups = group_rows(self.numbers, self.columns)
        sums = groups.sums(self.weights)
        kept = np.flatnonzero(sums)
        found = self.take(groups.first()[kept] if len(kept) else np.zeros(0, np.int64))
        return ZSet(found.numbers, found.columns, sums[kept])

    def positive(self) -> ZSet:
        """Rows that are there at least once."""
        return self.take(np.flatnonzero(self.weights > 0))

"""Rows to the partition that an expression names, on every Spark.

Spark 4.1 and newer have `repartitionById`. Before, `repartition` sends a row where the hash of its
column lands: a list of numbers, one for each partition, whose hashes land there does the same.

Invariants:
- A row goes to exactly the partition that the expression names.
- Only public calls are used; that tasks get the rows of their partition is checked in every epoch
  by the control rows (see `check_partitions`).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MASK = 0xFFFFFFFF
_SEED = 42  # of the hash function that `repartition` and SQL's `hash` use


class Shuffle:
    """Sends rows to partitions. partition: SQL text of an int from 0 to partitions - 1."""

    def __init__(self, partitions: int, partition: str) -> None:
        """Keep both; the expression is made with the first frame."""
        self._partitions, self._text = partitions, partition
        self._by_id: Any = None
        self._by_hash: Any = None

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The same rows, each in its partition."""
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        if hasattr(frame, "repartitionById"):
            if self._by_id is None:
                self._by_id = F.expr(self._text)
            return frame.repartitionById(self._partitions, self._by_id)
        if self._by_hash is None:
            numbers = ", ".join(str(number) for number in landing_numbers(self._partitions))
            self._by_hash = F.expr(f"array({numbers})[{self._text}]")
        return frame.repartition(self._partitions, self._by_hash)


@functools.cache
def landing_numbers(partitions: int) -> tuple[int, ...]:
    """For each partition a number whose hash lands there, if rows are spread by that number."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < partitions:
        found.setdefault(hash_int(number) % partitions, number)
        number += 1
    return tuple(found[partition] for partition in range(partitions))


def hash_int(value: int) -> int:
    """What SQL's `hash` makes of one int: Murmur3 in 32 bits."""
    mixed = _rotated(value * 0xCC9E2D51, 15) * 0x1B873593
    mixed = _rotated(_SEED ^ (mixed & _MASK), 13) * 5 + 0xE6546B64
    mixed = (mixed & _MASK) ^ 4  # the length of an int in bytes
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = ((mixed ^ (mixed >> shift)) * factor) & _MASK
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return ((value << bits) | (value >> (32 - bits))) & _MASK

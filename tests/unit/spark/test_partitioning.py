"""Rows to the partition that an expression names, with and without `repartitionById`."""

from __future__ import annotations

import pytest

from holdfast.spark.partitioning import Shuffle, hash_int, landing_numbers


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 16, 200, 256])
def test_each_partition_has_a_number_that_lands_there(partitions):
    """One number each, whose hash modulo the number of partitions is the partition."""
    numbers = landing_numbers(partitions)
    assert [hash_int(number) % partitions for number in numbers] == list(range(partitions))


def test_the_hash_is_the_one_that_spark_documents():
    """Values of SQL's `hash` for single ints."""
    assert [hash_int(n) for n in (0, 1, 42, -1)] == [933211791, -559580957, 29417773, -1604776387]


class Frame:
    """A frame that says how it was repartitioned."""

    def repartition(self, partitions, column):
        return "hash", partitions, column


class NewFrame(Frame):
    """A frame of Spark 4.1 and newer."""

    def repartitionById(self, partitions, column):  # noqa: N802 - Spark's name
        return "id", partitions, column


def test_the_way_is_the_one_that_the_frame_has(monkeypatch):
    """`repartitionById` where there is one, `repartition` by numbers otherwise."""
    from pyspark.sql import functions as F

    monkeypatch.setattr(F, "expr", lambda text: text)
    shuffle = Shuffle(2, "p")
    assert shuffle(NewFrame()) == ("id", 2, "p")
    way, count, text = shuffle(Frame())
    assert (way, count) == ("hash", 2)
    first, second = landing_numbers(2)
    assert text == f"array({first}, {second})[p]"

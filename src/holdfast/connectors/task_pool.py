"""Work of sinks that tasks carry out: bytes in, bytes out, one background Spark job.

Invariants:
- Without a session, as in tests of a sink alone, this process does it, one piece after the other.
- A failure is a `HoldfastError`, also where Spark raised it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, InternalError
from holdfast.ids import RandomIds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_pieces(
    spark: SparkSession | None,
    function: Callable[[bytes], bytes],
    pieces: Sequence[tuple[int, bytes]],
    *,
    description: str,
    epoch: int | None = None,
) -> list[bytes]:
    """The answers to some pieces, in order.

    Args:
        spark: the session; epochs may run on it meanwhile.
        function: works on a piece, in a task; must be importable there.
        pieces: how heavy each is, and what it carries.
        description: what people see of it in Spark's page.
        epoch: which one is published, for errors.

    Raises:
        HoldfastError: a piece failed, or Spark did.
    """
    if spark is None:
        return [function(piece) for _, piece in pieces]
    from holdfast.spark.background import BackgroundJob, cores_of, spread
    from holdfast.spark.errors import spark_failure

    numbers = range(len(pieces))
    groups = [
        [(place, pieces[number][1]) for place, number in group]
        for group in spread(numbers, lambda number: pieces[number][0], cores_of(spark))
    ]
    job = BackgroundJob(spark, function, groups, description=description, ids=RandomIds())
    try:
        answers = job.result()
    except HoldfastError:
        raise
    except Exception as error:
        raise spark_failure(error, epoch) from error
    if answers is None or len(answers) != len(pieces):
        raise InternalError("a job of a sink gave no answers", description=description)
    return answers

"""Reading a changelog that a Parquet sink has published, folded to the rows that are there.

A changelog holds one directory for each epoch, and of a row that changed +1 and -1 in `_weight`.
Added up, they are the rows as they are now, or as they were after an epoch.

Invariants:
- Only what is published counts: epochs up to the one that the owner record names.
- A version that the output can no longer tell apart is refused, never approximated.
- One real directory is read, so that rows are never mixed from before and after a compaction.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from holdfast.arguments import value_map
from holdfast.connectors.base import read_owner
from holdfast.connectors.locations import local_path
from holdfast.connectors.parquet.sink import inside_fold
from holdfast.errors import CorruptionError, InvalidInputError, NotFoundError, RefusedError
from holdfast.format.owner import NOTHING, OWNER, Owner
from holdfast.spark.classic import NO_PATTERNS
from holdfast.spark.ddl import quoted
from holdfast.spark.errors import is_of_spark
from holdfast.spark.session import check_session
from holdfast.storage import Storage, open_storage
from holdfast.storage.open import OBJECT_SCHEMES, location_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WEIGHT, EPOCH = "_weight", "hf_epoch"
_COUNT = "__hf_count"
_PATTERN = re.compile(r"[*?{}\[\]\\]")
_DIRECTORY = re.compile(rf"{EPOCH}=(\d+)/")


def read_changelog(
    spark: SparkSession,
    path: str | PathLike[str],
    *,
    as_of: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """The rows of a changelog output as they are now, or as they were after an epoch.

    Args:
        spark: the session that reads.
        path: of a Parquet sink, in its mode "changelog".
        as_of: the epoch after which the rows are asked for; None: the newest published one. An
            epoch that published nothing shows the rows of the one before, or none.
        storage_options: how an object store is reached, as in the sink.

    Returns:
        The rows, each as often as it is there, without `_weight` and `hf_epoch`.

    Raises:
        NotFoundError: nothing is published there.
        InvalidInputError: the output is no changelog, or `as_of` is no epoch.
        CorruptionError: a file of it cannot be read.
        RefusedError: the output is being rebuilt; or the epoch was compacted with later ones, or is
            from before a rebuild, so that it cannot be told apart.

    Example:
        >>> rows = hf.read_changelog(spark, folder / "totals")
        >>> sorted(tuple(row) for row in rows.collect())
        [('ann', 7.0), ('bob', 5.0)]
    """
    _check_epoch(as_of)
    root = _root(location_text(path))
    storage = open_storage(root, options=value_map(storage_options, "storage_options") or None)
    owner = read_owner(storage, OWNER)
    epochs = _epochs(storage)
    if not epochs:
        raise _nothing_there(storage, owner, root)
    newest = _newest(owner, epochs, root)
    last = newest if as_of is None else min(as_of, newest)
    if as_of is not None and owner is not None:
        _check_apart(owner, last, root)
    frame = _read(spark, root)
    return _folded(frame.where(f"{EPOCH} <= {last}").drop(EPOCH))


def _check_epoch(as_of: object) -> None:
    if as_of is None or (isinstance(as_of, int) and not isinstance(as_of, bool) and as_of >= 0):
        return
    raise InvalidInputError(
        "not an epoch",
        kind="invalid_epoch",
        as_of=repr(as_of)[:60],
        remedy="give the number of an epoch: 0, 1, 2 and so on",
    )


def _root(path: str) -> str:
    """The real directory: compaction swaps the link that a path goes through."""
    if "://" in path and path.split("://", 1)[0] in OBJECT_SCHEMES:
        return path.rstrip("/")
    local = local_path(path)
    if not os.path.isdir(local):  # False also for a name that is too long
        raise NotFoundError(
            "there is no output at this path",
            kind="no_output",
            path=local,
            remedy="give the path of a Parquet sink that has published",
        )
    return os.path.realpath(local)


def _read(spark: SparkSession, root: str) -> DataFrame:
    """All epochs of a directory, whatever its name contains: Spark decodes nothing in it."""
    check_session(spark)
    reader = spark.read
    if "://" not in root:
        if _PATTERN.search(root):
            reader = reader.options(**NO_PATTERNS)
        root = f"file:{root}"
    elif root.startswith("s3://"):
        root = root.replace("s3://", "s3a://", 1)
    try:
        return reader.parquet(root)
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise CorruptionError(
            "Spark cannot read the output",
            kind="unreadable_output",
            path=root,
            reason=" ".join(str(error).split())[:300],
            remedy="bring the damaged file back from a copy, or rebuild the output: "
            'run(outputs={"sink": "adopt"})',
        ) from error


def _epochs(storage: Storage) -> set[int]:
    matches = (_DIRECTORY.match(entry.path) for entry in storage.list(""))
    return {int(match.group(1)) for match in matches if match is not None}


def _newest(owner: Owner | None, epochs: set[int], root: str) -> int:
    """The newest epoch that is published as a whole."""
    if owner is None:
        return max(epochs)
    if owner.building:
        raise RefusedError(
            "the output is being rebuilt",
            kind="output_building",
            path=root,
            remedy="read it when the pipeline has run",
        )
    return int(owner.epoch)


def _check_apart(owner: Owner, epoch: int, root: str) -> None:
    """Refuse an epoch whose rows lie in one directory with those of later ones."""
    if owner.since != NOTHING and epoch < owner.since:
        raise _no_version(root, epoch, f"it was rebuilt at epoch {owner.since}")
    if inside_fold(owner.folds, epoch):
        raise _no_version(root, epoch, "it was compacted into one directory with later epochs")


def _no_version(root: str, epoch: int | None, why: str) -> RefusedError:
    return RefusedError(
        "the output cannot show this epoch",
        kind="no_such_version",
        path=root,
        epoch=epoch,
        why=why,
        remedy="ask for a later epoch; pipe.view(operator, at=...) shows every retained checkpoint",
    )


def _nothing_there(storage: Storage, owner: Owner | None, root: str) -> Exception:
    plain = any(entry.path.endswith(".parquet") for entry in storage.list(""))
    if plain or (owner is not None and owner.version != NOTHING):
        return InvalidInputError(
            "the output is no changelog",
            kind="not_a_changelog",
            path=root,
            remedy="read it with spark.read.parquet(path): it holds the rows as they are now",
        )
    return NotFoundError(
        "nothing is published at this path",
        kind="no_output",
        path=root,
        remedy="run the pipeline, or correct the path",
    )


def _folded(frame: DataFrame) -> DataFrame:
    """Every row as often as its weights say; a sum below zero is an error."""
    if WEIGHT not in frame.columns:
        return frame
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    columns = [F.col(quoted(name)) for name in frame.columns if name != WEIGHT]
    counted = frame.groupBy(*columns).agg(F.sum(WEIGHT).alias(_COUNT)).where(f"{_COUNT} <> 0")
    text = (
        "holdfast.errors.CorruptionError: more rows are retracted than were given. "
        "cause=changelog_incomplete. read a changelog that nobody else writes to or deletes from"
    )
    times = F.expr(f"CASE WHEN {_COUNT} < 0 THEN raise_error('{text}') ELSE int({_COUNT}) END")
    repeated = counted.select(*columns, F.explode(F.array_repeat(F.lit(0), times)).alias(_COUNT))
    return repeated.drop(_COUNT)

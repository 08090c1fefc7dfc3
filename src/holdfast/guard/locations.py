"""Which places a guard may use together: asked before anything is made.

Invariants:
- Checkpoint, store, target and sink are compared by where they really lie: links, `..`, relative
  paths and spellings of an address are resolved first.
- Nothing is ever written into a checkpoint of Spark or into a pipeline's directory of
  anybody, except by the protocol of a store into its own root.
"""

from __future__ import annotations

import os
import re
from os import PathLike
from typing import Any

from holdfast.checkpoint.directory import enclosing_pipeline
from holdfast.errors import InvalidInputError, RefusedError
from holdfast.guard.checkpoint_location import normal

_SPARK_MARKS = ("metadata", "offsets")


def root_of(store: Any) -> str | None:
    """Where a store lies; None where it has no place that could overlap."""
    if isinstance(store, (str, PathLike)):
        return place(store)
    local = store.local_path("x")
    return None if local is None else os.path.realpath(local.parent)


def place(location: str | PathLike[str]) -> str:
    """One spelling for one place: an absolute path without links, or an address."""
    text = normal(location)
    if "://" not in text:
        return text
    scheme, _, rest = text.partition("://")
    parts = [part for part in re.split(r"/+", rest) if part not in ("", ".")]
    kept: list[str] = []
    for part in parts:
        if part == ".." and len(kept) > 1:
            kept.pop()
        elif part != "..":
            kept.append(part)
    return f"{scheme}://{'/'.join(kept)}"


def check_save(
    location: str | PathLike[str], store: Any, sink: str | PathLike[str] | None = None
) -> None:
    """Refuse a save whose store, checkpoint and sink contain one another."""
    live, root = _given(location), root_of(store)
    if root is not None:
        _apart("store", root, "checkpoint", live)
        _outside_spark(root, "store")
    _check_sink(sink, live, root)


def check_restore(
    location: str | PathLike[str],
    store: Any,
    target: str | PathLike[str],
    sink: str | PathLike[str] | None = None,
) -> None:
    """Refuse a restore or clone whose target lies in a store or a checkpoint, or holds one."""
    live, there, root = _given(location), _given(target), root_of(store)
    if there != live:
        _apart("target", there, "checkpoint", live)
        _outside_spark(there, "target")
    if root is not None:
        _apart("target", there, "store", root)
    if "://" not in there:
        inside = enclosing_pipeline(there)
        if inside is not None:
            raise _overlapping("target", there, "store", inside)
    _check_sink(sink, live, root)
    _check_sink(sink, there, root)


def _given(location: str | PathLike[str]) -> str:
    if not os.fspath(location).strip():
        raise InvalidInputError("the location is empty", kind="bad_url")
    return place(location)


def _check_sink(sink: str | PathLike[str] | None, live: str, root: str | None) -> None:
    """A query may keep its checkpoint inside its output; nothing else may contain another."""
    if sink is None:
        return
    output = _given(sink)
    if _within(output, live):
        raise _overlapping("sink", output, "checkpoint", live)
    if root is not None:
        _apart("sink", output, "store", root)


def _apart(one: str, here: str, other: str, there: str) -> None:
    if _within(here, there) or _within(there, here):
        raise _overlapping(one, here, other, there)


def _outside_spark(path: str, what: str) -> None:
    """No part of the way to the path is a checkpoint of Spark."""
    above = path
    while "://" not in above:
        if all(os.path.exists(os.path.join(above, mark)) for mark in _SPARK_MARKS):
            raise _overlapping(what, path, "checkpoint", above)
        if above == os.path.dirname(above):
            return
        above = os.path.dirname(above)


def _within(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def _overlapping(one: str, here: str, other: str, there: str) -> RefusedError:
    return RefusedError(
        f"the {one} and the {other} overlap",
        kind="overlapping",
        **{one: here, other: there},
        remedy="give them places of their own, side by side; nothing was made",
    )

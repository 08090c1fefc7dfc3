"""Which checkpoint is meant: epoch, id, start of an id, label, time, `ago:2h`, `latest`.

One grammar for Python and the command line: docs/reference/checkpoints.md.

Invariants:
- A name that could mean two checkpoints is an error that says so; nothing is guessed.
- A label wins over an epoch and over a time, an epoch over the start of an id: ids of our time
  begin with 0, epochs never do. `epoch:` and `time:` say what is meant.
- A time without a zone is UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from holdfast.durations import duration_us
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.format.documents import Summary
from holdfast.ids import UUID_PATTERN

if TYPE_CHECKING:
    from holdfast.checkpoint.commit.catalog import CatalogState
    from holdfast.checkpoint.reader import StoreReader

Ref = str | int | datetime
PREFIX_MIN = 4
_NUMBER = re.compile(r"0|[1-9][0-9]*")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ].*)?")
_ORIGIN = datetime(1970, 1, 1, tzinfo=UTC)


def find_checkpoint(
    reader: StoreReader,
    ref: Ref,
    now_us: int,
    *,
    catalog: CatalogState | None = None,
    numbered: Callable[[int], Summary | None] | None = None,
) -> Summary:
    """The checkpoint that a user names, on the command line or in Python.

    Args:
        reader: The pipeline.
        ref: `latest`, an epoch, an id or the start of one, a label, a time, or `ago:` and a
            duration; an epoch may be a number, a time a `datetime`.
        now_us: The time, for `ago:`.
        catalog: What was read already.
        numbered: What a number means, where it is no epoch; None for one that means nothing.

    Returns:
        Its summary.

    Raises:
        NotFoundError: Nothing has that name (`no_checkpoint`).
        InvalidInputError: It fits several (`ambiguous`), or is no name at all (`invalid_ref`,
            `invalid_time`, `invalid_duration`).

    Example:
        >>> from holdfast.checkpoint import read_store
        >>> from holdfast.checkpoint.reference import find_checkpoint
        >>> find_checkpoint(read_store("checkpoints", "orders"), "latest", 0).epoch
        0
    """
    state = catalog or reader.catalog()
    text = _text(ref)
    if text == "latest":
        found = [*state.candidates[:1]]
    elif UUID_PATTERN.fullmatch(text):
        found = [entry for entry in state.live if entry.checkpoint == text]
    elif text.startswith("epoch:"):
        found = _of_epoch(state, text.removeprefix("epoch:"))
    elif text.startswith(("time:", "ago:")):
        return _at_time(state, text, _instant_us(text, now_us))
    else:
        found = _of_label(reader, state, text)
        if not found and _TIME.fullmatch(text):
            return _at_time(state, text, _instant_us(text, now_us))
        if not found and _NUMBER.fullmatch(text):
            found = _of_number(state, text, numbered)
        if not found and len(text) >= PREFIX_MIN:
            found = [entry for entry in state.live if entry.checkpoint.startswith(text)]
    if not found:
        raise _unknown(reader, state, text)
    if len(found) > 1:
        raise InvalidInputError(
            "more than one checkpoint begins like this",
            kind="ambiguous",
            ref=text,
            matches=len(found),
            remedy="give more digits",
        )
    return found[0]


def _text(ref: object) -> str:
    """What was given, as it would be typed: an epoch as its number, a time as ISO 8601."""
    if isinstance(ref, datetime):
        return f"time:{ref.isoformat()}"
    if isinstance(ref, (str, int)) and not isinstance(ref, bool):
        return str(ref)
    raise InvalidInputError(
        "not the name of a checkpoint",
        kind="invalid_ref",
        value=repr(ref)[:60],
        remedy="give an id, a label, an epoch, a time, 'ago:2h' or 'latest'",
    )


def _of_label(reader: StoreReader, state: CatalogState, text: str) -> list[Summary]:
    """What a savepoint of that label holds, or else the newest that was committed with it."""
    pinned = {pin.checkpoint for pin in reader.pins() if pin.label == text}
    held = [entry for entry in state.live if entry.checkpoint in pinned]
    return held or [entry for entry in state.live if entry.label == text][-1:]


def _of_epoch(state: CatalogState, text: str) -> list[Summary]:
    return [entry for entry in state.live if str(entry.epoch) == text]


def _of_number(
    state: CatalogState, text: str, numbered: Callable[[int], Summary | None] | None
) -> list[Summary]:
    if numbered is None:
        return _of_epoch(state, text)
    named = numbered(int(text))
    return [] if named is None else [named]


def _instant_us(ref: str, now_us: int) -> int:
    """Microseconds of `time:…`, a date, a date and time (UTC unless it says so), `ago:2h`."""
    if ref.startswith("ago:"):
        return now_us - duration_us(ref.removeprefix("ago:"))
    text = ref.removeprefix("time:")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInputError(
            "not a time",
            kind="invalid_time",
            value=repr(text)[:60],
            remedy="write 2026-11-15T21:30, 2026-11-15T21:30+01:00, or ago:2h",
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _ORIGIN) // timedelta(microseconds=1)


def _at_time(state: CatalogState, ref: str, at_us: int) -> Summary:
    """The newest one that existed at that time and was not abandoned."""
    found = [entry for entry in state.candidates if entry.created_us <= at_us]
    if found:
        return max(found, key=lambda entry: (entry.created_us, entry.sequence))
    oldest = min((entry.created_us for entry in state.candidates), default=None)
    raise NotFoundError(
        "no checkpoint is that old",
        kind="no_checkpoint",
        ref=ref,
        oldest=None if oldest is None else datetime.fromtimestamp(oldest / 1e6, UTC).isoformat(),
        remedy="run `holdfast ls` to see what is there",
    )


def _unknown(reader: StoreReader, state: CatalogState, ref: str) -> NotFoundError:
    epochs = [entry.epoch for entry in state.live]
    return NotFoundError(
        "no such checkpoint",
        kind="no_checkpoint",
        ref=repr(ref)[:100],
        pipeline=reader.directory.pipeline,
        epochs=f"{min(epochs)}..{max(epochs)}" if epochs else "none",
        remedy="run `holdfast ls` to see what is there",
    )

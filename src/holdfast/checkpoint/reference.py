"""Which checkpoint is meant: id, start of an id, label, epoch, time, `latest`.

Invariants:
- A name that could mean two checkpoints is an error that says so; nothing is guessed.
- A label wins over an epoch, an epoch over the start of an id: ids of our time begin with 0, epochs
  never do.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from holdfast.checkpoint.commit.catalog import CatalogState
from holdfast.checkpoint.reader import StoreReader
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.format.documents import Summary

Ref = str | int | datetime
_NUMBER = re.compile(r"0|[1-9][0-9]*")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ].*)?")
_AGO = re.compile(r"ago:(?P<number>[0-9]+)(?P<unit>[smhd])")
_UNITS_US = {"s": 10**6, "m": 60 * 10**6, "h": 3_600 * 10**6, "d": 86_400 * 10**6}


def find_checkpoint(
    reader: StoreReader,
    ref: Ref,
    now_us: int,
    *,
    catalog: CatalogState | None = None,
) -> Summary:
    """The checkpoint that a user names, on the command line or in Python."""
    state = catalog or reader.catalog()
    ref = _text(ref)
    at_us = _instant(ref, now_us)
    if at_us is not None:
        return _at_time(state, ref, at_us)
    if _NUMBER.fullmatch(ref) and not any(pin.label == ref for pin in reader.pins()):
        found = [entry for entry in state.live if str(entry.epoch) == ref]
        if found:
            return found[-1]
        if len(ref) < 4:
            raise _unknown(reader, state, ref)
    try:
        return reader.resolve(ref, catalog=state)
    except NotFoundError as error:
        raise _unknown(reader, state, ref) from error


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


def _instant(ref: str, now_us: int) -> int | None:
    """Microseconds of `time:…`, a date, a date and time (UTC unless it says so), `ago:2h`."""
    ago = _AGO.fullmatch(ref)
    if ago is not None:
        return now_us - int(ago["number"]) * _UNITS_US[ago["unit"]]
    text = ref.removeprefix("time:")
    if text == ref and not _TIME.fullmatch(ref):
        return None
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
    return int(moment.timestamp() * 1_000_000)


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

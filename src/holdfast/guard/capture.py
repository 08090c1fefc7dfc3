"""Capturing a batch of a running query: the bytes of its closure, or another try.

Invariants:
- A captured closure is of one batch. Small new files are in memory and large ones are open before
  the check; the check sees every file of the closure unchanged, or the capture is thrown away.
- A file that the savepoint before holds with the same size and time is not read again.
- New bytes that disagree with the checksum next to them are damage, and are never saved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO

from holdfast.clock import Clock
from holdfast.errors import CorruptionError, NotFoundError, StorageError
from holdfast.format.canonical import sha256_hex
from holdfast.guard.checkpoint_location import (
    CheckpointLocation,
    LocationListing,
    MovedError,
    is_small,
    moved,
)
from holdfast.guard.closure import Closure, compute, last_committed, log_closure
from holdfast.guard.index import StoredFile
from holdfast.guard.spark_files import layout
from holdfast.guard.spark_files.checksum import check_hadoop, check_spark
from holdfast.storage.base import Entry

_HANDLES_MAX = 256
_DAMAGED_TRIES = 3


@dataclass
class Captured:
    """One closure: what is new, what is known already."""

    closure: Closure
    entries: dict[str, Entry]
    small: dict[str, bytes] = field(default_factory=dict)
    large: dict[str, IO[bytes] | None] = field(default_factory=dict)
    known: dict[str, StoredFile] = field(default_factory=dict)
    tries: int = 1

    def close(self) -> None:
        """Release the handles."""
        for handle in self.large.values():
            if handle is not None:
                handle.close()


def capture(
    live: CheckpointLocation,
    before: Mapping[str, StoredFile],
    *,
    clock: Clock,
    sink: CheckpointLocation | None = None,
    tries: int = 50,
    on_try: Callable[[LocationListing], None] | None = None,
) -> Captured:
    """The newest committed batch; when the query moves on meanwhile, the next one."""
    last: MovedError | None = None
    for attempt in range(1, tries + 1):
        listing = live.list()
        listing.refuse_foreign()
        batch = last_committed(listing)
        if batch is None:
            raise NotFoundError(
                "the query has not committed a batch yet",
                kind="no_batch",
                location=live.location,
                remedy="let it run for one batch, then save",
            )
        if on_try is not None:
            on_try(listing)
        try:
            captured = _try(live, listing, batch, before, sink)
        except MovedError as error:
            last = error
            clock.sleep_ms(min(5 * attempt, 100))
            continue
        except CorruptionError:
            # A file and the checksum next to it are renamed one after the other: look again.
            if attempt >= _DAMAGED_TRIES:
                raise
            clock.sleep_ms(20)
            continue
        captured.tries = attempt
        return captured
    raise StorageError(
        "the checkpoint is not complete, or changes faster than it can be read",
        kind="never_complete",
        location=live.location,
        path=last.facts.get("path") if last else None,
        tries=tries,
        retryable=True,
        took_effect=False,
        remedy="raise spark.sql.streaming.minBatchesToRetain; if the query is stopped, "
        "run `holdfast guard verify`",
    ) from last


def _try(
    live: CheckpointLocation,
    listing: LocationListing,
    batch: int,
    before: Mapping[str, StoredFile],
    sink: CheckpointLocation | None,
) -> Captured:
    closure = compute(live, listing, batch)
    captured = Captured(closure, {path: listing.entries[path] for path in closure.files})
    if sink is not None:
        _add_sink(captured, sink, batch)
    with contextlib.ExitStack() as stack:
        stack.callback(captured.close)
        for path, entry in captured.entries.items():
            _one(captured, sink if sink and _in_sink(path) else live, path, entry, before)
        _check_content(captured)
        _check_still(captured, live, sink)
        stack.pop_all()
    return captured


def _in_sink(path: str) -> bool:
    return path.startswith(f"{layout.SINK_LOG}/")


def _add_sink(captured: Captured, sink: CheckpointLocation, batch: int) -> None:
    """The file sink's own log, up to the same batch."""
    listing = sink.list()
    logged = dict(listing.of("sink"))
    for path in log_closure(logged, batch, layout.SINK_LOG):
        for name in (path, layout.hadoop_sidecar(path)):
            if name in listing.entries:
                captured.entries[name] = listing.entries[name]


def _one(
    captured: Captured,
    live: CheckpointLocation,
    path: str,
    entry: Entry,
    before: Mapping[str, StoredFile],
) -> None:
    known, content = before.get(path), captured.closure.contents.get(path)
    same = known is not None and (known.size, known.modified_us) == (entry.size, entry.modified_us)
    if known is not None and same:
        captured.known[path] = known
    elif content is not None or is_small(entry):
        captured.small[path] = live.read(path) if content is None else content
        if len(captured.small[path]) != entry.size:
            raise moved(path)
    elif len(captured.large) < _HANDLES_MAX:
        captured.large[path] = live.open_file(path)
    else:
        captured.large[path] = None


def _check_content(captured: Captured) -> None:
    """New small files must agree with the checksums that Spark and Hadoop left next to them."""
    for path, data in captured.small.items():
        sidecar = layout.hadoop_sidecar(path)
        if sidecar in captured.small:
            check_hadoop(data, captured.small[sidecar], path, sidecar)
        sidecar = layout.spark_sidecar(path)
        if sidecar in captured.small:
            check_spark(data, captured.small[sidecar], path, sidecar)


def _check_still(
    captured: Captured, live: CheckpointLocation, sink: CheckpointLocation | None
) -> None:
    """Nothing of the closure has vanished or become another file."""
    for path, entry in captured.entries.items():
        side = sink if sink is not None and _in_sink(path) else live
        now = side.stat(path)
        if (now.size, now.modified_us) != (entry.size, entry.modified_us):
            raise moved(path)


def digests(captured: Captured) -> dict[str, str]:
    """SHA-256 of the new small files."""
    return {path: sha256_hex(data) for path, data in captured.small.items()}

"""Outcomes: what became of each sink token, recorded apart from the manifest.

Invariants:
- Outcomes are appended, never rewritten. `committed` is final; a failed token can be tried again.
- A token without a committed outcome is committed again by recovery, so sinks are idempotent.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from holdfast.checkpoint.commit.conditional_put import publish
from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.checkpoint.reader import Outcomes
from holdfast.clock import Clock
from holdfast.errors import AlreadyExistsError, HoldfastError, InvalidInputError
from holdfast.failpoints import failpoint
from holdfast.format import paths
from holdfast.format.canonical import FORMAT_VERSION, NO_DIGEST
from holdfast.format.documents import (
    SMALL_BYTES_MAX,
    Outcome,
    OutcomeStatus,
    Summary,
    outcome_bytes,
    parse_outcome,
)
from holdfast.ids import WriterId
from holdfast.storage.base import Storage

_REASON_MAX = 2_000
_TRIES = 1_000


def record_outcome(
    directory: PipelineDirectory,
    storage: Storage,
    clock: Clock,
    known: Outcomes,
    *,
    summary: Summary,
    sink: str,
    status: OutcomeStatus,
    writer: WriterId,
    reason: str = "",
) -> Outcomes:
    """Append an outcome and return what is known then."""
    promise = next((entry for entry in summary.sinks if entry.name == sink), None)
    if promise is None:
        raise InvalidInputError(
            "that checkpoint has no token of this sink",
            kind="unknown_sink",
            sink=sink,
            epoch=summary.epoch,
            known=",".join(entry.name for entry in summary.sinks) or "none",
        )
    if known.status(summary.checkpoint, sink) == "committed":
        if status == "committed":
            return known
        raise InvalidInputError(
            "a committed outcome is final", kind="outcome_final", sink=sink, epoch=summary.epoch
        )
    recorded = known.by_token.get((summary.checkpoint, sink), [])
    attempt = recorded[-1].attempt + 1 if recorded else 0
    failpoint("outcome.before_record")
    for number in range(attempt, attempt + _TRIES):
        outcome = Outcome(
            format=FORMAT_VERSION,
            sha256=NO_DIGEST,
            checkpoint=summary.checkpoint,
            epoch=summary.epoch,
            sink=sink,
            attempt=number,
            status=status,
            replay=promise.replay,
            at_us=clock.wall_us(),
            writer=writer,
            reason=reason.encode("utf-8", "backslashreplace").decode()[:_REASON_MAX],
        )
        path = directory.at(paths.outcome(summary.epoch, sink, number))
        try:
            publish(storage, path, outcome_bytes(outcome), clock)
        except AlreadyExistsError:
            # A predecessor wrote it, or it is damaged; a committed one settles the matter.
            if _already_committed(storage, path, outcome):
                outcome = msgspec.structs.replace(outcome, status="committed")
                break
            continue
        break
    else:
        raise InvalidInputError("too many outcomes for one token", kind="outcome_limit", sink=sink)
    failpoint("outcome.after_record")
    by_token = dict(known.by_token)
    by_token[(summary.checkpoint, sink)] = [*recorded, outcome]
    return replace(known, by_token=by_token, epoch_max=max(known.epoch_max, summary.epoch))


def _already_committed(storage: Storage, path: str, expected: Outcome) -> bool:
    try:
        data = storage.get(path, bytes_max=SMALL_BYTES_MAX)
        existing = parse_outcome(data, path, expected.epoch, expected.sink, expected.attempt)
    except HoldfastError:  # unreadable means: not known to be committed
        return False
    return existing.status == "committed" and existing.checkpoint == expected.checkpoint

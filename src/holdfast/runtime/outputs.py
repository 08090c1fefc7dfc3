"""What a start finds in the outputs, and what it does about it: a pure decision for each sink.

Invariants:
- Every output is looked at before any is touched; one refusal leaves all of them as they were.
- An output of another store, pipeline or sink is never changed without being asked for by name.
- What is missing, behind or cannot go back cheaply is rebuilt; what is ahead of everything that
  this store ever did belongs to a copy of it, and is refused.

Decision: docs/adr/0111-every-output-has-an-owner-record.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from holdfast.checkpoint import RecoveryPlan, StoreReader
from holdfast.checkpoint.reader import Outcomes
from holdfast.connectors.base import OutputState
from holdfast.errors import HoldfastError, RefusedError
from holdfast.format.documents import Summary
from holdfast.format.manifest import Manifest
from holdfast.format.owner import NOTHING, Owner

Wish = Literal["adopt", "keep", "empty"]
Action = Literal["claim", "continue", "retract", "rebuild", "finish", "empty"]
OWNED = "holdfast.outputs"
"""The property of a manifest whose sinks all have an owner record in their outputs."""
_TEXT_MAX = 1_024


@dataclass(frozen=True)
class History:
    """What the store knows: its checkpoints, and what became of each sink's tokens."""

    lineage: str
    pipeline: str
    epoch: int | None = None
    checkpoint: str = ""
    epoch_next: int = 0
    chain: Mapping[int, str] | None = None
    known: frozenset[str] = frozenset()
    published: Mapping[str, int] | None = None
    waiting: Mapping[str, int] | None = None
    owned: frozenset[str] = frozenset()
    forked: bool = False

    def newest(self, sink: str) -> int:
        """The newest epoch of a sink that is known to be published."""
        return (self.published or {}).get(sink, NOTHING)

    def staged(self, sink: str) -> int:
        """The newest epoch of a sink that waits to be published."""
        return (self.waiting or {}).get(sink, NOTHING)

    def empty(self, sink: str) -> bool:
        """Whether it is known that nothing of a sink was ever published up to here."""
        told = (self.published or {}).get(sink)
        return told == NOTHING and self.staged(sink) == NOTHING

    def at(self, epoch: int) -> str | None:
        """The checkpoint of an epoch, as far as it is retained."""
        return (self.chain or {}).get(epoch)


@dataclass(frozen=True)
class Decision:
    """What a start does with one output. soft: nothing proves that there was anything before."""

    action: Action
    why: str = ""
    soft: bool = False


def history_of(
    header_lineage: str,
    pipeline: str,
    manifest: Manifest | None,
    live: Collection[Summary],
    outcomes: Outcomes,
    epoch_next: int,
) -> History:
    """The facts of an opened store, or of one that would be opened."""
    if manifest is None:
        return History(header_lineage, pipeline, epoch_next=epoch_next)
    chain = {int(s.epoch): str(s.checkpoint) for s in live if not s.abandoned}
    published = published_of(manifest)
    waiting: dict[str, int] = {}
    for summary in live:
        if summary.abandoned or summary.epoch > manifest.epoch:
            continue
        for sink in summary.sinks:
            status = outcomes.status(summary.checkpoint, sink.name)
            into = {"committed": published, "aborted": {}}.get(status, waiting)
            into[sink.name] = max(into.get(sink.name, NOTHING), int(summary.epoch))
    properties = manifest.properties
    sinks = [part.name for part in manifest.topology.parts if part.kind == "sink"]
    owned = frozenset(sinks if OWNED in properties else ())
    return History(
        lineage=header_lineage,
        pipeline=pipeline,
        epoch=int(manifest.epoch),
        checkpoint=manifest.checkpoint,
        epoch_next=epoch_next,
        chain={e: c for e, c in chain.items() if e <= manifest.epoch},
        known=frozenset(str(s.checkpoint) for s in live),
        published=published,
        waiting=waiting,
        owned=owned,
        forked="forked_from" in properties,
    )


def published_text(owners: Mapping[str, Owner]) -> str:
    """The value of the property: by sink, the newest published epoch, as far as there is room.

    -1 says that nothing of the sink lies there, so that going back to here empties the output.
    """
    epochs = {
        name: NOTHING if not owner.parts and owner.version == NOTHING else int(owner.epoch)
        for name, owner in owners.items()
        if not owner.building
    }
    text = msgspec.json.encode(epochs).decode()
    return text if len(text) <= _TEXT_MAX else "1"


def published_of(manifest: Manifest) -> dict[str, int]:
    """What a manifest says that its sinks had published, also of epochs that nothing retains."""
    try:
        return msgspec.json.decode(manifest.properties.get(OWNED, "{}"), type=dict[str, int])
    except msgspec.MsgspecError:
        return {}  # "1": not told


def planned_history(reader: StoreReader, plan: RecoveryPlan) -> History | None:
    """The facts as they will be after a recovery that has not begun; None without a checkpoint."""
    if plan.manifest is None:
        return None
    gone, back = set(plan.abandon), set(plan.revive)
    live = [
        _marked(
            c.summary,
            abandoned=(c.summary.abandoned or c.summary.checkpoint in gone)
            and c.summary.checkpoint not in back,
        )
        for c in plan.candidates
    ]
    return history_of(
        reader.header().lineage,
        reader.directory.pipeline,
        plan.manifest,
        live,
        reader.outcomes(),
        int(plan.epoch_next),
    )


def _marked(summary: Summary, *, abandoned: bool) -> Summary:
    return msgspec.structs.replace(summary, abandoned=abandoned)


def decide(
    sink: str, found: OutputState, history: History, *, new: bool = False, wish: Wish | None = None
) -> Decision:
    """What to do with one output; refusals are raised."""
    owner = found.owner
    if wish in ("adopt", "empty") and found.strange and owner is None:
        raise _not_empty(sink, found, history)  # rows of others would stay among the new ones
    if wish == "adopt" and found.shared and not found.empty and not new:
        wish = "keep"  # rows of others cannot be rebuilt
    if wish == "empty":
        return _emptied(sink, found, history, new=new)
    if owner is not None and not _mine(owner, sink, history):
        return _foreign(sink, found, history, wish)
    if wish == "adopt" and history.epoch is not None and not new:
        return _rebuild(sink, found, history, "as asked")
    if history.epoch is None or new:
        return _first(sink, found, history, new=new, wish=wish)
    if owner is None:
        return _without_record(sink, found, history, wish)
    return _own(sink, found, owner, history, wish)


def _emptied(sink: str, found: OutputState, history: History, *, new: bool) -> Decision:
    """An output that can simply continue is not erased: the wish may stand in a script."""
    try:
        plain = decide(sink, found, history, new=new)
    except RefusedError:
        return Decision("empty", "begins empty, as asked")
    return Decision("empty", "begins empty, as asked") if plain.action == "rebuild" else plain


def _own(
    sink: str, found: OutputState, owner: Owner, history: History, wish: Wish | None
) -> Decision:
    """The record is this sink's: does it agree with the store?"""
    if owner.building and history.staged(sink) > owner.epoch:
        return Decision("finish", "its rebuild is committed and only has to be published")
    if owner.building:
        return _rebuild(sink, found, history, "its rebuild was interrupted", again=True)
    if wish != "keep":
        problem = _contradiction(sink, found, owner, history)
        if problem is not None:
            raise problem
        if owner.epoch <= (history.epoch or 0):
            if history.newest(sink) > owner.epoch:
                return _rebuild(sink, found, history, "older than what was published")
            if not found.whole:
                return _rebuild(sink, found, history, "parts of it are missing")
    ahead = owner.epoch > (history.epoch or 0) or _ahead(found, history)
    if ahead and not found.retractable and not found.shared and history.empty(sink):
        return Decision("empty", f"nothing was published up to epoch {history.epoch}")
    if ahead:
        return _back(found, history)
    return Decision("claim", "kept as it is") if wish == "keep" else Decision("continue")


def _contradiction(
    sink: str, found: OutputState, owner: Owner, history: History
) -> RefusedError | None:
    """Why a record of this very sink cannot be part of this store's history."""
    at = history.at(owner.epoch)
    if owner.epoch > (history.epoch or 0):
        ours = owner.checkpoint in history.known or owner.epoch < history.epoch_next
        if ours:
            return None
        return RefusedError(
            "the output is ahead of this store", kind="output_ahead", **_facts(sink, found, history)
        )
    if at not in (None, owner.checkpoint):
        return RefusedError(
            "the output was written by a copy of this store",
            kind="output_diverged",
            **_facts(sink, found, history),
        )
    if history.newest(sink) > owner.epoch and at is None and owner.epoch != NOTHING:
        return RefusedError(
            "the output is older than what was published",
            kind="output_behind",
            **_facts(sink, found, history),
        )
    return None


def _mine(owner: Owner, sink: str, history: History) -> bool:
    return (owner.lineage, owner.pipeline, owner.sink) == (history.lineage, history.pipeline, sink)


def _ahead(found: OutputState, history: History) -> bool:
    return bool(found.epochs) and found.epochs[-1] > (history.epoch or 0)


def _rebuild(
    sink: str, found: OutputState, history: History, why: str, *, again: bool = False
) -> Decision:
    """Others have written to a shared output, too: it can be built only where there is nothing."""
    if found.shared and not found.empty and not again:
        raise RefusedError(
            f"the output cannot be rebuilt: {why}",
            kind="output_behind",
            **_facts(sink, found, history),
        )
    return Decision("rebuild", why)


def _back(found: OutputState, history: History) -> Decision:
    rebuilt = found.owner.since if found.owner is not None and not found.shared else NOTHING
    if found.retractable and rebuilt <= (history.epoch or 0):  # its first epoch holds the past
        return Decision("retract", f"goes back to epoch {history.epoch}")
    return Decision("rebuild", f"cannot go back to epoch {history.epoch} by itself")


def _foreign(sink: str, found: OutputState, history: History, wish: Wish | None) -> Decision:
    if wish == "adopt":
        return Decision("rebuild", "taken over from its owner")
    if wish is not None:
        return _back(found, history) if _ahead(found, history) else Decision("claim", "kept")
    raise RefusedError(
        "the output belongs to another owner", kind="output_owned", **_facts(sink, found, history)
    )


def _first(
    sink: str, found: OutputState, history: History, *, new: bool, wish: Wish | None
) -> Decision:
    """Nothing of this sink is published yet as far as the store knows."""
    if new:
        if found.owner is None and not found.empty and not found.shared and wish is None:
            raise _not_empty(sink, found, history)
        if wish == "keep" and not found.empty:
            return _back(found, history) if _ahead(found, history) else Decision("claim", "kept")
        return Decision("rebuild", "new")
    if found.empty or found.shared or wish is not None:
        return Decision("claim" if wish in (None, "keep") else "empty")
    raise _not_empty(sink, found, history)


def _without_record(sink: str, found: OutputState, history: History, wish: Wish | None) -> Decision:
    """Written by a version before owner records, moved away, deleted, or somebody else's."""
    if found.empty:
        known = sink in history.owned or history.forked or history.newest(sink) != NOTHING
        return Decision("rebuild", "missing", soft=not known)
    if wish == "keep" or (found.fits and sink not in history.owned):
        return _back(found, history) if _ahead(found, history) else Decision("claim", "no record")
    raise RefusedError(
        "the output has no owner record, and nothing shows that this store wrote it",
        kind="output_unknown",
        **_facts(sink, found, history),
    )


_REMEDY = (
    'choose another path for the sink, or say outputs={"SINK": "adopt"} (--output SINK=adopt) to '
    'take it over and rebuild it, "keep" to take it over as it is'
)


def _facts(sink: str, found: OutputState, history: History) -> dict[str, Any]:
    """Both sides of a refusal, and the ways on."""
    owner = found.owner
    return {
        "sink": sink,
        "path": found.where,
        "owner": f"{owner.pipeline}/{owner.sink} of {owner.lineage}" if owner else "none",
        "owner_epoch": owner.epoch if owner else None,
        "asking": f"{history.pipeline}/{sink} of {history.lineage}",
        "epoch": history.epoch,
        "remedy": _REMEDY.replace("SINK", sink),
    }


def _not_empty(sink: str, found: OutputState, history: History) -> HoldfastError:
    if found.owner is not None:
        return RefusedError(
            "the output has published epochs, but the store has no checkpoint",
            kind="output_not_empty",
            **_facts(sink, found, history),
        )
    return RefusedError(
        "the output holds rows of others", kind="output_not_empty", **_facts(sink, found, history)
    )


def not_rebuildable(sink: str, why: str, reasons: Collection[str]) -> RefusedError:
    """An output must be rebuilt, and cannot be."""
    return RefusedError(
        "an output must be rebuilt, but its rows are not available any more",
        kind="output_not_rebuildable",
        sink=sink,
        why=why,
        reasons="; ".join(reasons)[:600],
        remedy="bring the output or the history of the sources back, resume from another "
        f'checkpoint, or say outputs={{"{sink}": "empty"}} to let it begin empty',
    )

"""Roll the pipeline back to a checkpoint: its next start continues from there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from holdfast.checkpoint.reader import Outcomes
from holdfast.checkpoint.recovery.open import recovery_plan
from holdfast.cli.app import command, flag, option
from holdfast.cli.failures import Failure, failure_of
from holdfast.cli.output import Value, emit
from holdfast.cli.parts import SourceView, failure, source_view
from holdfast.cli.render import BAD, GOOD, WARN, Line, line, plural, wrapped
from holdfast.cli.targets import (
    REF,
    Place,
    check_lockable,
    dry_run_option,
    find_place,
    named,
    parse_options,
    store_argument,
    store_options,
    takeover_option,
)
from holdfast.errors import HoldfastError
from holdfast.format.documents import Summary
from holdfast.settings import Settings


class SinkEffect(Value, frozen=True, kw_only=True):
    """What going back means for one sink."""

    sink: str
    replay: str
    epochs: list[int]
    safe: bool
    effect: str


class Restore(Value, frozen=True, kw_only=True, tag="holdfast.restore/1", tag_field="schema"):
    """`holdfast restore --to REF STORE`."""

    root: str
    pipeline: str
    dry_run: bool
    restored: bool
    checkpoint: str
    epoch: int
    epoch_next: int
    abandoned: list[str]
    sinks: list[SinkEffect]
    positions: list[SourceView]
    refusal: Failure | None


def restore_place(
    place: Place,
    summary: Summary,
    *,
    accept_duplicates: bool,
    accept_loss: bool,
    dry_run: bool,
    takeover: bool,
) -> Restore:
    """Roll a pipeline back to a checkpoint, or forward again to one that was abandoned."""
    from holdfast.checkpoint.store import open_store

    reader = place.reader
    manifest = reader.manifest(summary)
    settings = Settings(recovery_verify="deep")
    plan = recovery_plan(
        place.storage,
        place.pipeline,
        resume=summary.checkpoint,
        settings=settings,
        accept_duplicates=accept_duplicates,
        accept_loss=accept_loss,
    )
    refusal: HoldfastError | None = plan.refusal
    epoch_next = plan.epoch_next
    state = reader.catalog()
    newer = [entry for entry in state.live if entry.checkpoint in plan.abandon]
    if refusal is None and not dry_run:
        check_lockable(place, takeover=takeover, what="restore")
        with open_store(
            place.storage,
            place.pipeline,
            topology=manifest.topology,
            settings=settings,
            resume=summary.checkpoint,
            takeover=takeover,
            clean_up=False,
            accept_duplicates=accept_duplicates,
            accept_loss=accept_loss,
        ) as store:
            epoch_next = store.epoch_next
    return Restore(
        root=place.root,
        pipeline=place.pipeline,
        dry_run=dry_run,
        restored=refusal is None and not dry_run,
        checkpoint=summary.checkpoint,
        epoch=summary.epoch,
        epoch_next=epoch_next,
        abandoned=[entry.checkpoint for entry in newer],
        sinks=_sink_effects(newer, reader.outcomes()),
        positions=[source_view(entry) for entry in manifest.sources],
        refusal=failure_of(_restore_remedy(refusal)) if refusal is not None else None,
    )


def _restore_remedy(error: HoldfastError) -> HoldfastError:
    """The same refusal, with the options of this command in its remedy."""
    if error.kind == "unsafe_fallback":
        error.remedy = "give --accept-duplicates if readers of these sinks can bear it"
    elif error.kind == "token_lost":
        error.remedy = "bring the manifest back, or give --accept-loss"
    return error


_EFFECTS = {
    "deduplicates": "will publish these epochs again and drops what it has seen: nothing doubles",
    "retracts": "retracts everything after this checkpoint at the next run, before it publishes "
    "anything new; what cannot is rebuilt from state or source history, or refused untouched",
    "none": "cannot take these epochs back: rows published there will be published a second time",
}


def _sink_effects(newer: Collection[Summary], outcomes: Outcomes) -> list[SinkEffect]:
    epochs: dict[tuple[str, str], list[int]] = {}
    for entry in newer:
        for sink in entry.sinks:
            key = (sink.name, sink.replay)
            epochs.setdefault(key, [])
            if outcomes.status(entry.checkpoint, sink.name) != "aborted":
                epochs[key].append(entry.epoch)
    return [
        SinkEffect(
            sink=name,
            replay=replay,
            epochs=sorted(found),
            safe=replay != "none" or not found,
            effect=_EFFECTS[replay] if found else "has published nothing newer",
        )
        for (name, replay), found in sorted(epochs.items())
    ]


def restore_lines(value: Restore) -> Iterator[Line]:
    """What going back does."""
    if value.refusal is not None:
        yield from failure(value.refusal)
    word = "restored" if value.restored else "would go back"
    if value.refusal is not None:
        word = "not restored"
    style = GOOD if value.restored else WARN
    yield line((word, style), f" to epoch {value.epoch} {value.checkpoint}")
    yield line(f"next epoch: {value.epoch_next}")
    if value.abandoned:
        yield line(f"{plural(len(value.abandoned), 'newer checkpoint')} abandoned, kept until gc:")
        for each in value.abandoned:
            yield line("  ", each)
    for sink in value.sinks:
        epochs = _epochs(sink.epochs)
        yield from wrapped(
            f"sink {sink.sink} ({sink.replay}) {sink.effect}{epochs}",
            style="" if sink.safe else BAD,
        )
    for source in value.positions:
        where = ", ".join(f"{name}={point}" for name, point in sorted(source.position.items()))
        yield from wrapped(f"source {source.name} is read again from {where or 'its start'}")


def _epochs(found: list[int]) -> str:
    if not found:
        return ""
    return f": epoch {found[0]}" if len(found) == 1 else f": epochs {found[0]} to {found[-1]}"


@command(
    "holdfast restore --dry-run --to ago:2h checkpoints/orders",
    "holdfast restore --to before-upgrade checkpoints/orders",
)
@store_argument
@option("--to", metavar="REF", required=True, help=REF)
@flag("--accept-duplicates", help="Even where a sink cannot retract epochs.")
@flag("--accept-loss", help="Even where a sink's token cannot be read any more.")
@dry_run_option
@takeover_option
@store_options
def restore(
    *,
    store: str,
    to: str,
    accept_duplicates: bool,
    accept_loss: bool,
    dry_run: bool,
    takeover: bool,
    pipeline: str | None,
    as_json: bool,
    option: Sequence[str],
) -> bool:
    """Roll the pipeline back to a checkpoint: its next start continues from there.

    Says what each sink can and cannot retract. Newer checkpoints are abandoned but stay until
    gc, so that restoring one of them undoes it.
    """
    place = find_place(store, pipeline, parse_options(option))
    value = restore_place(
        place,
        named(place, to),
        accept_duplicates=accept_duplicates,
        accept_loss=accept_loss,
        dry_run=dry_run,
        takeover=takeover,
    )
    emit(value, restore_lines, as_json=as_json)
    return value.refusal is not None

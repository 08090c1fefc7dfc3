"""What the verbs that change a store say to people: `pin` to `upgrade`, `fork` and `sync`."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.cli.text import Col, Line, line, plural, short_ids, size, table, wrapped
from holdfast.cli.values import Collection, Fork, Pinned, Rebuild, Restore, Sync, Upgrade
from holdfast.cli.views.inspect import failure

_GOOD, _BAD, _MEH, _DIM = "green", "bold red", "yellow", "dim"


def pinned(value: Pinned) -> Iterator[Line]:
    """A savepoint that is held, or not any more."""
    if value.pinned:
        yield line(("pinned", _GOOD), f" {value.label}: epoch {value.epoch} {value.checkpoint}")
    else:
        yield line(f"unpinned {value.label}: the next gc or retention may drop the checkpoint")


def collection(value: Collection) -> Iterator[Line]:
    """What went and what stays."""
    would = "would drop" if value.dry_run else "dropped"
    yield line(f"{would} {plural(len(value.dropped), 'checkpoint')}")
    for each in value.dropped:
        yield line("  ", each)
    if value.kept:
        names = short_ids([row.checkpoint for row in value.kept])
        yield from table(
            [Col("stays"), Col("epoch", right=True), Col("because", cut=True, least=20)],
            [
                ((names[row.checkpoint], "cyan"), str(row.epoch), ", ".join(row.reasons))
                for row in value.kept
            ],
        )
    would = "would delete" if value.dry_run else "deleted"
    yield line(f"{would} {plural(value.files, 'file')}, {size(value.bytes)}")
    for name, total in sorted(value.bytes_by_class.items()):
        yield line(f"  {name}: {size(total)}")
    if value.unknown:
        total = sum(file.bytes for file in value.unknown)
        yield line(
            (f"{plural(len(value.unknown), 'unknown file')}, {size(total)}: left alone", _MEH)
        )
        for file in value.unknown:
            yield from wrapped(f"{file.path} ({size(file.bytes)})", indent="  ")
    for origin in value.released:
        yield line(f"nothing of {origin} is shared any more: its savepoint was let go")
    if value.problem:
        yield from wrapped(f"stopped: {value.problem}", style=_BAD)


def rebuild(value: Rebuild) -> Iterator[Line]:
    """What the new catalog holds."""
    would = "would list" if value.dry_run else "the catalog lists"
    yield line(f"{would} {plural(len(value.take), 'checkpoint')} of pipeline {value.pipeline}")
    for row in value.take:
        proof = "confirmed" if row.confirmed else "not confirmed by a later one or a sink"
        yield line("  ", (row.checkpoint, "cyan"), f" epoch {row.epoch}: {proof}")
    for path, reason in value.leave.items():
        yield from wrapped(f"left out: {path}: {reason}", style=_MEH)
    for each in value.undecided:
        yield line((f"undecided: {each}: name one with --choose", _BAD))


def upgrade(value: Upgrade) -> Iterator[Line]:
    """What upgrading does."""
    if not value.steps:
        yield line(f"pipeline {value.pipeline} has format {value.format_after} already")
        return
    word = "would upgrade" if value.dry_run else "upgraded"
    change = f"from format {value.format_before} to {value.format_after}"
    yield line((word, _MEH if value.dry_run else _GOOD), f" pipeline {value.pipeline} {change}")
    for step in value.steps:
        yield from wrapped(step, indent="  ")
    for kind, count in sorted(value.kept.items()):
        yield line(f"  {count} {kind} of format 1 stay as they are: they are read for ever")


def restore(value: Restore) -> Iterator[Line]:
    """What going back does."""
    if value.refusal is not None:
        yield from failure(value.refusal)
    word = "restored" if value.restored else "would go back"
    if value.refusal is not None:
        word = "not restored"
    style = _GOOD if value.restored else _MEH
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
            style="" if sink.safe else _BAD,
        )
    for source in value.positions:
        where = ", ".join(f"{name}={point}" for name, point in sorted(source.position.items()))
        yield from wrapped(f"source {source.name} is read again from {where or 'its start'}")


def _epochs(found: list[int]) -> str:
    if not found:
        return ""
    return f": epoch {found[0]}" if len(found) == 1 else f": epochs {found[0]} to {found[-1]}"


def fork(value: Fork) -> Iterator[Line]:
    """A new pipeline."""
    yield line(("forked", _GOOD), f" {value.fork} from {value.pipeline} at epoch {value.epoch}")
    yield line(f"checkpoint {value.checkpoint}")
    yield line(f"shares {plural(value.files_shared, 'file')}, {size(value.bytes_shared)}; "
               "nothing was copied")  # fmt: skip
    yield from wrapped(f"{value.pipeline} holds them by the savepoint {value.pin}")
    yield from wrapped("run the fork with sinks of its own: it would write to the same places")


def sync(value: Sync) -> Iterator[Line]:
    """What was brought over."""
    for each in value.pipelines:
        if each.up_to_date:
            yield line((each.pipeline, "bold"), f": up to date, {each.checkpoints} checkpoints")
        else:
            yield line(
                (each.pipeline, "bold"),
                f": {plural(each.new_checkpoints, 'new checkpoint')} of {each.checkpoints}",
            )
            speed = each.bytes_copied / value.seconds if value.seconds else 0
            yield line(f"  copied and verified {plural(each.files_copied, 'file')}, "
                       f"{size(each.bytes_copied)} ({size(int(speed))}/s)")  # fmt: skip
            yield line(f"  there already {plural(each.files_present, 'file')}, "
                       f"{size(each.bytes_present)}")  # fmt: skip
        if each.removed_files:
            yield line(f"  removed {plural(each.removed_files, 'old file')}, "
                       f"{size(each.removed_bytes)}")  # fmt: skip
        for label in each.pins_only_there:
            yield line((f"  savepoint {label} exists only there: kept (--prune removes it)", _MEH))
        for note in each.notes:
            yield from wrapped(note, indent="  ", style=_MEH)

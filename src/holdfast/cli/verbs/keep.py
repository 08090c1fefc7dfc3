"""`pin`, `unpin`, `delete`, `gc`, `rebuild-catalog`, `restore`, `upgrade`: they change a store."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from holdfast.cli.address import find_place, parse_options
from holdfast.cli.output import emit, verb
from holdfast.cli.verbs.common import (
    ClientOption,
    JsonOption,
    PipelineOption,
    RefArgument,
    StoreArgument,
    TakeoverOption,
    example,
    named,
)
from holdfast.clock import SystemClock
from holdfast.ids import check_checkpoint_id

LabelArgument = Annotated[
    str, typer.Argument(metavar="LABEL", help="Name of the savepoint.", show_default=False)
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show it, change nothing.")]


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    app.command(epilog=example("holdfast pin checkpoints/orders before-upgrade"))(pin)
    app.command(epilog=example("holdfast unpin checkpoints/orders before-upgrade"))(unpin)
    app.command(epilog=example("holdfast delete checkpoints/orders epoch:17"))(delete)
    app.command(epilog=example("holdfast gc --dry-run --retain 5 checkpoints/orders"))(gc)
    app.command("rebuild-catalog", epilog=example("holdfast rebuild-catalog checkpoints/orders"))(
        rebuild
    )
    app.command(
        epilog=example(
            "holdfast restore --dry-run --to ago:2h checkpoints/orders",
            "holdfast restore --to before-upgrade checkpoints/orders",
        )
    )(restore)
    app.command(epilog=example("holdfast upgrade --dry-run checkpoints/orders"))(upgrade)


@verb
def pin(
    store: StoreArgument,
    label: LabelArgument,
    ref: RefArgument = "latest",
    *,
    note: Annotated[str, typer.Option("--note", help="Why it is kept.", show_default=False)] = "",
    pipeline: PipelineOption = None,
    as_json: JsonOption = False,
    option: ClientOption = None,
) -> None:
    """Make a savepoint: hold a checkpoint under a label. Works beside a running pipeline."""
    from holdfast.cli.facts.keeping import pin_place
    from holdfast.cli.views import keep as views

    place = find_place(store, pipeline, parse_options(option))
    value = pin_place(place, label, named(place, ref), note, SystemClock())
    emit(value, views.pinned, as_json=as_json)


@verb
def unpin(
    store: StoreArgument,
    label: LabelArgument,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Even while a fork needs the files: it will break.")
    ] = False,
    pipeline: PipelineOption = None,
    as_json: JsonOption = False,
    option: ClientOption = None,
) -> None:
    """Let a savepoint go. Works beside a running pipeline."""
    from holdfast.cli.facts.keeping import unpin_place
    from holdfast.cli.views import keep as views

    place = find_place(store, pipeline, parse_options(option))
    emit(unpin_place(place, label, force=force), views.pinned, as_json=as_json)


@verb
def delete(
    store: StoreArgument,
    ref: Annotated[
        str, typer.Argument(metavar="REF", help="Checkpoint to remove.", show_default=False)
    ],
    *,
    takeover: TakeoverOption = False,
    pipeline: PipelineOption = None,
    as_json: JsonOption = False,
    option: ClientOption = None,
) -> None:
    """Remove one checkpoint. Files that others share stay; what must not go is refused."""
    from holdfast.cli.facts.keeping import delete_place
    from holdfast.cli.views import keep as views

    place = find_place(store, pipeline, parse_options(option))
    value = delete_place(place, named(place, ref), takeover=takeover)
    emit(value, views.collection, as_json=as_json)
    raise typer.Exit(int(bool(value.problem)))


@verb
def gc(
    store: StoreArgument,
    *,
    retain: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--retain", min=2, metavar="N", show_default=False,
                     help="Also drop all but the newest N checkpoints. Default: drop none."),
    ] = None,
    age: Annotated[
        int, typer.Option("--keep-hours", min=0, metavar="H", help="Keep what is younger.")
    ] = 0,
    keep: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--keep", metavar="REF", help="Keep this one too.", show_default=False),
    ] = None,
    dry_run: DryRunOption = False,
    takeover: TakeoverOption = False,
    pipeline: PipelineOption = None,
    as_json: JsonOption = False,
    option: ClientOption = None,
) -> None:  # fmt: skip
    """Delete files that no checkpoint needs; with --retain, old checkpoints as well.

    Savepoints, pending checkpoints and unknown files always stay.
    """
    from holdfast.cli.facts.keeping import collect_place
    from holdfast.cli.views import keep as views

    place = find_place(store, pipeline, parse_options(option))
    value = collect_place(
        place,
        retain=retain,
        retain_age_ms=age * 3_600_000,
        keep={named(place, ref).checkpoint for ref in keep or ()},
        dry_run=dry_run,
        takeover=takeover,
        clock=SystemClock(),
    )
    emit(value, views.collection, as_json=as_json)
    raise typer.Exit(int(bool(value.problem)))


@verb
def rebuild(
    store: StoreArgument,
    *,
    choose: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--choose", metavar="ID", show_default=False,
                     help="Take this one of two that claim the same place."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Even though the catalog can be read.")
    ] = False,
    dry_run: DryRunOption = False,
    pipeline: PipelineOption = None,
    as_json: JsonOption = False,
    option: ClientOption = None,
) -> None:  # fmt: skip
    """Make a new catalog from the manifests, where the old one is lost or damaged."""
    from holdfast.cli.facts.keeping import rebuild_place
    from holdfast.cli.views import keep as views

    place = find_place(store, pipeline, parse_options(option))
    chosen = [check_checkpoint_id(each) for each in choose or ()]
    value = rebuild_place(place, choose=chosen, force=force, dry_run=dry_run)
    emit(value, views.rebuild, as_json=as_json)
    raise typer.Exit(int(bool(value.undecided)))


@verb
def restore(
    store: StoreArgument,
    *,
    to: Annotated[
        str,
        typer.Option("--to", metavar="REF", show_default=False,
                     help="Id, label, epoch or time (2026-11-15T21:30, ago:2h)."),
    ],
    accept_duplicates: Annotated[
        bool,
        typer.Option("--accept-duplicates", help="Even where a sink cannot take epochs back."),
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Even where a sink's token cannot be read any more."),
    ] = False,
    dry_run: DryRunOption = False,
    takeover: TakeoverOption = False,
    pipeline: PipelineOption = None,
    as_json: JsonOption = False,
    option: ClientOption = None,
) -> None:  # fmt: skip
    """Roll the pipeline back to a checkpoint: its next start goes on from there.

    Says what each sink can and cannot take back. Newer checkpoints are abandoned but stay until
    gc, so that restoring one of them undoes it.
    """
    from holdfast.cli.facts.keeping import restore_place
    from holdfast.cli.views import keep as views

    place = find_place(store, pipeline, parse_options(option))
    value = restore_place(
        place,
        named(place, to),
        accept_duplicates=accept_duplicates,
        accept_loss=accept_loss,
        dry_run=dry_run,
        takeover=takeover,
    )
    emit(value, views.restore, as_json=as_json)
    raise typer.Exit(int(value.refusal is not None))


@verb
def upgrade(
    store: StoreArgument,
    *,
    dry_run: DryRunOption = False,
    takeover: TakeoverOption = False,
    pipeline: PipelineOption = None,
    as_json: JsonOption = False,
    option: ClientOption = None,
) -> None:
    """Bring a store of an older format to the newest one.

    No store needs it to be used: older formats are read, the newest is written. Afterwards older
    versions of Holdfast refuse the store at the first look. Checkpoints are not written again.
    """
    from holdfast.cli.facts.upgrading import upgrade_place
    from holdfast.cli.views import keep as views

    place = find_place(store, pipeline, parse_options(option))
    value = upgrade_place(place, dry_run=dry_run, takeover=takeover)
    emit(value, views.upgrade, as_json=as_json)

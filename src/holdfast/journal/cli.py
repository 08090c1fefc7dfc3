"""`holdfast journal append|tail|query|verify|info|release`: the journal from the command line.

Invariants:
- Exit 0 is good, 1 a problem that was found or met, 2 wrong usage. Never a traceback.
- Read verbs change nothing, and print JSON lines with `--json`.
- `append` acknowledges (prints) a batch only when it is durable.
"""

from __future__ import annotations

import base64
import sys
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
import typer

from holdfast.clock import SystemClock
from holdfast.console import clean, encode, moment, run_app, verb, write
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.journal.files import JournalFiles
from holdfast.journal.format.layout import Layout, segment_first
from holdfast.journal.maintenance import HoldStore
from holdfast.journal.query import Query, to_events
from holdfast.journal.reader import JournalReader
from holdfast.journal.types import Durability, Event, JournalSettings, Position
from holdfast.journal.verify import verify_journal
from holdfast.journal.writer import JournalWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

journal_app = typer.Typer(
    name="journal", help="The embedded, hash-chained event log.", no_args_is_help=True,
    pretty_exceptions_enable=False, rich_markup_mode=None,
)  # fmt: skip

Root = Annotated[Path, typer.Argument(help="The journal's directory.", metavar="JOURNAL")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]


class InputEvent(msgspec.Struct, forbid_unknown_fields=True):
    """One line on standard input of `append`."""

    entity: str
    kind: str
    scope: str = ""
    id: uuid.UUID | None = None
    correlation: uuid.UUID | None = None
    causation: uuid.UUID | None = None
    wall_us: int | None = None
    clock: int | None = None
    payload: msgspec.Raw = msgspec.Raw(b"null")


def _line(text: str) -> None:
    """One line for people; leaves when nobody reads any more."""
    if not write(clean(text) + "\n", flush=False):
        raise typer.Exit(0)


def _out(value: object) -> None:
    if not write(encode(value).decode() + "\n", flush=False):
        raise typer.Exit(0)


@journal_app.command()
@verb
def append(
    root: Root,
    batch: Annotated[int, typer.Option(help="Events per batch; each is atomic.", min=1)] = 1000,
    durability: Annotated[Durability, typer.Option(help="When to fsync.")] = Durability.BATCH,
    as_json: Json = False,  # noqa: FBT002 - a flag of the command line
) -> None:
    """Append events given as JSON lines on standard input; prints a receipt per durable batch."""
    with JournalWriter(root, JournalSettings(durability=durability)) as writer:
        total = 0
        for events in _batches(_input(), batch):
            receipt = writer.append(events)
            writer.wait_durable(receipt.next_sequence)
            total += receipt.count
            if as_json:
                _out(msgspec.Raw(receipt.to_json().encode()))
                sys.stdout.flush()
        if not as_json:
            _line(f"appended {total} events; the journal ends before sequence {writer.durable}")


def _input() -> Any:
    if sys.stdin is None:
        raise InvalidInputError(
            "standard input is closed", kind="no_input", remedy="give events as JSON lines"
        )
    return sys.stdin.buffer


def _batches(lines: Any, size: int) -> Iterator[list[Event]]:
    decoder = msgspec.json.Decoder(InputEvent)
    events: list[Event] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise InvalidInputError(
                "this line is no event", kind="invalid_line", line=number, reason=str(error),
                remedy='give one object per line, such as {"entity":"a","kind":"b","payload":{}}; '
                "batches before it were appended",
            ) from error  # fmt: skip
        fresh = Event(
            entity=one.entity, kind=one.kind, scope=one.scope, id=one.id, clock=one.clock,
            correlation=one.correlation, causation=one.causation, wall_us=one.wall_us,
            payload=bytes(one.payload).decode(),
        )  # fmt: skip
        if len(events) == size or (events and _differs(events[0], fresh)):
            yield events
            events = []
        events.append(fresh)
    if events:
        yield events


def _differs(one: Event, other: Event) -> bool:
    """Whether two events cannot share a batch: one gives what the other leaves to the journal."""
    return any(
        (getattr(one, name) is None) != (getattr(other, name) is None)
        for name in ("id", "wall_us", "clock")
    )


def _shown(event: Event) -> dict[str, Any]:
    shown = {key: value for key, value in asdict(event).items() if value is not None}
    if isinstance(event.payload, bytes):
        shown["payload"] = {"base64": base64.b64encode(event.payload).decode()}
    elif isinstance(event.payload, str):
        shown["payload"] = msgspec.Raw(event.payload.encode())
    return shown


def _print(batch: Any, *, as_json: bool) -> None:
    for event in to_events(batch):
        if as_json:
            _out(_shown(event))
            continue
        payload = event.payload
        text = payload.decode(errors="replace") if isinstance(payload, bytes) else str(payload)
        _line(
            f"{event.sequence:>10}  {moment(event.wall_us)}  {event.scope or '-'}  {event.entity}  "
            f"{event.kind}  {text[:120]}"
        )


@journal_app.command()
@verb
def tail(
    root: Root,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Last so many events.", min=0)] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,  # noqa: FBT002
    cursor: Annotated[
        str | None, typer.Option(help="Go on behind a named cursor, and move it.")
    ] = None,
    timeout_ms: Annotated[
        int | None, typer.Option(help="With --follow: end after so long without news.", min=0)
    ] = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Show the newest events, or all behind a cursor; with --follow wait for more."""
    with JournalReader(root) as reader:
        view = reader.view()
        limit = timeout_ms if follow else 0
        if cursor is not None:
            place = reader.cursor(cursor)
            for batch, position in place.follow(timeout_ms=limit):
                _print(batch, as_json=as_json)
                place.commit(position)
            return
        for batch in view.scan(max(view.visible - lines, view.base_sequence)):
            _print(batch, as_json=as_json)
        if follow:
            for batch, _ in reader.follow(view.position(), timeout_ms=limit):
                _print(batch, as_json=as_json)


@journal_app.command()
@verb
def query(
    root: Root,
    entity: Annotated[str | None, typer.Option(help="Exactly this entity.")] = None,
    scope: Annotated[str | None, typer.Option(help="Exactly this scope.")] = None,
    kind: Annotated[str | None, typer.Option(help="Exactly this kind.")] = None,
    correlation: Annotated[uuid.UUID | None, typer.Option(help="This correlation id.")] = None,
    event_id: Annotated[list[uuid.UUID] | None, typer.Option("--id", help="These ids.")] = None,
    causes_of: Annotated[
        uuid.UUID | None, typer.Option(help="Walk causation back from this id.")
    ] = None,
    from_sequence: Annotated[int, typer.Option(help="First sequence.", min=0)] = 0,
    to_sequence: Annotated[int | None, typer.Option(help="Sequence to stop before.")] = None,
    from_us: Annotated[int | None, typer.Option(help="First wall time, microseconds.")] = None,
    to_us: Annotated[int | None, typer.Option(help="Wall time to stop before.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many events.", min=0)] = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Find events; all conditions must hold."""
    with JournalReader(root) as reader:
        if causes_of is not None:
            for event in reader.view().causes(causes_of):
                _out(_shown(event)) if as_json else _line(
                    f"{event.sequence:>10}  {event.id}  {event.entity}  {event.kind}"
                )
            return
        asked = Query(
            entity=entity, scope=scope, kind=kind, correlation=correlation,
            ids=tuple(event_id) if event_id else None, from_sequence=from_sequence,
            to_sequence=to_sequence, from_wall_us=from_us, to_wall_us=to_us, limit=limit,
        )  # fmt: skip
        for batch in reader.query(asked).batches:
            _print(batch, as_json=as_json)


@journal_app.command()
@verb
def verify(
    root: Root,
    deep: Annotated[bool, typer.Option(help="Decode all events, rebuild all indexes.")] = False,  # noqa: FBT002
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Check every byte, the hash chain, and what is derived; exit 1 if anything is wrong."""
    sizes = JournalFiles().entries(Layout(root).segments)
    total = sum(size for name, size in sizes.items() if segment_first(name) is not None)
    if sys.stderr.isatty():
        with typer.progressbar(length=total, label="verifying", file=sys.stderr) as bar:
            report = verify_journal(root, deep=deep, progress=bar.update)
    else:
        report = verify_journal(root, deep=deep)
    if as_json:
        _out({**asdict(report), "ok": report.ok})
    else:
        for finding in report.findings:
            _line(f"{finding.kind}  {finding.path}:{finding.offset}  {finding.message}")
        _line(
            f"{report.events} events in {report.frames} batches, {report.segments} segments, "
            f"{report.bytes} bytes: {'good' if report.ok else 'PROBLEMS FOUND'}"
        )
        _line(f"chain hash {report.chain_hash}")
    if not report.ok:
        raise typer.Exit(1)


@journal_app.command()
@verb
def info(root: Root, as_json: Json = False) -> None:  # noqa: FBT002
    """Say what the journal holds, how it opens, and what holds it."""
    with JournalReader(root) as reader:
        view, layout = reader.view(), reader.layout
        entries = JournalFiles().entries(layout.segments)
        holds = HoldStore(JournalFiles(), layout, reader.clock).all()
        facts = {
            "journal_id": view.meta.journal_id.hex(),
            "base_sequence": view.base_sequence,
            "visible": view.visible,
            "events": len(view),
            "segments": len(view.segments),
            "segment_bytes": sum(size for name, size in entries.items() if name.endswith(".seg")),
            "index_bytes": sum(size for name, size in entries.items() if name.endswith(".idx")),
            "holds": {name: position.sequence for name, position in holds.items()},
            "open": asdict(reader.report),
            "position": view.position(),
        }
        if as_json:
            _out(facts)
        else:
            _show(facts)


def _show(facts: dict[str, Any]) -> None:
    """Facts for people: one line each, nested ones indented."""
    for key, value in facts.items():
        if not isinstance(value, (dict, Position)):
            _line(f"{key:15} {value}")
            continue
        inner = value if isinstance(value, dict) else msgspec.to_builtins(value)
        _line(f"{key:15} {'' if inner else 'none'}".rstrip())
        for name, each in inner.items():
            _line(f"  {name:25} {each.hex() if isinstance(each, bytes) else each}")


@journal_app.command()
@verb
def release(
    root: Root,
    hold: Annotated[str, typer.Argument(help="The hold's name, as `info` shows it.")],
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Remove a hold whose reader is gone for good: truncation may then pass it.

    A pipeline that still runs sets its hold again with its next checkpoint.
    """
    holds = HoldStore(JournalFiles(), Layout(root), SystemClock())
    position = holds.get(hold)
    if position is None:
        raise NotFoundError(
            "no such hold", kind="hold_missing", hold=hold,
            known=",".join(sorted(holds.all())) or "none",
            remedy="`holdfast journal info` shows the holds",
        )  # fmt: skip
    holds.release(hold)
    facts = {"released": hold, "sequence": position.sequence}
    _out(facts) if as_json else _line(f"released {hold}, which held {position.sequence}")


def main() -> NoReturn:
    """`python -m holdfast.journal`."""
    sys.exit(run_app(journal_app, sys.argv[1:], "holdfast journal"))

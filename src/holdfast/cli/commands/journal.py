"""The embedded, hash-chained event log.

Invariants:
- Commands that read change nothing, and print JSON lines with `--json`.
- `append` acknowledges (prints) a batch only when it is durable.
"""

from __future__ import annotations

import base64
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.app import argument, command, flag, group, option
from holdfast.cli.output import encode, progress, write
from holdfast.cli.render import clean, moment
from holdfast.clock import SystemClock
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

root_argument = argument(
    "root", "JOURNAL", "The journal's directory.", type=click.Path(path_type=Path)
)
json_lines_option = flag("--json", "as_json", help="Print JSON lines.")

journal = group("journal", "The embedded, hash-chained event log.")


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
        raise click.exceptions.Exit(0)


def _out(value: object) -> None:
    if not write(encode(value).decode() + "\n", flush=False):
        raise click.exceptions.Exit(0)


# append


@command("holdfast journal append events < events.jsonl")
@root_argument
@option(
    "--batch",
    type=click.IntRange(min=1),
    default=1000,
    metavar="N",
    help="Events per batch; each is atomic.",
)
@option(
    "--durability",
    type=click.Choice([each.value for each in Durability]),
    default=Durability.BATCH.value,
    help="When to fsync.",
)
@json_lines_option
def append(*, root: Path, batch: int, durability: str, as_json: bool) -> None:
    """Append events given as JSON lines on standard input; prints a receipt per durable batch."""
    with JournalWriter(root, JournalSettings(durability=Durability(durability))) as writer:
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
                "this line is no event",
                kind="invalid_line",
                line=number,
                reason=str(error),
                remedy='give one object per line, such as {"entity":"a","kind":"b","payload":{}}; '
                "batches before it were appended",
            ) from error
        fresh = Event(
            entity=one.entity,
            kind=one.kind,
            scope=one.scope,
            id=one.id,
            clock=one.clock,
            correlation=one.correlation,
            causation=one.causation,
            wall_us=one.wall_us,
            payload=bytes(one.payload).decode(),
        )
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


# tail


@command("holdfast journal tail --follow events")
@root_argument
@option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=10,
    metavar="N",
    help="Last so many events.",
)
@flag("-f", "--follow", help="Wait for more.")
@option("--cursor", metavar="NAME", help="Continue behind a named cursor, and move it.")
@option(
    "--timeout-ms",
    type=click.IntRange(min=0),
    metavar="MS",
    help="With --follow: end after so long without news.",
)
@json_lines_option
def tail(
    *,
    root: Path,
    lines: int,
    follow: bool,
    cursor: str | None,
    timeout_ms: int | None,
    as_json: bool,
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


# query


@command("holdfast journal query --kind paid --from-sequence 100 events")
@root_argument
@option("--entity", metavar="TEXT", help="Exactly this entity.")
@option("--scope", metavar="TEXT", help="Exactly this scope.")
@option("--kind", metavar="TEXT", help="Exactly this kind.")
@option("--correlation", type=click.UUID, metavar="UUID", help="This correlation id.")
@option("--id", "event_id", type=click.UUID, multiple=True, metavar="UUID", help="These ids.")
@option("--causes-of", type=click.UUID, metavar="UUID", help="Walk causation back from this id.")
@option(
    "--from-sequence",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="First sequence.",
    show_default=True,
)
@option("--to-sequence", type=int, metavar="N", help="Sequence to stop before.")
@option("--from-us", type=int, metavar="US", help="First wall time, microseconds.")
@option("--to-us", type=int, metavar="US", help="Wall time to stop before.")
@option("--limit", type=click.IntRange(min=0), metavar="N", help="At most so many events.")
@json_lines_option
def query(
    *,
    root: Path,
    event_id: Sequence[uuid.UUID],
    causes_of: uuid.UUID | None,
    from_us: int | None,
    to_us: int | None,
    as_json: bool,
    **conditions: Any,
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
            ids=tuple(event_id) or None, from_wall_us=from_us, to_wall_us=to_us, **conditions
        )
        for batch in reader.query(asked).batches:
            _print(batch, as_json=as_json)


# verify


@command("holdfast journal verify --deep events")
@root_argument
@click.option("--deep/--no-deep", help="Decode all events, rebuild all indexes.")
@json_lines_option
def verify(*, root: Path, deep: bool, as_json: bool) -> bool:
    """Check every byte, the hash chain, and what is derived; exit 1 if anything is wrong."""
    sizes = JournalFiles().entries(Layout(root).segments)
    total = sum(size for name, size in sizes.items() if segment_first(name) is not None)
    with progress("verify", quiet=as_json) as bar:
        report = verify_journal(root, deep=deep, progress=_steps(bar, total))
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
    return not report.ok


def _steps(bar: Callable[[int, int], None] | None, total: int) -> Callable[[int], None]:
    """Steps of so many bytes as a bar takes them: all so far, of all."""
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        if bar is not None:
            bar(done, total)

    return step


# info


@command("holdfast journal info events")
@root_argument
@json_lines_option
def info(*, root: Path, as_json: bool) -> None:
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


# release


@command("holdfast journal release events orders/totals")
@root_argument
@argument("hold", "HOLD", "The hold's name, as `info` shows it.")
@json_lines_option
def release(*, root: Path, hold: str, as_json: bool) -> None:
    """Remove a hold whose reader is gone for good: truncation may then pass it.

    A pipeline that still runs sets its hold again with its next checkpoint.
    """
    holds = HoldStore(JournalFiles(), Layout(root), SystemClock())
    position = holds.get(hold)
    if position is None:
        raise NotFoundError(
            "no such hold",
            kind="hold_missing",
            hold=hold,
            known=",".join(sorted(holds.all())) or "none",
            remedy="`holdfast journal info` shows the holds",
        )
    holds.release(hold)
    facts = {"released": hold, "sequence": position.sequence}
    _out(facts) if as_json else _line(f"released {hold}, which held {position.sequence}")


journal.add(append, tail, query, verify, info, release)

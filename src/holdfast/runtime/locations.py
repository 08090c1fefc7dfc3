"""Outputs, sources and the store lie apart: no two of them may share a place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.locations import Location, identity, is_hidden
from holdfast.errors import InvalidInputError
from holdfast.runtime.graph import Graph


@dataclass(frozen=True)
class _Claim:
    """A place that a part of the pipeline uses."""

    name: str
    connector: str
    location: Location
    place: str


def check_locations(graph: Graph, store: str) -> None:
    """Refuse outputs that lie in each other, in the store, or in what a source reads."""
    outputs, sources = _claims(graph.sinks), _claims(graph.sources)
    others = [("store", "the store", identity(store))]
    others += [("source", s.name, s.place) for s in sources if s.location.use != "archives"]
    for number, output in enumerate(outputs):
        for earlier in outputs[:number]:
            if _overlap(output.place, earlier.place) and not _shared(output, earlier):
                raise _refused("sink", earlier.name, output.name, output.place, earlier.place)
        for kind, first, place in others:
            if _overlap(output.place, place):
                raise _refused(kind, first, output.name, output.place, place)
    written = [("sink", output.name, output.place) for output in outputs]
    _check_consumed(sources, [("store", "the store", identity(store)), *written])


def _claims(nodes: Sequence[Any]) -> list[_Claim]:
    return [
        _Claim(node.name, node.connector.kind, location, identity(location.path))
        for node in nodes
        for location in node.connector.locations()
    ]


def _check_consumed(sources: Sequence[_Claim], written: Sequence[tuple[str, str, str]]) -> None:
    """Refuse to move or delete files that another source reads, or into a place that is read."""
    readers = [claim for claim in sources if claim.location.use != "archives"]
    for claim in sources:
        if claim.location.use == "consumes":
            for other in readers:
                apart = _apart(claim.location.pattern, other.location.pattern)
                if claim.name != other.name and _overlap(claim.place, other.place) and not apart:
                    raise _refused("cleaned", other.name, claim.name, claim.place, other.place)
        elif claim.location.use == "archives":
            _check_archive(claim.name, claim.place, readers, written)


def _check_archive(
    name: str, archive: str, readers: Sequence[_Claim], written: Sequence[tuple[str, str, str]]
) -> None:
    for kind, other, place in written:
        if _overlap(archive, place):
            raise _refused(f"{kind} archive", other, name, archive, place)
    for reader in readers:
        place = reader.place
        hidden = archive.startswith(place) and is_hidden(archive[len(place) :].strip("/"))
        if _overlap(archive, place) and not (hidden and archive != place):
            raise _refused("source archive", reader.name, name, archive, place)


def _apart(one: str | None, other: str | None) -> bool:
    """Whether no name fits both patterns, by how they end: `*.csv` and `*.json`."""
    if one is None or other is None:
        return False
    ends = [re.split(r"[*?\]]", pattern)[-1] for pattern in (one, other)]
    return not (ends[0].endswith(ends[1]) or ends[1].endswith(ends[0]))


def _shared(one: _Claim, other: _Claim) -> bool:
    """Several sinks of one kind may append to one place: each says which rows are its own."""
    both = one.location.use == other.location.use == "appends"
    return both and one.connector == other.connector and one.place == other.place


def _overlap(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _refused(kind: str, first: str, name: str, place: str, before: str) -> InvalidInputError:
    what = {
        "sink": "two sinks write to one place",
        "source": "a sink writes where a source reads",
        "store": "a sink writes into the store",
        "cleaned": "a source moves or deletes files that another one reads",
        "store archive": "a source archives its files in the store",
        "sink archive": "a source archives its files where a sink writes",
        "source archive": "a source archives its files where a source reads",
    }[kind]
    if kind == "cleaned" or kind.endswith(" archive"):
        return InvalidInputError(
            what,
            kind="source_shared",
            source=name,
            other=first,
            path=place,
            other_path=before,
            remedy="use one source for both; or say after_read='keep'; or give the archive a "
            "directory of its own",
        )
    return InvalidInputError(
        what,
        kind="output_shared",
        sink=name,
        other=first,
        path=place,
        other_path=before,
        remedy="give every output a directory of its own, outside the store and the sources",
    )

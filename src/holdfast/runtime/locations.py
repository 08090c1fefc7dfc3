"""Where outputs, sources and the store lie: no two of them may share a place.

Invariant: one place has one identity however it is spelled: relative, through a link, with a
trailing slash, as a file address, as s3 or s3a.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from holdfast.connectors.files.listing import is_hidden
from holdfast.errors import InvalidInputError
from holdfast.runtime.graph import Graph
from holdfast.storage.open import OBJECT_SCHEMES

_SAME_AS = {"s3a": "s3", "abfss": "abfs"}


def identity(path: str) -> str:
    """The one name of a place; ends in a slash, so that prefixes are directories."""
    scheme = path.split("://", 1)[0] if "://" in path else ""
    if scheme in OBJECT_SCHEMES:
        rest = "/".join(part for part in path.split("://", 1)[1].split("/") if part)
        return f"{_SAME_AS.get(scheme, scheme)}://{rest}/"
    if scheme and scheme != "file":
        return path.rstrip("/") + "/"
    absolute = local_path(path)
    if _own_link(absolute):
        parent, name = os.path.split(absolute)
        return os.path.join(os.path.realpath(parent), name) + "/"
    return os.path.realpath(absolute).rstrip("/") + "/"


def local_path(path: str) -> str:
    """A path or file address as an absolute path, without looking at the disk."""
    local = unquote(urlsplit(path).path) if path.startswith("file://") else path
    return os.path.abspath(os.path.expanduser(local))


def versions_of(path: Path) -> Path:
    """The directory next to an output that holds its versions."""
    return path.parent / f".{path.name}.versions"


def _own_link(path: str) -> bool:
    """Whether a path is the link of an output to one of its own versions."""
    if not os.path.islink(path):
        return False
    parent, name = os.path.split(path)
    target = os.path.normpath(os.path.join(parent, os.readlink(path)))
    return os.path.dirname(target) == os.path.join(parent, f".{name}.versions")


def check_locations(graph: Graph, store: str) -> None:
    """Refuse outputs that lie in each other, in the store, or in what a source reads."""
    outputs = [
        (node.name, node.connector, identity(node.connector.path))
        for node in graph.sinks
        if isinstance(getattr(node.connector, "path", None), str)
    ]
    written = [("sink", name, place) for name, _, place in outputs]
    others = [("store", "the store", identity(store))]
    others += [
        ("source", node.name, identity(node.connector.path))
        for node in graph.sources
        if isinstance(getattr(node.connector, "path", None), str)
    ]
    for number, (name, connector, place) in enumerate(outputs):
        for first, other, before in outputs[:number]:
            shared = place == before and _journals(connector, other)
            if _overlap(place, before) and not shared:
                raise _refused("sink", first, name, place, before)
        for kind, first, before in others:
            if _overlap(place, before):
                raise _refused(kind, first, name, place, before)
    _check_cleaned(graph.sources, [("store", "the store", identity(store)), *written])


def _check_cleaned(sources: Sequence[Any], written: Sequence[tuple[str, str, str]]) -> None:
    """Refuse to move or delete files that another source reads, or into a place that is read."""
    readers = [(s.name, s.connector, identity(s.connector.path)) for s in sources if _is_files(s)]
    for name, connector, root in readers:
        for other, reader, place in readers:
            apart = connector.after_read == "keep" or _apart(connector.pattern, reader.pattern)
            if name != other and _overlap(root, place) and not apart:
                raise _refused("cleaned", other, name, root, place)
        if connector.archive is None:
            continue
        archive = identity(connector.archive)
        for kind, other, place in written:
            if _overlap(archive, place):
                raise _refused(f"{kind} archive", other, name, archive, place)
        for other, _, place in readers:
            hidden = archive.startswith(place) and is_hidden(archive[len(place) :].strip("/"))
            if _overlap(archive, place) and not (hidden and archive != place):
                raise _refused("source archive", other, name, archive, place)


def _is_files(node: Any) -> bool:
    return getattr(node.connector, "after_read", None) is not None


def _apart(one: str | None, other: str | None) -> bool:
    """Whether no name fits both patterns, by how they end: `*.csv` and `*.json`."""
    if one is None or other is None:
        return False
    ends = [re.split(r"[*?\]]", pattern)[-1] for pattern in (one, other)]
    return not (ends[0].endswith(ends[1]) or ends[1].endswith(ends[0]))


def _journals(one: Any, other: Any) -> bool:
    """Several sinks may append to one journal: every event says which sink wrote it."""
    return bool(one.what == other.what == "journal")


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

"""Where outputs, sources and the store lie: no two of them may share a place.

Invariant: one place has one identity however it is spelled: relative, through a link, with a
trailing slash, as a file address, as s3 or s3a.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from holdfast.errors import InvalidInputError
from holdfast.pipeline.graph import Graph
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
    }[kind]
    return InvalidInputError(
        what,
        kind="output_shared",
        sink=name,
        other=first,
        path=place,
        other_path=before,
        remedy="give every output a directory of its own, outside the store and the sources",
    )

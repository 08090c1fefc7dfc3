"""Directories that connectors use, and the one name of each.

Invariant: one place has one identity however it is spelled: relative, through a link, with a
trailing slash, as a file address, as s3 or s3a.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from holdfast.storage.open import OBJECT_SCHEMES

Use = Literal["reads", "consumes", "archives", "writes", "appends"]
_SAME_AS = {"s3a": "s3", "abfss": "abfs"}


@dataclass(frozen=True)
class Location:
    """A directory, or a prefix of an object store, and what a connector does there.

    use: "reads"; "consumes": reads, and later moves or deletes what it has read; "archives": moves
    it there; "writes": alone; "appends": together with other sinks of its kind. pattern: names of
    the files that it reads; None for all.
    """

    path: str
    use: Use
    pattern: str | None = None


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


def is_hidden(path: str) -> bool:
    """Whether Spark would not see a file, by any part of its path."""
    return any(is_hidden_name(part) for part in path.split("/"))


def is_hidden_name(name: str) -> bool:
    """Whether Spark skips a name when it lists a directory."""
    return name[:1] == "." or (name[:1] == "_" and "=" not in name) or name.endswith("._COPYING_")

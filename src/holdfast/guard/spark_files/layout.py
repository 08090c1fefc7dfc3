"""Every path that Spark can write below a checkpoint location, and what each one means.

Invariants:
- `classify` knows exactly the names that Spark 4.0 to 4.3 write (seen by running them): what it
  does not know is refused by the caller that has to decide, never guessed.
- State version v belongs to batch v - 1: batch N is whole when every store has version N + 1.

Spec: spec/guard-v1.md, section 1.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Literal

SUPPORTED_SPARK = ("4.0", "4.1", "4.2", "4.3")
SINK_LOG = "_spark_metadata"
_WITH_CHECKSUM = (".delta", ".snapshot", ".zip", ".changelog")

_N = r"(?:0|[1-9][0-9]{0,17})"
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_STORE = rf"state/(?P<operator>{_N})/(?P<partition>{_N})/(?:(?P<store>[A-Za-z][A-Za-z0-9_-]*)/)?"

Kind = Literal[
    "metadata",
    "offset",
    "commit",
    "source",
    "operator",
    "state_schema",
    "schema",
    "delta",
    "snapshot",
    "zip",
    "changelog",
    "sst",
    "log",
    "checksum",
    "hadoop",
    "sink",
    "temporary",
]

_SOURCES: tuple[tuple[Kind, str], ...] = (
    ("metadata", r"metadata"),
    ("offset", rf"offsets/(?P<batch>{_N})"),
    ("commit", rf"commits/(?P<batch>{_N})"),
    ("source", rf"sources/(?P<source>[^/]+)/(?P<batch>{_N})(?P<compact>\.compact)?"),
    ("operator", rf"state/(?P<operator>{_N})/_metadata/(?:metadata|v2/(?P<batch>{_N}))"),
    (
        "state_schema",
        rf"state/(?P<operator>{_N})/_stateSchema/(?P<store>[^/]+)/(?P<batch>{_N})_{_UUID}",
    ),
    ("schema", rf"{_STORE}_metadata/schema"),
    ("delta", rf"{_STORE}(?P<version>{_N})\.delta"),
    ("snapshot", rf"{_STORE}(?P<version>{_N})\.snapshot"),
    ("zip", rf"{_STORE}(?P<version>{_N})(?:_(?P<uid>{_UUID}))?\.zip"),
    ("changelog", rf"{_STORE}(?P<version>{_N})(?:_(?P<uid>{_UUID}))?\.changelog"),
    ("sst", rf"{_STORE}SSTs/[0-9]+-{_UUID}\.sst"),
    ("log", rf"{_STORE}logs/[0-9]+-{_UUID}\.log"),
    ("sink", rf"{SINK_LOG}/(?P<batch>{_N})(?P<compact>\.compact)?"),
)
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _SOURCES)
_TEMPORARY = re.compile(rf"\.+[^/]*\.{_UUID}\.TID[0-9]+\.tmp|\.+[^/]*\.{_UUID}\.tmp|\.+[^/]*\.tmp")


@dataclass(frozen=True, slots=True)
class SparkPath:
    """What a path below a checkpoint location stands for."""

    kind: Kind
    batch: int | None = None
    version: int | None = None
    operator: int | None = None
    partition: int | None = None
    store: str = "default"
    uid: str | None = None
    source: str = ""
    compact: bool = False


# An attached query is listed again and again, and most of its names are those of the time before.
@functools.lru_cache(maxsize=16_384)
def classify(path: str) -> SparkPath | None:
    """The meaning of a path relative to the checkpoint location; None for a foreign file."""
    for kind, pattern in _PATTERNS:
        match = pattern.fullmatch(path)
        if match is not None:
            return _meaning(kind, match.groupdict())
    return _companion(path)


def _meaning(kind: Kind, groups: dict[str, str | None]) -> SparkPath:
    def number(name: str) -> int | None:
        text = groups.get(name)
        return int(text) if text is not None else None

    return SparkPath(
        kind=kind,
        batch=number("batch"),
        version=number("version"),
        operator=number("operator"),
        partition=number("partition"),
        store=groups.get("store") or "default",
        uid=groups.get("uid"),
        source=groups.get("source") or "",
        compact=groups.get("compact") is not None,
    )


def _companion(path: str) -> SparkPath | None:
    """Checksums of other files, and files that Spark has not finished."""
    folder, _, name = path.rpartition("/")
    bare = name.removesuffix(".crc")
    if _TEMPORARY.fullmatch(bare):
        return SparkPath(kind="temporary")
    if bare == name:
        return None
    prefix = f"{folder}/" if folder else ""
    if name.startswith(".") and classify(f"{prefix}{bare[1:]}") is not None:
        return SparkPath(kind="hadoop")
    checked = classify(f"{prefix}{bare}")
    if checked is not None and checked.kind in ("delta", "snapshot", "zip", "changelog"):
        return SparkPath(kind="checksum")
    return None


def hadoop_sidecar(path: str) -> str:
    """Where Hadoop's local file system keeps the checksums of a file."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc" if folder else f".{name}.crc"


def spark_sidecar(path: str) -> str:
    """Where Spark keeps its own checksum of a state file; empty for files that never have one."""
    return f"{path}.crc" if path.endswith(_WITH_CHECKSUM) and "/." not in path else ""


def checked_by(path: str) -> str:
    """The file whose bytes a Hadoop sidecar covers."""
    folder, _, name = path.rpartition("/")
    bare = name[1:].removesuffix(".crc")
    return f"{folder}/{bare}" if folder else bare


def store_dir(operator: int, partition: int, store: str) -> str:
    """The directory of one state store."""
    base = f"state/{operator}/{partition}"
    return base if store == "default" else f"{base}/{store}"


def store_dir_of(path: str) -> str:
    """The directory of the store to which a delta, snapshot, zip or changelog belongs."""
    return path.rpartition("/")[0]


def version_of(spark: str) -> str:
    """Major and minor of a Spark version."""
    return ".".join(spark.split(".")[:2])

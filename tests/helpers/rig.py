"""What the unit tests share: a small pipeline, a rig around it, and hashes of whole trees."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast import Settings
from holdfast.checkpoint import KafkaPosition, Part, topology
from holdfast.clock import ManualClock
from holdfast.format import paths
from holdfast.format.canonical import encode_value, sha256_hex
from holdfast.ids import SeededIds

RELAXED = Settings(retain=100)


def shop(**changes: Any):
    """One Kafka source, two operators, one sink: enough to show everything."""
    parts = {
        "orders": Part(name="orders", kind="source", what="kafka", schema="customer string"),
        "totals": Part(
            name="totals", kind="operator", what="sum", inputs=["orders"], keys=["customer"],
            stateful=True,
        ),
        "counter": Part(name="counter", kind="operator", what="count", inputs=["orders"]),
        "out": Part(name="out", kind="sink", what="parquet", inputs=["totals"]),
    }  # fmt: skip
    parts.update(changes)
    return topology(*(part for part in parts.values() if part is not None))


def at(offset: int, *, partition: str = "0") -> KafkaPosition:
    """A position of the shop's source."""
    return KafkaPosition(topics={"orders": {partition: offset}})


class Rig:
    """Opens the shop on a directory; every commit adds one run and moves the source."""

    pipeline = "shop"

    def __init__(self, root: Path | Any, *, seed: int = 7) -> None:
        self.root = root
        self.clock = ManualClock()
        self.ids = SeededIds(seed)
        self.offset = 0

    @property
    def home(self) -> Path:
        return Path(self.root) / self.pipeline

    def open(self, **kwargs: Any) -> holdfast.checkpoint.Store:
        kwargs.setdefault("settings", RELAXED)
        kwargs.setdefault("topology", shop())
        kwargs.setdefault("clock", self.clock)
        kwargs.setdefault("ids", self.ids)
        return holdfast.checkpoint.open_store(self.root, self.pipeline, **kwargs)

    def reader(self) -> holdfast.checkpoint.StoreReader:
        return holdfast.checkpoint.read_store(self.root, self.pipeline)

    def draft(
        self,
        store: holdfast.checkpoint.Store,
        *,
        run: bytes | None = None,
        snapshot: bool | None = None,
        small: bytes = b"7",
        replay: str | None = "deduplicates",
        label: str | None = None,
        watermark_us: int | None = None,
    ) -> holdfast.checkpoint.Draft:
        """A draft of the next epoch; without `replay` no sink is staged."""
        self.clock.advance_ms(1_000)
        draft = store.draft(label=label)
        self.offset += 10
        draft.set_source("orders", at(self.offset), watermark_us=watermark_us)
        if watermark_us is not None:
            draft.set_watermark(watermark_us)
        whole = store.current is None or not store.settings.incremental
        snapshot = whole if snapshot is None else snapshot
        data = run if run is not None else f"run of epoch {draft.epoch}".encode() * 20
        entry = draft.write_run("totals", 0, data, snapshot=snapshot, rows=10)
        draft.set_operator(
            "totals", trace="latest", files=[entry] if snapshot else None, rows=10, keys=5
        )
        if not snapshot:
            draft.add_file(entry)
        draft.put_small("counter", small)
        if replay is not None:
            draft.stage_sink("out", f"token-{draft.epoch}", replay=replay)
        draft.add_processed(10)
        return draft

    def commit(self, store: holdfast.checkpoint.Store, *, settle: bool = True, **kwargs: Any):
        """Commit the next epoch; `settle` records that its sinks have published."""
        summary = store.commit(self.draft(store, **kwargs))
        if settle:
            for sink in summary.sinks:
                store.record_outcome(summary.checkpoint, sink.name, "committed")
        return summary

    def fill(self, count: int, *, opening: dict[str, Any] | None = None, **kwargs: Any) -> list:
        """Open, commit `count` checkpoints, close."""
        with self.open(**(opening or {})) as store:
            return [self.commit(store, **kwargs) for _ in range(count)]

    def verify(self, *, deep: bool = True) -> holdfast.checkpoint.VerifyReport:
        return holdfast.checkpoint.verify_store(self.reader(), deep=deep)


def tree(root: Path | str) -> dict[str, str]:
    """Every name below a directory: a digest for a file, a mark for the rest."""
    found = {}
    for directory, names, files in os.walk(root):
        for name in [*names, *files]:
            path = Path(directory) / name
            key = str(path.relative_to(root))
            if path.is_symlink():
                found[key] = f"-> {path.readlink()}"
            elif path.is_file():
                found[key] = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                found[key] = "directory" if path.is_dir() else "other"
    return found


def disk_bytes(root: Path | str) -> int:
    """Bytes of all files below a directory, by the system's own count."""
    return sum(
        (Path(directory) / name).lstat().st_size
        for directory, _, files in os.walk(root)
        for name in files
    )


def flip(path: Path, at_byte: int = -3) -> None:
    """Flip the lowest bit of one byte."""
    data = bytearray(path.read_bytes())
    data[at_byte] ^= 1
    path.write_bytes(bytes(data))


def forge(data: bytes, **changes: Any) -> bytes:
    """A document with other content whose own digest is right, as an attacker would write it."""
    document = msgspec.json.decode(data)
    document.update(changes)
    document["sha256"] = "0" * 64
    document["sha256"] = sha256_hex(encode_value(document))
    return encode_value(document)


def manifest_path(rig: Rig, checkpoint: str) -> Path:
    return rig.home / paths.manifest(checkpoint)


def record_path(rig: Rig, sequence: int) -> Path:
    return rig.home / paths.record(sequence)


class Wrapper:
    """A storage that counts calls and lets a test look at or break single ones."""

    def __init__(self, inner: Any, hooks: dict[str, Any] | None = None) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()
        self.hooks = hooks or {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            hook = self.hooks.get(name)
            return hook(value, *args, **kwargs) if hook else value(*args, **kwargs)

        return call

"""A draft: a checkpoint that is being put together.

Invariants:
- A draft begins as its parent: sources, watermarks, small state and files are inherited until they
  are replaced, so that a checkpoint writes only what changed. A full checkpoint inherits no file.
- Nothing of a draft counts before it is committed; all of it lies below its own directory.
- Positions and state are set through one object and become durable by one record: neither can be
  restored without the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

import msgspec

from holdfast.checkpoint.artifact import ArtifactWriter
from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.checkpoint.draft_files import DraftFiles
from holdfast.checkpoint.segments import write_segment
from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.format import paths
from holdfast.format.canonical import FORMAT_VERSION, NO_DIGEST, sha256_hex, storable, wrong_type
from holdfast.format.documents import Counts, Replay
from holdfast.format.inventory import Inventory, Key
from holdfast.format.manifest import (
    FileEntry,
    InlineState,
    Manifest,
    OperatorEntry,
    PackedState,
    SinkEntry,
    SourceEntry,
    TraceKind,
    Versions,
    with_inventory,
)
from holdfast.format.position import Position
from holdfast.format.topology import Topology, fingerprint
from holdfast.format.validate import counts_of
from holdfast.ids import CheckpointId, Epoch, IdSource, Sequence, WriterId, check_label, check_name
from holdfast.settings import Settings
from holdfast.storage.base import Storage

TOKEN_BYTES_MAX = 64 * 1024
_PROPERTY_BYTES_MAX = 4 * 1024


class Draft:
    """Collects positions, state files and sink tokens of one epoch."""

    def __init__(
        self,
        *,
        directory: PipelineDirectory,
        storage: Storage,
        ids: IdSource,
        settings: Settings,
        topology: Topology,
        parent: Manifest | None,
        checkpoint: CheckpointId,
        epoch: Epoch,
        label: str | None,
    ) -> None:
        """Begin as the parent; use `Store.draft`."""
        self.checkpoint = checkpoint
        self.epoch = epoch
        self.label = check_label(label) if label is not None else None
        self._directory = directory
        self._storage = storage
        self._ids = ids
        self._settings = settings
        self._topology = topology
        self._parent = parent
        self._known = {part.name: part.kind for part in topology.parts}
        self._sources: dict[str, SourceEntry] = {}
        self._operators: dict[str, OperatorEntry] = {}
        self._files = DraftFiles()
        self._offsets: dict[str, FileEntry] = {}
        self._packs: dict[str, FileEntry] = {}
        self._large: dict[str, bytes] = {}
        self._sinks: dict[str, SinkEntry] = {}
        self.staged: list[tuple[Storage, tuple[str, ...]]] = []
        self._properties: dict[str, str] = {}
        self._watermark_us: int | None = None
        self._log: Position | None = None
        self._processed = 0
        self.finished = False
        if parent is not None:
            self._inherit(parent)

    @property
    def parent(self) -> CheckpointId | None:
        """The checkpoint that this one builds on."""
        return self._parent.checkpoint if self._parent else None

    def _inherit(self, parent: Manifest) -> None:
        """Take over what the parent has, for the parts that still exist."""
        self._watermark_us = parent.watermark_us
        self._log = parent.log
        self._processed = parent.processed
        self._properties = dict(parent.properties)
        self._sources = {e.name: e for e in parent.sources if e.name in self._known}
        if not self._settings.incremental:
            return
        self._operators = {e.name: e for e in parent.operators if e.name in self._known}
        for entry in parent.inventory.other:
            if entry.kind == "pack":
                self._packs[entry.path] = entry
            elif entry.kind == "offsets" and entry.operator in self._known:
                self._offsets[str(entry.operator)] = entry
        self._files = DraftFiles(parent.inventory, operators=self._operators)

    # What a caller sets

    def set_source(
        self,
        name: str,
        position: Position,
        *,
        watermark_us: int | None = None,
        idle: bool = False,
    ) -> None:
        """Where a source stands at the end of this epoch; without a watermark it keeps its own."""
        self._check_part(name, "source")
        before = self._sources.get(name)
        moved = before is None or before.position != position
        if watermark_us is None and before is not None:
            watermark_us = before.watermark_us
        entry = SourceEntry(
            name=name,
            position=position,
            epoch=self.epoch if moved or before is None else before.epoch,
            watermark_us=watermark_us,
            idle=idle,
        )
        self._sources[name] = storable(entry, SourceEntry, "source", name)

    def set_operator(
        self,
        name: str,
        *,
        trace: TraceKind,
        files: Iterable[FileEntry] | None = None,
        rows: int = 0,
        keys: int = 0,
        partitions: int = 1,
        version: int = 1,
        position: Position | None = None,
        counts: Counts = "live",
    ) -> None:
        """State of an operator or reference table; `files`, if given, replaces the whole list.

        rows, keys: those that live after this epoch; `counts` says whether they are exact.
        """
        self._check_part(name, "operator", "table")
        if trace == "small":
            raise InvalidInputError(
                "small state is given with its bytes",
                kind="invalid_state",
                operator=name,
                remedy="use put_small",
            )
        entry = OperatorEntry(
            name=name,
            trace=trace,
            version=version,
            partitions=partitions,
            rows=rows,
            keys=keys,
            position=position,
            counts=counts,
        )
        self._operators[name] = storable(entry, OperatorEntry, "operator", name)
        if files is not None:
            self._replace_files(name, [*files])

    def _replace_files(self, name: str, files: list[FileEntry]) -> None:
        for entry in files:
            if not isinstance(entry, FileEntry) or not isinstance(entry.path, str):
                storable(entry, FileEntry, "file", str(getattr(entry, "path", entry)))
        own = [entry for entry in files if entry.operator == name]
        for entry in self._files.replace(name, own):
            self._check_file(entry)
        for entry in files:
            if entry.operator != name:
                self.add_file(entry)

    def put_small(self, name: str, data: bytes, *, version: int = 1, keys: int = 0) -> None:
        """Small state of an operator: inline or packed, whichever fits its size."""
        self._check_part(name, "operator", "table")
        if not isinstance(data, bytes):
            raise wrong_type("small state", name, f"bytes are needed, not {type(data).__name__}")
        self._large.pop(name, None)
        self._files.replace(name, ())
        small = None
        if len(data) <= self._settings.inline_bytes_max:
            small = InlineState(data=data, sha256=sha256_hex(data))
        else:
            self._large[name] = data
        entry = OperatorEntry(
            name=name, trace="small", version=version, keys=keys, bytes=len(data), small=small
        )
        self._operators[name] = storable(entry, OperatorEntry, "operator", name)

    def add_file(self, entry: FileEntry) -> None:
        """One more run of an operator, newest last; written by this checkpoint or inherited."""
        self._check_file(entry)
        self._files.add(entry)

    def remove_files(self, operator: str, files: Iterable[Key]) -> None:
        """These runs of an operator leave, by pipeline (None: this one) and path."""
        self._files.remove(operator, files)

    def inherits_files(self, operator: str) -> bool:
        """Whether the draft began with the runs that its parent has of an operator."""
        return operator in self._files.inherited

    def count_files(self, operator: str) -> int:
        """How many runs an operator has now."""
        return self._files.tally(operator).files

    def _check_file(self, entry: FileEntry) -> None:
        storable(entry, FileEntry, "file", str(entry.path))
        name = entry.operator or ""
        if name not in self._operators:
            raise InvalidInputError(
                "run belongs to an operator that was not set",
                kind="invalid_state",
                operator=name,
                path=entry.path,
                remedy="call set_operator first",
            )
        if not self._settings.incremental and not entry.path.startswith(self._prefix()):
            raise InvalidInputError(
                "incremental checkpoints are turned off: files of others cannot be inherited",
                kind="not_incremental",
                operator=name,
                path=entry.path,
                remedy="write a full snapshot, or set incremental=True",
            )

    def inherit(self, entry: FileEntry) -> None:
        """One run of an earlier checkpoint, in its place between the others."""
        self.add_file(entry)

    def reset_files(self, operator: str) -> None:
        """Forget the inherited runs of an operator, before a new snapshot."""
        self._files.replace(operator, ())

    def put_offsets(self, source: str, data: bytes) -> str:
        """Write positions of a source that are too large for the manifest; returns their path."""
        self._check_part(source, "source")
        path = paths.offsets(self.checkpoint, source)
        with ArtifactWriter(self._storage, self._directory.at(path)) as writer:
            writer.write(data)
        self._offsets[source] = FileEntry(
            path=path, size=writer.size, sha256=writer.sha256, kind="offsets", operator=source
        )
        return path

    def stage_sink(
        self,
        name: str,
        token: str,
        *,
        replay: Replay,
        storage: Storage | None = None,
        files: Iterable[str] = (),
    ) -> None:
        """What a sink will publish when the checkpoint is durable.

        files: paths of what was staged in `storage`; the commit makes them durable first.
        """
        self._check_part(name, "sink")
        entry = SinkEntry(name=name, epoch=self.epoch, token=token, replay=replay)
        storable(entry, SinkEntry, "sink", name)
        if len(token.encode()) > TOKEN_BYTES_MAX:
            raise InvalidInputError(
                "sink token is too large",
                kind="token_too_large",
                sink=name,
                limit=TOKEN_BYTES_MAX,
                remedy="put the list into a file, its path into the token",
            )
        self._sinks[name] = entry
        if storage is not None:
            self.staged.append((storage, tuple(files)))

    def set_watermark(self, watermark_us: int | None) -> None:
        """Event time up to which the pipeline is complete."""
        self._watermark_us = storable(watermark_us, int | None, "watermark", "pipeline")

    def set_log(self, position: Position | None) -> None:
        """Place in the write-ahead log up to which this checkpoint has seen everything."""
        self._log = storable(position, Position | None, "log position", "pipeline")

    def add_processed(self, records: int) -> None:
        """Records that this epoch has processed."""
        self._processed += storable(records, int, "count", "processed")

    @property
    def properties(self) -> Mapping[str, str]:
        """The notes that the checkpoint will carry."""
        return self._properties

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Notes of the user; never secrets, everybody can read them."""
        storable(dict(properties), dict[str, str], "properties", "pipeline")
        total = sum(len(k) + len(v) for k, v in properties.items())
        if total > _PROPERTY_BYTES_MAX:
            raise InvalidInputError(
                "properties are too large",
                kind="properties_too_large",
                size=total,
                limit=_PROPERTY_BYTES_MAX,
            )
        self._properties = dict(properties)

    # Files

    def run_path(self, operator: str, partition: int, *, snapshot: bool) -> str:
        """A new path for a run, relative to the pipeline; unique for every try."""
        return paths.run(self.checkpoint, operator, partition, self._ids.token(), snapshot=snapshot)

    def create(self, path: str) -> ArtifactWriter:
        """Begin a file of this draft at a path from `run_path`."""
        if not path.startswith(self._prefix()) or not paths.is_artifact_path(path):
            raise InvalidInputError(
                "path belongs to another checkpoint or is none that a manifest may name",
                kind="invalid_path",
                path=repr(path)[:200],
                remedy="take it from run_path",
            )
        return ArtifactWriter(self._storage, self._directory.at(path))

    def write_run(
        self, operator: str, partition: int, data: bytes, *, snapshot: bool, rows: int = 0
    ) -> FileEntry:
        """Write one run from bytes and return its entry; `add_file` or `set_operator` takes it."""
        if not snapshot and self.parent is None:
            raise InvalidInputError(
                "a delta needs a checkpoint to build on",
                kind="delta_without_base",
                operator=operator,
                remedy="the first run of an operator is a snapshot",
            )
        path = self.run_path(operator, partition, snapshot=snapshot)
        with self.create(path) as writer:
            writer.write(data)
        return FileEntry(
            path=path,
            size=writer.size,
            sha256=writer.sha256,
            kind="snapshot" if snapshot else "delta",
            operator=operator,
            partition=partition,
            base=None if snapshot else self.parent,
            rows=rows,
        )

    def blob_path(self, operator: str, number: int) -> str:
        """A new path for an opaque file, relative to the pipeline; unique for every try."""
        return paths.blob(self.checkpoint, operator, number, self._ids.token())

    # Sealing

    def seal(
        self,
        *,
        sequence: Sequence,
        writer: WriterId,
        lineage: str,
        created_us: int,
        versions: Versions,
    ) -> Manifest:
        """Write what is still in memory, and describe the whole as a manifest."""
        operators = self._pack()
        own = self._prefix()
        plan = self._files.arrange([entry.name for entry in operators], self._others(operators))
        new = [
            write_segment(
                self._storage,
                self._directory,
                paths.segment(self.checkpoint, self._ids.token()),
                entries,
            )
            for entries in plan.new
        ]
        tallies = self._files.by_operator
        inventory = Inventory([*plan.kept, *new], plan.listed, by_operator=tallies)
        written = [*(e for part in new for e in (part.file, *part)), *plan.listed]
        operators = [
            entry
            if entry.trace == "small"
            else msgspec.structs.replace(entry, bytes=self._files.tally(entry.name).bytes)
            for entry in operators
        ]
        manifest = Manifest(
            format=FORMAT_VERSION,
            sha256=NO_DIGEST,
            checkpoint=self.checkpoint,
            pipeline=self._directory.pipeline,
            lineage=lineage,
            epoch=self.epoch,
            sequence=sequence,
            writer=writer,
            created_us=created_us,
            topology=self._topology,
            fingerprint=fingerprint(self._topology),
            versions=versions,
            parent=self.parent,
            label=self.label,
            incremental=bool(plan.kept)
            or any(not e.path.startswith(own) or e.kind == "delta" for e in written),
            watermark_us=self._watermark_us,
            log=self._log,
            processed=self._processed,
            rows=sum(entry.rows for entry in operators),
            keys=sum(entry.keys for entry in operators),
            bytes_new=sum(e.size for e in written if e.pipeline is None and e.path.startswith(own)),
            bytes_total=inventory.bytes,
            sources=[self._sources[name] for name in sorted(self._sources)],
            operators=operators,
            sinks=[self._sinks[name] for name in sorted(self._sinks)],
            listed=plan.listed,
            segments=[part.entry for part in inventory.parts],
            counts=counts_of(operators),
            properties=self._properties,
        )
        return with_inventory(manifest, inventory)

    def _pack(self) -> list[OperatorEntry]:
        """Put all small states that are too large to be inline into one file."""
        if self._large:
            path = paths.pack(self.checkpoint)
            placed: dict[str, PackedState] = {}
            with ArtifactWriter(self._storage, self._directory.at(path)) as writer:
                for name in sorted(self._large):
                    data = self._large[name]
                    placed[name] = PackedState(
                        path=path, offset=writer.size, length=len(data), sha256=sha256_hex(data)
                    )
                    writer.write(data)
            for name, small in placed.items():
                self._operators[name] = msgspec.structs.replace(self._operators[name], small=small)
            self._packs[path] = FileEntry(
                path=path, size=writer.size, sha256=writer.sha256, kind="pack"
            )
            self._large = {}
        return [self._operators[name] for name in sorted(self._operators)]

    def _others(self, operators: list[OperatorEntry]) -> list[FileEntry]:
        """The packs and offsets that something refers to."""
        used = {e.small.path for e in operators if isinstance(e.small, PackedState)}
        files = [self._packs[path] for path in sorted(used) if path in self._packs]
        logs = {getattr(entry.position, "log", None) for entry in self._sources.values()}
        files.extend(entry for _, entry in sorted(self._offsets.items()) if entry.path in logs)
        return files

    def abort(self) -> None:
        """Delete what this draft has written; a failure leaves it to the next clean-up."""
        self.finished = True
        try:
            listing = self._directory.list(paths.checkpoint_dir(self.checkpoint))
            self._storage.delete_many([self._directory.at(entry.path) for entry in listing])
        except HoldfastError:
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.finished and (kind is None or issubclass(kind, Exception)):
            self.abort()

    def _prefix(self) -> str:
        return f"{paths.checkpoint_dir(self.checkpoint)}/"

    def _check_part(self, name: str, *kinds: str) -> None:
        if self._known.get(check_name(name)) not in kinds:
            raise InvalidInputError(
                f"the pipeline has no {' or '.join(kinds)} of that name",
                kind="unknown_part",
                name=name,
                known=",".join(sorted(n for n, k in self._known.items() if k in kinds)) or "none",
                remedy="declare it in the topology",
            )

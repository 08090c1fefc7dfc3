"""The contract of sources and sinks: all that the runtime knows about a connector.

A connector has two halves. `Source` and `Sink` are declarations: plain data, no connection. `open`
makes a `SourceReader` or a `SinkWriter`, which live as long as a run.

Invariants of a source:
- A split is bounded and can be read again with the same result until it is committed.
- A position is taken after the splits that were read, never ahead of them.
- `committed` is the only place where a source may forget or acknowledge: the checkpoint is durable.
- A row that cannot be read is a row with a bad part (`bad_rows`), never a row that is left out.

Invariants of a sink:
- Tasks stage rows where nobody looks; a token names everything that was staged.
- `commit` publishes a token. It is idempotent, also in another process.
- Nothing staged outside a durable checkpoint is ever published: `remove_stale_staging` removes it.

Tasks load this module: what only the driver needs is imported where it is used.

The names that third parties use are those of `holdfast.connectors`. How to write a connector:
docs/guides/connectors.md. Decisions: docs/adr/0124-connectors-behind-one-contract.md, 0155, 0156.
"""

from __future__ import annotations

import base64
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from holdfast.checkpoint import Draft, PendingToken, StoreReader
    from holdfast.connectors.locations import Location
    from holdfast.format.documents import Replay
    from holdfast.format.manifest import Manifest
    from holdfast.format.owner import Owner
    from holdfast.format.position import Position
    from holdfast.spark.classic import Scan
    from holdfast.storage import Storage
    from holdfast.storage.open import StorageLocation

# Sources


@dataclass(frozen=True)
class Split:
    """A bounded part of a source for one epoch.

    source: the name of the source. rows: how many, where that is known before it is read. bytes:
    how large it is, as far as that is known. detail: belongs to the source, which made it.
    """

    source: str
    rows: int | None
    bytes: int
    detail: Any


OnBad = Literal["keep", "fail"]
"""What to do about rows that cannot be read: give them to `stream.bad`, or fail the epoch."""


@dataclass(frozen=True)
class Backlog:
    """How far a source is, in its own unit: `done` of `total`; and what is left, where it knows.

    rows, bytes: still to be read. seconds: how long the oldest row that is not read has waited; 0
    when nothing is left. None: the source cannot say, and the runtime estimates it (`Lag`).
    """

    done: int
    total: int
    unit: str
    rows: int | None = None
    bytes: int | None = None
    seconds: float | None = None


class Source(ABC):
    """A declaration of where rows come from.

    kind: the kind of connector; stored in the fingerprint, so it never changes. schema_text: the
    schema as SQL writes it, or what else says which rows come; stored in the fingerprint. weight:
    the column that holds the weight of each row, if the source can retract rows.

    bad: the SQL schema of what it tells about a row that it could not read, `BAD_SCHEMA` or more;
    None: it reads every row, or fails. Then `SourceReader.read` may give a column `BAD` of this
    type; see `holdfast.connectors.bad_rows`. on_bad: "fail" refuses an epoch that has such rows.

    in_order: rows of a split stand in the DataFrame in the order in which they happened, as far as
    rows of one key go: by the number of Spark's partition, then by place. `upsert` needs that, or
    columns that say the order.
    """

    kind: str
    schema_text: str
    weight: str | None = None
    bad: str | None = None
    on_bad: OnBad = "keep"
    in_order: bool = False

    @abstractmethod
    def columns(self) -> list[str]:
        """Column names without the weight."""

    @abstractmethod
    def empty(self, spark: SparkSession) -> DataFrame:
        """A DataFrame of the right shape without rows."""

    @abstractmethod
    def open(self, name: str) -> SourceReader:
        """Begin to read from the very start. name: what the pipeline calls the source."""

    def locations(self) -> Sequence[Location]:
        """Directories that it reads or changes; no other part of the pipeline may disturb them."""
        return ()


class SourceReader(ABC):
    """A source while the pipeline runs.

    is_log: whether it reads a log, and the bytes of its splits are bytes of that log.
    """

    is_log: bool = False

    @abstractmethod
    def restore(self, manifest: Manifest, reader: StoreReader) -> None:
        """Go to where a checkpoint stands; one without this source changes nothing."""

    @abstractmethod
    def plan(self, after: Split | None = None) -> Split | None:
        """The next split behind the position, or None when there is nothing new.

        after: the split that is being worked on; the position moves behind it only when it is done.
        """

    @abstractmethod
    def read(self, spark: SparkSession, split: Split) -> DataFrame:
        """The rows of a split as a DataFrame: all columns of `Source.empty`, and perhaps `BAD`."""

    @abstractmethod
    def advance(self, split: Split) -> None:
        """The split went through the operators: the position moves behind it."""

    @abstractmethod
    def save(self, draft: Draft) -> Position:
        """Put what does not fit a position into the draft; returns the position.

        An open position has room for notes (`meta`): what must be the same again when its offsets
        are to mean the same, such as the id of a topic, and is compared in `restore`.
        """

    @abstractmethod
    def backlog(self) -> Backlog:
        """How far it is, and what is left. Asked after every epoch: no slow request in here."""

    def check(self) -> None:
        """Refuse, before Spark starts, what could never be read."""
        return

    def limit_rows(self, rows: int | None) -> None:
        """Limit the next splits to about so many rows; None: to the source's own limits alone.

        Called between two splits, when a run has a target for the time of an epoch. A source that
        cannot tell gives what it would give otherwise.
        """
        del rows

    def committed(self, manifest: Manifest, floor: Position | None) -> None:
        """The saved position is durable; nobody needs what lies before `floor`."""
        del manifest, floor

    def history(self) -> list[Split]:
        """Everything up to the position, to fill new operators; refused when some of it is lost."""
        raise InvalidInputError(
            "the source cannot give its past again, so a new operator cannot be filled from it",
            kind="history_lost",
            reader=type(self).__name__,
            remedy='let a new output begin empty, outputs={"sink": "empty"}; or start a new '
            "pipeline",
        )

    def rows_read(self, split: Split, scans: Sequence[Scan]) -> int | None:
        """How many rows a split had, from what Spark has counted; None where it has not.

        Asked only of splits that did not know it. scans: what Spark tells of the files it read.
        """
        del split, scans
        return None

    def explain(self, spark: SparkSession, url: str) -> dict[str, object] | None:
        """Facts about something that Spark could not read; None unless it is this source's."""
        del spark, url
        return None


def rows_of(reader: SourceReader, split: Split, observed: int | None, scans: Sequence[Scan]) -> int:
    """How many rows a split had: known beforehand, observed, or counted by Spark."""
    if split.rows is not None:
        return split.rows
    if observed is not None:
        return observed
    return reader.rows_read(split, scans) or 0


# Sinks


class StagedFile(msgspec.Struct, frozen=True):
    """One file that a task has staged for a sink."""

    sink: str
    path: str
    size: int
    sha256: str
    rows: int


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What was staged by one checkpoint for one sink.

    packed, count: in a manifest, names of many files in a form that takes a third of the space;
    `parse_token` gives them in `files`.
    """

    directory: str
    files: list[str] = []
    rows: int = 0
    bytes: int = 0
    packed: str = ""
    count: int = 0


_PACKED_FROM = 128


def token_text(directory: str, staged: Collection[StagedFile]) -> str:
    """A token as it stands in the manifest."""
    token = Token(
        directory=directory,
        files=sorted(file.path for file in staged),
        rows=sum(file.rows for file in staged),
        bytes=sum(file.size for file in staged),
    )
    return msgspec.json.encode(_packed(token)).decode()


def _packed(token: Token) -> Token:
    """The names of hundreds of files by columns of characters: all but the random ones shrink."""
    start = f"{token.directory}/"
    names = [path.removeprefix(start) for path in token.files]
    same = all(path.startswith(start) for path in token.files) and len({*map(len, names)}) == 1
    if len(names) < _PACKED_FROM or not same or not all(map(str.isascii, names)):
        return token
    columns = "".join(map("".join, zip(*names, strict=True)))
    packed = base64.b85encode(zlib.compress(columns.encode(), 9)).decode()
    return msgspec.structs.replace(token, files=[], packed=packed, count=len(names))


def _unpacked(token: Token) -> Token:
    if not token.packed:
        return token
    columns = zlib.decompress(base64.b85decode(token.packed)).decode()
    files = [f"{token.directory}/{columns[n :: token.count]}" for n in range(token.count)]
    return msgspec.structs.replace(token, files=files, packed="", count=0)


def parse_token(pending: PendingToken) -> Token:
    """The token that a manifest holds."""
    try:
        return _unpacked(msgspec.json.decode(pending.token, type=Token, strict=True))
    except (msgspec.MsgspecError, ValueError, zlib.error) as error:
        raise CorruptionError(
            "a sink token cannot be read",
            kind="bad_token",
            sink=pending.sink,
            epoch=pending.epoch,
            reason=str(error)[:200],
        ) from error


def staging_root(pipeline: str, sink: str) -> str:
    """Where a sink without a place of its own stages rows: in the store, next to the pipelines."""
    return f".staging/{pipeline}/{sink}"


def remove_staging(storage: Storage, root: str, keep: Collection[str]) -> None:
    """Remove what other checkpoints than these have staged below a directory."""
    wanted = set(keep)
    depth = root.count("/") + 1
    stale = [
        entry.path for entry in storage.list(root) if entry.path.split("/")[depth] not in wanted
    ]
    storage.delete_many(stale)


class Sink(ABC):
    """A declaration of where rows go.

    kind: the kind of connector; stored in the fingerprint, so it never changes. replay: what
    happens when an epoch that was published is run again: "retracts" what it has, "deduplicates",
    or "none": it would be published twice, so going back is refused unless that is accepted.
    by_slot: whether tasks stage its rows in the order of their slots, with the slot in a column of
    its own (`connectors/parquet_upsert/slots.py`).
    """

    kind: str
    replay: Replay = "none"
    by_slot: bool = False

    @property
    def params(self) -> Mapping[str, str]:
        """What else gives it its meaning; stored in the fingerprint."""
        return {}

    def check(self, name: str, schema: StructType) -> None:
        """Refuse, before the first epoch, rows that could never be published.

        name: what the pipeline calls the sink. schema: the `StructType` of its rows. By default:
        types that cannot be staged.
        """
        from holdfast.spark.types import check_carried

        del name
        check_carried(schema)

    @abstractmethod
    def open(
        self, name: str, pipeline: str, store: StorageLocation, spark: SparkSession
    ) -> SinkWriter:
        """Begin to write. store: of the pipeline, where rows can be staged (`staging_root`)."""

    def locations(self) -> Sequence[Location]:
        """Directories that it writes; no other part of the pipeline may disturb them."""
        return ()


class SinkWriter(ABC):
    """A sink while the pipeline runs.

    needs_every_epoch: whether an epoch that is left out makes every later one wrong; then none can
    be set aside.
    """

    needs_every_epoch: bool = False

    @abstractmethod
    def staging(self, checkpoint: str) -> tuple[StorageLocation, str]:
        """Where tasks stage rows of a checkpoint: a storage, and a directory of it."""

    @abstractmethod
    def commit(self, token: PendingToken) -> None:
        """Publish what a token names (`parse_token`). Idempotent: it may be called again."""

    @abstractmethod
    def remove_stale_staging(self, keep: Collection[str]) -> None:
        """Remove what was staged by other checkpoints than these (`remove_staging`)."""


@dataclass(frozen=True)
class OutputState:
    """What lies at the place of an output.

    epochs: published ones, newest last; of an upsert output the version that it shows. whole:
    whether everything is there that the owner record counts. retractable: whether it can go back
    to the checkpoint that the pipeline resumes from without being rebuilt. shared: other producers
    write there by design. fits: whether epochs that the store has published are there as it
    published them; None if the store remembers none. strange: readers see files there that no sink
    of Holdfast has published, and no rebuild would replace.
    """

    where: str
    owner: Owner | None = None
    epochs: tuple[int, ...] = ()
    empty: bool = True
    whole: bool = True
    retractable: bool = True
    shared: bool = False
    fits: bool | None = None
    strange: bool = False


class OutputWriter(SinkWriter):
    """A sink whose output lies somewhere: it has an owner record, and can be looked at.

    compacts: whether a policy asks it to be compacted from time to time.
    """

    compacts: bool = False

    @abstractmethod
    def inspect(self, after: int | None) -> OutputState:
        """What lies there, and whether it can go back to an epoch; reads only."""

    @abstractmethod
    def holds(self, token: PendingToken) -> bool:
        """Whether a published token lies there as it was published."""

    @abstractmethod
    def claim(self, owner: Owner) -> Owner:
        """Replace the owner record, durably; returns it as it is stored."""

    @abstractmethod
    def extent(self) -> tuple[int, int]:
        """How many parts belong to the output, and the version that it shows (-1: none)."""

    @abstractmethod
    def retract(self, after: int | None) -> None:
        """Remove what was published after this epoch; only asked for where `inspect` allows it."""

    @abstractmethod
    def replace(self, token: PendingToken) -> None:
        """Publish a token as the only content."""

    @abstractmethod
    def clear(self) -> None:
        """Remove everything that was published."""

    def folds(self) -> list[tuple[int, int]]:
        """First and last epoch of every part that holds several."""
        return []

    def compaction_due(self, limit: int) -> bool:
        """Whether the policy asks for it now. limit: the newest epoch that may be compacted."""
        del limit
        return False

    def compact(self, limit: int, *, requested: bool) -> Owner | None:
        """Rewrite old epochs as few large parts; the new owner record, None with nothing to do.

        requested: a user asked for it; otherwise only as far as the policy says.
        """
        del limit, requested
        return None


# Owner records


def read_owner(storage: Storage, path: str) -> Owner | None:
    """The owner record of an output; None without one."""
    from holdfast.format.documents import SMALL_BYTES_MAX
    from holdfast.format.owner import parse_owner

    try:
        return parse_owner(storage.get(path, bytes_max=SMALL_BYTES_MAX), path)
    except NotFoundError:
        return None
    except CorruptionError as error:
        error.facts["output"] = storage.url
        error.remedy = (
            "bring the record back from a copy; or delete it, and say what becomes of the output: "
            'outputs={"sink": "adopt"} rebuilds it, "keep" takes it as it is'
        )
        raise


def put_owner(storage: Storage, path: str, owner: Owner, *, first: bool) -> Owner:
    """Write a record durably; of two that claim one output at once, one wins."""
    from holdfast.format.canonical import seal
    from holdfast.format.documents import SMALL_BYTES_MAX

    sealed, data = seal(owner, bytes_max=SMALL_BYTES_MAX)
    if not first:
        storage.put(path, data)
        return sealed
    try:
        storage.put_new(path, data)
    except AlreadyExistsError as error:
        raise ConflictError(
            "another pipeline claimed the output at this moment",
            kind="output_claimed",
            sink=owner.sink,
            path=storage.url,
            remedy="start again: the owner is named then",
        ) from error
    return sealed

"""How large files are once they are read: from footers of Parquet, by a sample of everything else.

What a footer calls uncompressed is still encoded: a value that is repeated a million times stands
there once. So a sample of the first rows is looked at, too, and the larger estimate counts.

Invariants:
- Nothing here fails: a file that cannot be looked at counts by its size, and Spark says what is
  wrong with it.
- A file is looked at once for as long as it waits; a few at the same time, a bounded part of each.
- Rows are only cut where pyarrow and Spark read the same values; otherwise a file is read whole.
"""

from __future__ import annotations

import bz2
import io
import logging
import re
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from holdfast.connectors.files.frames import partition_columns
from holdfast.connectors.files.pieces import FileFacts
from holdfast.spark.ddl import split_top
from holdfast.storage import Entry, StorageReader

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("holdfast.pipeline")
_THREADS = 8
_SAMPLE_ROWS = 512
_SAMPLE_BYTES = 64 * 1024
_EXPANSION = 4
_CACHED_MAX = 10_000
_ARROW = {
    "boolean": "bool", "tinyint": "int8", "byte": "int8", "smallint": "int16", "short": "int16",
    "int": "int32", "integer": "int32", "bigint": "int64", "long": "int64", "float": "float",
    "real": "float", "double": "double", "string": "string", "binary": "binary",
    "date": "date32[day]", "timestamp": "timestamp[us, tz=UTC]", "timestamp_ntz": "timestamp[us]",
}  # fmt: skip
_FIELD = re.compile(
    r"\s*(?:`((?:[^`]|``)+)`|(\w+))\s*:?\s+(.+?)(?:\s+not\s+null)?\s*", re.IGNORECASE | re.DOTALL
)
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)", re.IGNORECASE)


def same_types(schema: str) -> dict[str, str] | None:
    """Column and Arrow type, where Spark and pyarrow read the same; None if one may differ."""
    found = {}
    for part in split_top(schema):
        match = _FIELD.fullmatch(part)
        if match is None:
            return None
        name = match.group(2) or match.group(1).replace("``", "`")
        kind = match.group(3).strip().lower()
        decimal = _DECIMAL.fullmatch(kind)
        arrow = f"decimal128({decimal[1]}, {decimal[2]})" if decimal else _ARROW.get(kind)
        if arrow is None:
            return None
        found[name] = arrow
    return found


class SizeProbe:
    """Looks at files of one source."""

    def __init__(
        self,
        storage: StorageReader,
        root: str | None,
        *,
        format: str,  # noqa: A002 - everybody's name for it
        schema: str,
        options: Mapping[str, str],
        cuts: bool,
    ) -> None:
        """root: on local disk; None elsewhere. cuts: whether files may take several epochs."""
        self._storage, self._root, self._format = storage, root, format
        self._types = same_types(schema) if cuts and not options else None
        self._known: dict[Entry, FileFacts] = {}

    def facts(self, entries: Sequence[Entry]) -> list[FileFacts]:
        """How large each of these files is."""
        missing = [entry for entry in entries if entry not in self._known]
        if len(self._known) + len(missing) > _CACHED_MAX:
            self._known = {e: f for e, f in self._known.items() if e in set(entries)}
        if len(missing) == 1:
            self._known[missing[0]] = self._look(missing[0])
        elif missing:
            with ThreadPoolExecutor(min(_THREADS, len(missing))) as pool:
                self._known.update(zip(missing, pool.map(self._look, missing), strict=True))
        return [self._known[entry] for entry in entries]

    def _look(self, entry: Entry) -> FileFacts:
        import pyarrow as pa

        try:
            look = self._footer if self._format == "parquet" else self._text
            return look(entry)
        except (OSError, EOFError, ValueError, zlib.error, pa.ArrowException) as error:
            log.debug("the size of %s is not known: %s", entry.path, error)
        except Exception:  # also storages fail here; reading it tells why
            log.debug("the size of %s is not known", entry.path, exc_info=True)
        return FileFacts(None, entry.size * _EXPANSION)

    # Parquet

    def _footer(self, entry: Entry) -> FileFacts:
        import pyarrow.parquet as pq

        source = opened(self._storage, self._root, entry.path, entry.size)
        with pq.ParquetFile(source, buffer_size=_SAMPLE_BYTES, pre_buffer=False) as file:
            meta = file.metadata
            groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
            size = sum(group.total_byte_size for group in groups)
            if meta.num_rows:
                sample = next(file.iter_batches(_SAMPLE_ROWS, row_groups=_filled(groups)), None)
                if sample is not None and sample.num_rows:
                    unpacked = _unpacked_bytes(sample) * meta.num_rows // sample.num_rows
                    size = max(size, unpacked)
            bounds = None
            if not partition_columns(entry.path) and self._agree(file.schema_arrow, meta):
                ends = [0]
                for group in groups:
                    ends.append(ends[-1] + group.num_rows)
                bounds = tuple(ends[1:-1])
            return FileFacts(meta.num_rows, size, bounds)

    def _agree(self, schema: pa.Schema, meta: Any) -> bool:
        """Whether pyarrow reads the declared columns of a file as Spark does."""
        if self._types is None:
            return False
        lowered = [name.lower() for name in schema.names]
        for name, kind in self._types.items():
            if name not in schema.names or lowered.count(name.lower()) != 1:
                return False
            if _plain(schema.field(name).type) != kind:
                return False
        keys = meta.metadata or {}
        if any(key.startswith(b"org.apache.spark.legacy") for key in keys):
            return False
        version = keys.get(b"org.apache.spark.version", b"4")
        return version[:1] >= b"3" and self._recent(meta)

    def _recent(self, meta: Any) -> bool:
        """Whether no date lies so far back that calendars differ."""
        import datetime as dt

        stamps = {
            name
            for name, kind in (self._types or {}).items()
            if kind.startswith(("date", "timestamp"))
        }
        old = dt.date(1900, 1, 1)
        for number in range(meta.num_row_groups if stamps else 0):
            group = meta.row_group(number)
            for place in range(group.num_columns):
                column = group.column(place)
                if column.path_in_schema not in stamps:
                    continue
                facts = column.statistics
                if facts is None or not facts.has_min_max:
                    if facts is not None and facts.null_count == group.num_rows:
                        continue
                    return False
                least = facts.min.date() if isinstance(facts.min, dt.datetime) else facts.min
                if column.physical_type == "INT96" or least < old:
                    return False
        return True

    # CSV and JSON

    def _text(self, entry: Entry) -> FileFacts:
        if self._root is None:
            raw = self._storage.get_range(entry.path, 0, min(entry.size, _SAMPLE_BYTES))
        else:
            with open(f"{self._root}/{entry.path}", "rb") as file:
                raw = file.read(_SAMPLE_BYTES)
        text, expansion = _unpacked(raw, entry.path)
        lines = text.count(b"\n") or 1
        size = int(entry.size * expansion)
        rows = max(1, size * lines // max(1, len(text))) if size else 0
        # Numbers get shorter, texts get offsets: a row in memory is about as long as its line.
        return FileFacts(rows or None, size + 8 * rows)


def _unpacked(raw: bytes, path: str) -> tuple[bytes, float]:
    """The beginning of a text file, and how much longer it is than what was read of it."""
    name = path.lower()
    if name.endswith((".gz", ".gzip", ".deflate")):
        inflate = zlib.decompressobj(47)
        text = inflate.decompress(raw, 64 * _SAMPLE_BYTES)
        used = len(raw) - len(inflate.unconsumed_tail)
        return text, len(text) / max(1, used)
    if name.endswith(".bz2"):
        text = bz2.BZ2Decompressor().decompress(raw)
        return text, max(float(_EXPANSION), len(text) / max(1, len(raw)))
    if name.endswith((".zst", ".zstd", ".lz4", ".snappy", ".xz")):
        return b"\n" * (len(raw) // 16), 2.0 * _EXPANSION
    return raw, 1.0


def _unpacked_bytes(rows: pa.RecordBatch) -> int:
    """Bytes of rows with every value in its place: a file may ask for dictionaries."""
    import pyarrow as pa

    total = 0
    for column in rows.columns:
        coded: Any = column
        plain = coded.dictionary_decode() if pa.types.is_dictionary(column.type) else coded
        total += int(plain.nbytes)
    return total


def _filled(groups: Sequence[Any]) -> list[int]:
    return [number for number, group in enumerate(groups) if group.num_rows][:1]


def _plain(kind: Any) -> str:
    """An Arrow type as text, without how its values are laid out and in which zone they show."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string"
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return "binary"
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        kind = pa.timestamp(kind.unit, tz="UTC")
    return str(kind)


def opened(storage: StorageReader, root: str | None, path: str, size: int) -> Any:
    """A file for pyarrow: on local disk by its name, elsewhere by ranges."""
    if root is not None:
        return f"{root}/{path}"
    return io.BufferedReader(_RangeFile(storage, path, size), 1 << 20)


class _RangeFile(io.RawIOBase):
    """An object of a storage as a file that can be read anywhere."""

    def __init__(self, storage: StorageReader, path: str, size: int) -> None:
        self._storage, self._path, self._size, self._place = storage, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._place)
        if length <= 0:
            return 0
        data = self._storage.get_range(self._path, self._place, length)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

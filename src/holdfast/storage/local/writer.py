"""What local disk hands out: files being written, and a lock that is held."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, StorageError
from holdfast.storage.base import WholeOrNothing
from holdfast.storage.local.errors import translate

if TYPE_CHECKING:
    from holdfast.storage.local.disk import Disk
    from holdfast.storage.local.storage import LocalStorage


class LocalWriter(WholeOrNothing, io.RawIOBase):
    """A new file being written, buffered by a mebibyte."""

    _BUFFER_BYTES = 1 << 20

    def __init__(self, storage: LocalStorage, target: str, path: str, descriptor: int) -> None:
        """Take over an open descriptor."""
        super().__init__()
        self._storage = storage
        self._target = target
        self._path = path
        self._descriptor: int | None = descriptor
        self._buffer = bytearray()
        self._size = 0

    def writable(self) -> bool:
        """A writer writes."""
        return True

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        """Append bytes."""
        if self._descriptor is None:
            raise StorageError("writer is closed", kind="closed", path=self._path)
        view = memoryview(data).cast("B")
        self._size += len(view)
        if len(view) >= self._BUFFER_BYTES:
            self._flush_buffer()
            self._write(view)
        else:
            self._buffer += view
            if len(self._buffer) >= self._BUFFER_BYTES:
                self._flush_buffer()
        return len(view)

    def _flush_buffer(self) -> None:
        if self._buffer:
            self._write(self._buffer)
            self._buffer = bytearray()

    def _write(self, data: bytearray | memoryview) -> None:
        if self._descriptor is None:
            raise StorageError("writer is closed", kind="closed", path=self._path)
        try:
            self._storage._disk.write(self._descriptor, data)  # noqa: SLF001 - one module
        except OSError as error:
            raise translate(error, self._path, took_effect=None) from error

    def close(self) -> None:
        """Make the object whole."""
        if self._descriptor is None:
            return
        try:
            self._flush_buffer()
        except HoldfastError:
            self.abort()
            raise
        descriptor, self._descriptor = self._descriptor, None
        try:
            self._storage._disk.close(descriptor)  # noqa: SLF001
        except OSError as error:  # network file systems report a failed write only here
            self._storage._discard(self._target)  # noqa: SLF001
            raise translate(error, self._path, took_effect=None) from error
        self._storage._count(self._size)  # noqa: SLF001
        super().close()

    def abort(self) -> None:
        """Remove what was written."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        self._buffer = bytearray()
        with contextlib.suppress(OSError):
            self._storage._disk.close(descriptor)  # noqa: SLF001
        self._storage._discard(self._target)  # noqa: SLF001
        super().close()

    def __del__(self) -> None:
        """A writer that was forgotten leaves nothing behind."""
        if getattr(self, "_descriptor", None) is not None:
            self.abort()


class DiskFile(io.RawIOBase):
    """A new file at a path, for those who write whole files: Parquet's writers.

    Leaving the context makes the content durable and closes it; a failure only closes it.
    """

    _BUFFER_BYTES = 1 << 20

    def __init__(self, disk: Disk, path: str) -> None:
        """Create it; it must not exist."""
        super().__init__()
        self._disk, self._buffer, self.size = disk, bytearray(), 0
        self._descriptor: int | None = disk.open_new(path)

    def writable(self) -> bool:
        """A writer writes."""
        return True

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        """Append bytes."""
        view = memoryview(data).cast("B")
        self.size += len(view)
        self._buffer += view
        if len(self._buffer) >= self._BUFFER_BYTES:
            self._drain()
        return len(view)

    def _drain(self) -> None:
        if self._buffer and self._descriptor is not None:
            self._disk.write(self._descriptor, self._buffer)
            self._buffer = bytearray()

    def sync(self) -> None:
        """Make everything written so far durable."""
        self._drain()
        if self._descriptor is not None:
            self._disk.sync(self._descriptor)

    def close(self) -> None:
        """Close it, with what was not written yet given up."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            self._disk.close(descriptor)
        super().close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.sync()
        finally:
            self.close()


class LocalLease:
    """An flock that is held."""

    def __init__(self, descriptor: int) -> None:
        """Keep the descriptor that carries the lock."""
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let others in."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None


def lock_holder(inode: int) -> int | None:
    """The process that holds a lock, where the system tells."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if "FLOCK" in fields and any(field.endswith(f":{inode}") for field in fields):
            pid = next((int(field) for field in fields[4:5] if field.isdecimal()), None)
            if pid:
                return pid
    return None

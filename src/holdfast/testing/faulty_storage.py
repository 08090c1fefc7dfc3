"""Faulty storage: the n-th operation fails, before or after it took effect.

Invariants:
- A fault says the truth about itself and no more: what failed before it took effect says so,
  what failed afterwards (or whose reply was lost) says that nobody knows.
- Operations are counted in the order in which they are made; the same run meets the same fault.
- Nothing fails that was not asked for: after `times` faults the storage is sound again.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from holdfast.clock import Clock, ManualClock
from holdfast.errors import InvalidInputError, StorageError
from holdfast.storage.base import Storage
from holdfast.storage.local.disk import Disk
from holdfast.testing.wrapped_storage import OPERATIONS, WrappedStorage

FaultKind = Literal["enospc", "eio", "lost", "slow"]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong.

    kind: `enospc` disk full, `eio` disk broken, `lost` the reply never came, `slow` it only takes
        its time. after: the operation takes effect before it fails. nth: which of the counted
        operations, from 1; 0 is none, only count. operations: which are counted, None for all.
    times: how many in a row fail, beginning with the n-th. slow_ms: how long `slow` is.
    """

    kind: FaultKind
    nth: int
    after: bool = False
    operations: Collection[str] | None = None
    times: int = 1
    slow_ms: int = 5_000

    def __post_init__(self) -> None:
        """Refuse what could never fire."""
        unknown = sorted(set(self.operations or ()) - set(OPERATIONS))
        if unknown or self.nth < 0 or self.times < 1:
            raise InvalidInputError(
                "this fault can never happen",
                kind="invalid_fault",
                operations=",".join(unknown),
                nth=self.nth,
                times=self.times,
                remedy=f"operations are {', '.join(OPERATIONS)}",
            )

    def error(self, operation: str, path: str) -> StorageError:
        """The error that a real storage would raise."""
        known = None if self.after else False
        facts: dict[str, Any] = {"path": path, "operation": operation, "injected": True}
        if self.kind == "enospc":
            # Where a write may have happened, trying again proves nothing about it.
            return StorageError(
                os.strerror(errno.ENOSPC),
                kind="disk_full",
                retryable=not self.after,
                took_effect=known,
                remedy="free some space, then try again",
                **facts,
            )
        if self.kind == "eio":
            return StorageError(
                os.strerror(errno.EIO),
                kind="io_error",
                took_effect=known,
                remedy="the disk reports an error: look at the system log",
                **facts,
            )
        return StorageError(
            "no answer",
            kind="unreachable",
            retryable=True,
            took_effect=None,
            remedy="check the network, then try again",
            **facts,
        )


class FaultyDisk(Disk):
    """Local disk in which the n-th system call fails; nothing is really synced.

    Only `enospc` and `eio`, which is what disks say; operations are the names of `Disk`'s methods.
    """

    def __init__(self, *, kind: Literal["enospc", "eio"], nth: int, after: bool = False) -> None:
        """Begin counting."""
        self._errno = errno.ENOSPC if kind == "enospc" else errno.EIO
        self._nth = nth
        self._after = after
        self.seen = 0
        self.fired: list[tuple[str, str]] = []

    def _around(self, operation: str, subject: object, call: Callable[[], T]) -> T:
        self.seen += 1
        if self.seen != self._nth:
            return call()
        self.fired.append((operation, str(subject)))
        if self._after:
            answer = call()
            if operation.startswith("open"):
                super().close(answer)  # type: ignore[arg-type]
        elif operation == "close":
            call()  # a descriptor is gone even when its close reports an error
        raise OSError(self._errno, os.strerror(self._errno))

    def open_new(self, path: str) -> int:
        """Create exclusively."""
        return self._around("open_new", path, lambda: super(FaultyDisk, self).open_new(path))

    def open_read(self, path: str) -> int:
        """Open for reading."""
        return self._around("open_read", path, lambda: super(FaultyDisk, self).open_read(path))

    def write(self, descriptor: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of it."""
        self._around("write", descriptor, lambda: super(FaultyDisk, self).write(descriptor, data))

    def sync(self, descriptor: int) -> None:
        """Count, do not sync."""
        self._around("sync", descriptor, _nothing)

    def open_write(self, path: str) -> int:
        """Open for writing in place."""
        return self._around("open_write", path, lambda: super(FaultyDisk, self).open_write(path))

    def write_at(
        self, descriptor: int, parts: Sequence[bytes | bytearray | memoryview], offset: int
    ) -> int:
        """Write at an offset."""
        return self._around(
            "write_at",
            descriptor,
            lambda: super(FaultyDisk, self).write_at(descriptor, parts, offset),
        )

    def truncate(self, descriptor: int, size: int) -> None:
        """Shorten a file."""
        self._around(
            "truncate", descriptor, lambda: super(FaultyDisk, self).truncate(descriptor, size)
        )

    def sync_data(self, descriptor: int) -> None:
        """Count, do not sync."""
        self._around("sync_data", descriptor, _nothing)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        self._around("close", descriptor, lambda: super(FaultyDisk, self).close(descriptor))

    def sync_dir(self, path: str) -> None:
        """Count, do not sync."""
        self._around("sync_dir", path, _nothing)

    def sync_filesystem(self, descriptor: int) -> None:
        """Count, do not sync."""
        self._around("sync_filesystem", descriptor, _nothing)

    def link_new(self, source: str, target: str) -> None:
        """Give a file a second name."""
        self._around("link_new", target, lambda: super(FaultyDisk, self).link_new(source, target))

    def rename(self, source: str, target: str) -> None:
        """Replace atomically."""
        self._around("rename", target, lambda: super(FaultyDisk, self).rename(source, target))

    def exchange(self, one: str, other: str) -> None:
        """Swap two names."""
        self._around("exchange", other, lambda: super(FaultyDisk, self).exchange(one, other))

    def symlink(self, target: str, path: str) -> None:
        """Make a symbolic link."""
        self._around("symlink", path, lambda: super(FaultyDisk, self).symlink(target, path))

    def unlink(self, path: str) -> None:
        """Remove a name."""
        self._around("unlink", path, lambda: super(FaultyDisk, self).unlink(path))

    def make_dir(self, path: str) -> None:
        """Create one directory."""
        self._around("make_dir", path, lambda: super(FaultyDisk, self).make_dir(path))

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        self._around("remove_dir", path, lambda: super(FaultyDisk, self).remove_dir(path))


def _nothing() -> None:
    return


class FaultyStorage(WrappedStorage):
    """A storage in which exactly the given fault happens."""

    def __init__(self, inner: Storage, fault: Fault, *, clock: Clock | None = None) -> None:
        """Begin counting; `clock` is what `slow` waits on."""
        super().__init__(inner)
        self.fault = fault
        self.seen = 0
        self.fired: list[tuple[str, str]] = []
        self._clock = clock or ManualClock()
        self._lock = threading.Lock()

    def around(self, operation: str, path: str, call: Callable[[], T], size: int = 0) -> T:
        """Fail if this is the one."""
        del size
        fault = self.fault
        if not self._due(operation, path):
            return call()
        if fault.kind == "slow":
            self._clock.sleep_ms(fault.slow_ms)
            return call()
        if fault.after:
            call()
        raise fault.error(operation, path)

    def _due(self, operation: str, path: str) -> bool:
        fault = self.fault
        with self._lock:
            if fault.operations is not None and operation not in fault.operations:
                return False
            self.seen += 1
            if not fault.nth or not fault.nth <= self.seen < fault.nth + fault.times:
                return False
            self.fired.append((operation, path))
            return True

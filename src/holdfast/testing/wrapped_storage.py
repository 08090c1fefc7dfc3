"""Storages around storages: one place that every operation passes.

Invariants:
- Every operation of the inner storage, and every write and close of its writers, goes through
  `around` exactly once, under a stable name (`OPERATIONS`).
- A removal of many objects passes as many single removals, so that it can be cut in the middle.
- `local_path` answers None, so that no read slips past the wrapper.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from holdfast.storage.base import Entry, Lease, ObjectWriter, Storage, WholeOrNothing

OPERATIONS = (
    "barrier", "close", "create", "delete", "exclusive", "exists", "get", "get_range", "list",
    "put", "put_new", "stat", "usage_bytes", "write",
)  # fmt: skip
WRITES = frozenset({"barrier", "close", "create", "delete", "put", "put_new", "write"})
T = TypeVar("T")
_Entries = list[Entry]


class WrappedStorage:
    """Passes everything on; subclasses say what happens around each operation."""

    def __init__(self, inner: Storage) -> None:
        """Wrap a storage."""
        self.inner = inner

    def around(self, operation: str, path: str, call: Callable[[], T], size: int = 0) -> T:
        """Run one operation. `size` is the number of bytes that it sends."""
        del operation, path, size
        return call()

    @property
    def url(self) -> str:
        """The inner storage's address."""
        return self.inner.url

    @property
    def parallel(self) -> int:
        """One at a time: the n-th operation must be the same one in every run."""
        return 1

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        """The whole object."""
        return self.around("get", path, lambda: self.inner.get(path, bytes_max=bytes_max))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Exactly that range."""
        return self.around("get_range", path, lambda: self.inner.get_range(path, start, length))

    def stat(self, path: str) -> Entry:
        """Size and time."""
        return self.around("stat", path, lambda: self.inner.stat(path))

    def exists(self, path: str) -> bool:
        """Whether the object is there."""
        return self.around("exists", path, lambda: self.inner.exists(path))

    def list(self, prefix: str) -> Iterator[Entry]:
        """All objects below a prefix; listed whole, so that it counts as one operation."""
        found: _Entries = self.around("list", prefix, lambda: [*self.inner.list(prefix)])
        return iter(found)

    def local_path(self, path: str) -> Path | None:
        """None: reads must pass through here."""
        self.inner.local_path(path)
        return None

    def usage_bytes(self) -> int:
        """Bytes stored."""
        return self.around("usage_bytes", "", self.inner.usage_bytes)

    def create(self, path: str) -> WrappedWriter:
        """Begin a new object."""
        return WrappedWriter(
            self, path, self.around("create", path, lambda: self.inner.create(path))
        )

    def put_new(self, path: str, data: bytes) -> None:
        """Put-if-absent."""
        self.around("put_new", path, lambda: self.inner.put_new(path, data), len(data))

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Replace atomically."""
        self.around("put", path, lambda: self.inner.put(path, data, durable=durable), len(data))

    def barrier(self, paths: Sequence[str]) -> None:
        """Make objects durable."""
        self.around("barrier", paths[-1] if paths else "", lambda: self.inner.barrier(paths))

    def delete(self, path: str) -> None:
        """Remove one object."""
        self.around("delete", path, lambda: self.inner.delete(path))

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove objects, one operation each."""
        for path in paths:
            self.around("delete", path, lambda path=path: self.inner.delete_many([path]))  # type: ignore[misc]

    def exclusive(self, path: str, owner: str) -> Lease | None:
        """Exclusive use."""
        return self.around("exclusive", path, lambda: self.inner.exclusive(path, owner))

    def close(self) -> None:
        """Close the inner storage."""
        self.inner.close()


class WrappedWriter(WholeOrNothing):
    """A writer whose writes and close pass through its storage's `around`."""

    def __init__(self, storage: WrappedStorage, path: str, inner: ObjectWriter) -> None:
        """Wrap a writer."""
        self._storage = storage
        self._path = path
        self._inner = inner

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes."""
        return self._storage.around(
            "write", self._path, lambda: self._inner.write(data), memoryview(data).nbytes
        )

    def close(self) -> None:
        """Make the object whole."""
        self._storage.around("close", self._path, self._inner.close)

    def abort(self) -> None:
        """Give up; not an operation that can fail, since nothing depends on it."""
        self._inner.abort()


class CountingStorage(WrappedStorage):
    """Counts operations and bytes: what a commit costs in requests and in traffic."""

    def __init__(self, inner: Storage) -> None:
        """Begin at zero."""
        super().__init__(inner)
        self.operations: Counter[str] = Counter()
        self.bytes_sent = 0
        self.bytes_received = 0
        self._lock = threading.Lock()

    def around(self, operation: str, path: str, call: Callable[[], T], size: int = 0) -> T:
        """Count, then run."""
        del path
        answer = call()
        with self._lock:
            self.operations[operation] += 1
            self.bytes_sent += size
            if isinstance(answer, bytes):
                self.bytes_received += len(answer)
        return answer

    @property
    def requests(self) -> int:
        """Operations that an object store charges for: a writer's parts and barriers do not."""
        free = {"barrier", "create", "exclusive", "write"}
        return sum(count for name, count in self.operations.items() if name not in free)

    def reset(self) -> None:
        """Back to zero."""
        with self._lock:
            self.operations.clear()
            self.bytes_sent = self.bytes_received = 0


Moment = Literal["before", "after"]
Hook = Callable[[Moment, str, str], None]


class HookedStorage(WrappedStorage):
    """Calls a hook before and after every operation: to stop a writer there and run another one."""

    def __init__(self, inner: Storage, hook: Hook) -> None:
        """`hook` is given the moment, the operation and the path."""
        super().__init__(inner)
        self._hook = hook

    def around(self, operation: str, path: str, call: Callable[[], T], size: int = 0) -> T:
        """Hook, run, hook."""
        del size
        self._hook("before", operation, path)
        answer = call()
        self._hook("after", operation, path)
        return answer

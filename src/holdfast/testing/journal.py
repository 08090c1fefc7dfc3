"""Operating systems that fail on purpose, for tests of the journal and of what is built on it.

- `FaultyFiles` fails the k-th mutating call, before or after it took effect, or writes short.
- `PowerCutFiles` knows what was made durable, and builds the directory that a power cut leaves.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from typing import TYPE_CHECKING, Any

from holdfast.journal.files import JournalFiles, storage_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECTOR_BYTES = 512


class FaultyFiles(JournalFiles):
    """Counts mutating calls and lets the k-th one fail.

    Modes: `before` (EIO, nothing happened), `after` (it happened, then EIO), `no_space` (ENOSPC,
    nothing happened), `torn` (half a write, then ENOSPC), `short` (half a write, no error).
    """

    MODES = ("before", "after", "no_space", "torn", "short")

    def __init__(self, k: int | None = None, mode: str = "before") -> None:
        """Fail call number `k` (from 0); None only counts."""
        super().__init__()
        self.k = k
        self.mode = mode
        self.calls: list[str] = []
        self.fired = False

    def _do(self, operation: str, path: Path, call: Callable[..., Any], *args: Any) -> Any:
        number = len(self.calls)
        self.calls.append(operation)
        if number != self.k:
            return super()._do(operation, path, call, *args)
        self.fired = True
        if self.mode in ("torn", "short") and operation == "write":
            fd, views, offset = args
            half = memoryview(b"".join(views))[: max(sum(map(len, views)) // 2, 1)]
            wrote = super()._do(operation, path, self._disk.write_at, fd, [half], offset)
            if self.mode == "short":
                return wrote
        elif self.mode == "short":
            return super()._do(operation, path, call, *args)
        elif self.mode == "after":
            super()._do(operation, path, call, *args)
        code = errno.ENOSPC if self.mode in ("no_space", "torn") else errno.EIO
        raise storage_error(OSError(code, os.strerror(code)), operation, path)


class PowerCutFiles(JournalFiles):
    """Remembers which bytes and which names were made durable."""

    def __init__(self, root: Path) -> None:
        """Watch the tree below `root`; the root itself counts as durable."""
        super().__init__()
        self.root = root
        self.content: dict[int, bytes] = {}
        self.names: dict[str, dict[str, int]] = {}
        self.calls = 0
        self._lock = threading.RLock()
        self.on_call: Callable[[int], None] | None = None

    def _do(self, operation: str, path: Path, call: Callable[..., Any], *args: Any) -> Any:
        with self._lock:
            return self._watched(operation, path, call, *args)

    def _watched(self, operation: str, path: Path, call: Callable[..., Any], *args: Any) -> Any:
        if self.on_call is not None:
            self.on_call(self.calls)
        self.calls += 1
        result = super()._do(operation, path, call, *args)
        if operation == "create":
            # The file system may give a new file an old file's number.
            self.content.pop(os.fstat(result).st_ino, None)
        elif operation in ("fsync", "fdatasync"):
            found = os.fstat(args[0])
            self.content[found.st_ino] = os.pread(args[0], found.st_size, 0)
        elif operation == "fsync_directory":
            self.names[str(path)] = {e.name: e.inode() for e in os.scandir(path)}
        return result

    def power_cut(self, target: Path, seed: int) -> None:
        """Build below `target` what a power cut now would leave; unsynced sectors by chance."""
        self._directory(self.root, target, random.Random(seed))

    def _directory(self, source: Path, target: Path, chance: random.Random) -> None:
        target.mkdir(parents=True, exist_ok=True)
        durable = self.names.get(str(source), {})
        live = {entry.name: entry for entry in os.scandir(source)} if source.is_dir() else {}
        for name in sorted({*durable, *live}):
            entry = live.get(name)
            if entry is not None and entry.is_dir():
                self._directory(source / name, target / name, chance)
                continue
            old, new = durable.get(name), entry.inode() if entry is not None else None
            inode = new if old == new or chance.random() < 0.5 else old
            if inode is None:
                continue
            now = (source / name).read_bytes() if inode == new else self.content.get(inode, b"")
            (target / name).write_bytes(self._mix(self.content.get(inode, b""), now, chance))

    def _mix(self, durable: bytes, now: bytes, chance: random.Random) -> bytes:
        """Durable bytes stay; of the others every sector is there, zero, or cut off."""
        if now[: len(durable)] != durable and len(now) >= len(durable):
            return now if chance.random() < 0.5 else durable
        end = chance.randint(min(len(durable), len(now)), max(len(now), len(durable)))
        mixed = bytearray(durable)
        for at in range(len(durable), end, SECTOR_BYTES):
            part = now[at : min(at + SECTOR_BYTES, end)]
            mixed += part if chance.random() < 0.7 else bytes(len(part))
        return bytes(mixed)

"""A reserve on local disk: bytes that are given back when a full disk must be cleared.

Invariants:
- What only removes must be able to write the record that says so: on a full disk the reserve is
  released for it. A commit never gets it.
- It is no part of a store: anybody may delete it, and it is made again when there is room.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from holdfast.storage.base import Storage

RESERVE = ".hf-reserve"
_BYTES = 256 * 1024  # an open record and a drop record of some thousand checkpoints


class Reserve:
    """The reserve of one root."""

    def __init__(self, root: str, count: Callable[[int], None]) -> None:
        """Nothing is made before `fill`; `count` is told how many bytes came or went."""
        self._path = Path(root) / RESERVE
        self._count = count

    def fill(self) -> None:
        """Make it, where it is not there and the disk has room; a torn one is made again."""
        with contextlib.suppress(OSError):
            if os.lstat(self._path).st_size >= _BYTES:
                return
            self.release()  # a crash or a power cut left less than was promised
        try:
            # Random bytes: a file system that compresses would keep nothing for zeros.
            with self._path.open("xb") as file:
                file.write(os.urandom(_BYTES))
        except FileExistsError:
            return
        except OSError:
            with contextlib.suppress(OSError):
                self._path.unlink()
        else:
            self._count(_BYTES)

    def release(self) -> bool:
        """Give the bytes back; False if there were none."""
        with contextlib.suppress(OSError):
            size = os.lstat(self._path).st_size
            self._path.unlink()
            self._count(-size)
            return size > 0
        return False


def fill_reserve(storage: Storage) -> None:
    """Keep some bytes back, where the storage is a disk."""
    reserve: Reserve | None = getattr(storage, "reserve", None)
    if reserve is not None:
        reserve.fill()


def release_reserve(storage: Storage) -> bool:
    """Make room for a record that lets something go; False if there is none to make."""
    reserve: Reserve | None = getattr(storage, "reserve", None)
    return reserve is not None and reserve.release()

"""Folding a changelog: old epochs in few directories with large files, swapped in at once.

A folded directory `hf_epoch=<last>` holds the rows of all epochs from its first to its last, as
they were published. Everything else is hard-linked into a new tree next to the output, and
`<path>` becomes a link to that tree, in one rename or exchange: a reader that opens the
directory finds all rows of all epochs, from the old tree or from the new one.

Invariants:
- Only epochs that no retained checkpoint can go back behind are folded.
- The new tree, with its owner record, is durable before the link points to it.
- The old tree lives for a grace period: readers that hold its files or its real path finish.
- Nothing stages rows while the link moves: the epoch loop folds between two jobs.
- What is more than `driver_bytes` is rewritten by the tasks of one Spark job.

Decision: docs/adr/0114-changelogs-compacted-by-swapping-a-link.md.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.connectors.locations import versions_of
from holdfast.connectors.parquet.fold_files import FoldAnswer, FoldTask, rewrite_files
from holdfast.connectors.task_pool import run_pieces
from holdfast.errors import RefusedError, StorageError
from holdfast.failpoints import failpoint
from holdfast.format.owner import OWNER, Owner, owner_bytes
from holdfast.ids import RandomIds
from holdfast.storage.local.disk import current_disk
from holdfast.storage.local.writer import DiskFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("holdfast.pipeline")

GRACE_MS = 600_000
TARGET_BYTES = 128 << 20
_ATTEMPTS = "attempts-"
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class Directory:
    """One directory of a changelog: the epochs that it holds, and its size."""

    first: int
    last: int
    bytes: int = 0

    @property
    def span(self) -> int:
        """How many epochs it stands for."""
        return self.last - self.first + 1


def plan_folds(
    directories: Sequence[Directory], limit: int, *, every: int | None, target_bytes: int
) -> list[list[Directory]]:
    """Which neighbours become one directory. Pure.

    limit: the newest epoch that may be folded. every: fold when so many neighbours stand for
    about the same number of epochs, so that a row is rewritten once for each power of `every`;
    None: all neighbours, up to the size of a file.
    """
    groups: list[list[Directory]] = []
    run: list[Directory] = []

    def close() -> None:
        if len(run) >= (every or 2):
            groups.append([*run])
        run.clear()

    for entry in sorted(directories, key=lambda d: d.last):
        closed = entry.last > limit or entry.bytes >= target_bytes
        other = every is not None and run and _level(run[0], every) != _level(entry, every)
        full = every is None and sum(d.bytes for d in run) + entry.bytes > target_bytes
        if closed or other or full:
            close()
        if not closed:
            run.append(entry)
    close()
    return groups


def _level(directory: Directory, every: int) -> int:
    level, span = 0, directory.span
    while span >= every:
        level, span = level + 1, span // every
    return level


class Folder:
    """Folds one changelog on local disk."""

    def __init__(
        self,
        path: Path,
        *,
        grace_ms: int = GRACE_MS,
        clock: Clock | None = None,
        spark: SparkSession | None = None,
        driver_bytes: int | None = None,
    ) -> None:
        """Nothing is read yet. driver_bytes: None: this process does it, however much it is."""
        self._path = path
        self._versions = versions_of(path)
        self._fresh = path.with_name(f".{path.name}.link")
        self._grace_ms, self._clock = grace_ms, clock or SystemClock()
        self._disk = current_disk()
        self._spark, self._driver_bytes = spark, driver_bytes

    def begin(self) -> None:
        """Let an output that is not there yet be a link: then no directory is ever exchanged."""
        if os.path.lexists(self._path):
            return
        tree = self._versions / f"fold-{self._clock.wall_us():020d}"
        self._disk.make_dirs(str(tree))
        self._disk.sync_dir(str(self._versions))
        self._disk.symlink(f"{self._versions.name}/{tree.name}", str(self._path))
        self._disk.sync_dir(str(self._path.parent))

    def directories(self, epochs: Iterable[int], owner: Owner) -> list[Directory]:
        """What lies there."""
        firsts = {last: first for first, last in owner.folds}
        found = []
        for epoch in epochs:
            files = os.scandir(self._path / f"hf_epoch={epoch}")
            size = sum(file.stat().st_size for file in files)
            found.append(Directory(firsts.get(epoch, epoch), epoch, size))
        return found

    def fold(self, groups: Sequence[Sequence[Directory]], owner: Owner, target_bytes: int) -> None:
        """Make the new tree and swap it in. owner: the record as it will be."""
        self.clean()
        tree = self._versions / f"fold-{self._clock.wall_us():020d}"
        self._disk.make_dirs(str(tree))
        folded = {entry.last for group in groups for entry in group}
        try:
            self._link_rest(tree, folded)
            attempts = self._attempted(groups, target_bytes)
            failpoint("fold.after_attempts")
            for number, group in enumerate(groups):
                target = tree / f"hf_epoch={group[-1].last}"
                self._disk.make_dir(str(target))
                if attempts is None:
                    rewrite_files(self._disk, self._files(group), str(target), target_bytes)
                for path in attempts[number] if attempts is not None else ():
                    self._disk.rename(path, f"{target}/{os.path.basename(path)}")
                self._disk.sync_dir(str(target))
                failpoint("fold.after_directory")
            self._remove_attempts()
            with DiskFile(self._disk, str(tree / OWNER)) as file:
                file.write(owner_bytes(owner))
            self._disk.sync_dir(str(tree))
            self._disk.sync_dir(str(self._versions))
            failpoint("fold.after_tree")
            self._swap(tree)
        except OSError as error:
            raise StorageError(
                "the output cannot be folded",
                kind="fold_failed",
                path=str(self._path),
                reason=str(error)[:200],
                retryable=True,
                remedy="the output is as it was; free space or repair the disk, and fold again",
            ) from error
        failpoint("fold.after_swap")

    def _attempted(
        self, groups: Sequence[Sequence[Directory]], target_bytes: int
    ) -> list[list[str]] | None:
        """By group, what tasks have written; None where this process does it."""
        sizes = [sum(entry.bytes for entry in group) for group in groups]
        if self._driver_bytes is None or sum(sizes) <= self._driver_bytes:
            return None
        attempts = self._versions / f"{_ATTEMPTS}{RandomIds().token()}"
        self._disk.make_dirs(str(attempts))
        pieces = [
            (size, msgspec.json.encode([str(file) for file in self._files(group)]))
            for size, group in zip(sizes, groups, strict=True)
        ]
        task = FoldTask(str(attempts), target_bytes)
        answers = run_pieces(
            self._spark, task, pieces, description=f"holdfast: compact {self._path.name}"
        )
        found = [msgspec.json.decode(answer, type=FoldAnswer).names for answer in answers]
        if None in found:
            log.warning("tasks do not reach %s, so the driver compacts it alone", self._path)
            return None
        return [[f"{attempts}/{name}" for name in names or ()] for names in found]

    def _remove_attempts(self) -> None:
        for child in self._versions.iterdir():
            if child.name.startswith(_ATTEMPTS):
                self._disk.remove_tree(str(child))

    def _files(self, group: Sequence[Directory]) -> list[Path]:
        directories = [self._path / f"hf_epoch={entry.last}" for entry in group]
        return [
            file
            for directory in directories
            for file in sorted(directory.iterdir())
            if file.suffix == ".parquet"
        ]

    def _link_rest(self, tree: Path, folded: set[int]) -> None:
        """Everything that is not folded, staged rows too, under the same names."""
        names = {f"hf_epoch={epoch}" for epoch in folded}
        for base, directories, files in os.walk(self._path):
            inner = Path(base).relative_to(self._path)
            if inner == Path():
                directories[:] = [name for name in directories if name not in names]
            else:
                self._disk.make_dir(str(tree / inner))
            for name in files:
                if inner != Path() or name != OWNER:
                    self._disk.link_new(f"{base}/{name}", str(tree / inner / name))
            if inner != Path():
                self._disk.sync_dir(str(tree / inner))

    def _swap(self, tree: Path) -> None:
        self._settle_link()
        self._disk.symlink(f"{self._versions.name}/{tree.name}", str(self._fresh))
        if self._path.is_symlink():
            self._disk.rename(str(self._fresh), str(self._path))
        else:
            self._exchange()
            self._disk.sync_dir(str(self._path.parent))
            failpoint("fold.after_exchange")
            self._settle_link()
        self._disk.sync_dir(str(self._path.parent))

    def _exchange(self) -> None:
        """The directory and the link to its successor trade places."""
        try:
            self._disk.exchange(str(self._fresh), str(self._path))
        except OSError as error:
            self._settle_link()
            if error.errno in _NO_EXCHANGE:
                raise _unsupported(self._path) from error
            raise

    def _settle_link(self) -> None:
        """What an exchange has left under the link's name: the old directory, or a link."""
        if self._fresh.is_symlink():
            self._disk.unlink(str(self._fresh))
        elif self._fresh.is_dir():
            old = self._versions / f"old-{self._clock.wall_us():020d}"
            self._disk.rename(str(self._fresh), str(old))

    def clean(self) -> None:
        """Remove trees that nobody has needed for the grace period."""
        if not self._versions.is_dir():
            return
        self._settle_link()
        self._remove_attempts()
        current = os.readlink(self._path) if self._path.is_symlink() else ""
        bound = self._clock.wall_us() - self._grace_ms * 1_000
        for tree in self._versions.iterdir():
            stamp = tree.name.partition("-")[2]
            shown = current == f"{self._versions.name}/{tree.name}"
            if stamp.isdigit() and not shown and self._retired_us(tree) <= bound:
                self._disk.remove_tree(str(tree))

    def _retired_us(self, tree: Path) -> int:
        """A tree was current until the next one was made."""
        later = [t.name.partition("-")[2] for t in self._versions.iterdir()]
        stamp = tree.name.partition("-")[2]
        newer = [int(text) for text in later if text.isdigit() and text > stamp]
        return min(newer, default=int(stamp))


def _unsupported(path: Path) -> RefusedError:
    return RefusedError(
        "this file system cannot exchange a directory in one step",
        kind="fold_unsupported",
        path=str(path),
        remedy="start the output in a new directory with compact_after: it is a link from the "
        "beginning; or leave it unfolded",
    )

"""Finding files: a walk that asks about new names only.

Invariants:
- A name that is known costs no system call but the listing itself. Whether a known file has changed
  is asked when a run starts and once a minute after that.
- A directory that has not changed since it was listed is not listed again, as long as its time of
  change is old enough to be believed.
- A file is not given out before it has been quiet for the minimum age: by its time of change, or,
  where that lies in the future, by what was seen of it.
- Hidden names are Spark's: those that begin with `.`, or with `_` and have no `=`, and those that
  end in `._COPYING_`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Protocol

from holdfast.clock import Clock
from holdfast.connectors.locations import is_hidden, is_hidden_name
from holdfast.errors import HoldfastError, StorageError
from holdfast.storage import Entry, StorageReader
from holdfast.storage.local.errors import translate

_TRUSTED_NS = 2_000_000_000  # coarser clocks of file systems are not older than this
_DEPTH_MAX = 64


def matches(pattern: str | None, path: str) -> bool:
    """Whether a file is wanted: a pattern with `/` is about the path, others about the name."""
    if pattern is None:
        return True
    return fnmatchcase(path if "/" in pattern else path.rsplit("/", 1)[-1], pattern)


class Known(Protocol):
    """What the lister must know about files that were read."""

    def knows(self, path: str) -> bool:
        """Whether a file was read, by its name."""
        ...

    def old(self, entry: Entry) -> bool:
        """Whether a file counts as read by its age."""
        ...


@dataclass
class _Directory:
    changed_ns: int
    listed_ns: int
    children: list[tuple[str, str]] = field(default_factory=list)
    settled: bool = True
    """Whether every file in it is known."""


@dataclass
class FileListing:
    """What one look at the directory found."""

    ready: list[Entry] = field(default_factory=list)
    young_ms: int | None = None
    """In how many milliseconds the next file is old enough; None where none is too young."""
    unreadable: list[str] = field(default_factory=list)
    """Names that are no text: Java cannot open them."""


class Lister:
    """New files of one source."""

    def __init__(
        self,
        storage: StorageReader,
        *,
        root: str | None,
        pattern: str | None,
        min_age_ms: int,
        clock: Clock,
    ) -> None:
        """root: the directory on local disk; None for an object store."""
        self._storage, self._root, self._pattern = storage, root, pattern
        self._min_age_ms, self._clock = min_age_ms, clock
        self._directories: dict[str, _Directory] = {}
        self._young: dict[str, tuple[int, int, int]] = {}

    def look(
        self, known: Known, *, check: Callable[[Entry], None] | None, after: str | None = None
    ) -> FileListing:
        """Files that are not known. check: called for each known one, where that is due.

        after: names up to this one do not matter (files that come in the order of their names).
        """
        listing = FileListing()
        young: dict[str, tuple[int, int, int]] = {}
        if self._root is None:
            entries: Iterator[Entry] = self._remote(after)
        else:
            entries = self._walk(self._root, "", known, listing, checking=check is not None)
        for entry in entries:
            if known.knows(entry.path):
                if check is not None:
                    check(entry)
                continue
            if known.old(entry):
                continue
            wait_ms = self._wait_ms(entry, young)
            if wait_ms > 0:
                least = listing.young_ms
                listing.young_ms = wait_ms if least is None else min(least, wait_ms)
                self._unsettle(entry.path)
            else:
                listing.ready.append(entry)
                self._unsettle(entry.path)
        self._young = young
        return listing

    def names(self) -> Iterator[str]:
        """Names of all visible files on local disk, without asking about any."""
        if self._root is None:
            return
        waiting = [(self._root, "")]
        while waiting:
            directory, prefix = waiting.pop()
            for entry in _scan(directory):
                path = prefix + entry.name
                if is_hidden_name(entry.name):
                    continue
                if _is_directory(entry):
                    waiting.append((entry.path, f"{path}/"))
                elif matches(self._pattern, path):
                    yield path

    def again(self, entry: Entry) -> Entry | None:
        """The file as it is now; None when it is gone. An object store is not asked."""
        if self._root is None:
            return entry
        return stat_entry(self._root, entry.path)

    def _wait_ms(self, entry: Entry, young: dict[str, tuple[int, int, int]]) -> int:
        """How long a file must still be left alone."""
        if self._min_age_ms == 0:
            return 0
        modified = entry.modified_us or 0
        age_ms = (self._clock.wall_us() - modified) // 1_000
        if age_ms >= self._min_age_ms:
            return 0
        now_ms = self._clock.monotonic_ms()
        size, stamp, since = self._young.get(entry.path, (entry.size, modified, now_ms))
        if (size, stamp) != (entry.size, modified):
            since = now_ms
        young[entry.path] = (entry.size, modified, since)
        quiet_ms = now_ms - since
        if quiet_ms >= self._min_age_ms:
            return 0
        return min(self._min_age_ms - max(age_ms, 0), self._min_age_ms - quiet_ms) or 1

    def _unsettle(self, path: str) -> None:
        directory = self._directories.get(path.rpartition("/")[0])
        if directory is not None:
            directory.settled = False

    def _remote(self, after: str | None) -> Iterator[Entry]:
        list_after = getattr(self._storage, "list_after", None)
        if after is not None and list_after is not None:
            entries = list_after(after)
        else:
            entries = self._storage.list("")
        for entry in entries:
            if not is_hidden(entry.path) and matches(self._pattern, entry.path):
                yield entry

    def _walk(
        self,
        directory: str,
        prefix: str,
        known: Known,
        listing: FileListing,
        *,
        checking: bool,
        depth: int = 0,
    ) -> Iterator[Entry]:
        """Files below a directory; known ones only when they are to be checked."""
        if depth > _DEPTH_MAX:
            raise StorageError(
                "directories lie too deep in one another, or a link leads back",
                kind="too_deep",
                path=directory,
                limit=_DEPTH_MAX,
                remedy="remove the link, or begin further down",
            )
        try:
            changed_ns = os.stat(directory).st_mtime_ns
        except OSError as error:
            if prefix and isinstance(error, FileNotFoundError):
                return
            raise translate(error, directory, took_effect=False) from error
        kept = self._directories.get(prefix.rstrip("/"))
        if kept is None or checking or not _unchanged(kept, changed_ns):
            kept = _Directory(changed_ns, self._clock.wall_us() * 1_000)
            self._directories[prefix.rstrip("/")] = kept
            skip = None if checking else known.knows
            for path, entry in self._scan_wanted(directory, prefix, kept, skip):
                found = self._entry(entry, path, kept, listing)
                if found is not None:
                    yield found
        for child, child_prefix in kept.children:
            yield from self._walk(
                child, child_prefix, known, listing, checking=checking, depth=depth + 1
            )

    def _scan_wanted(
        self,
        directory: str,
        prefix: str,
        kept: _Directory,
        skip: Callable[[str], bool] | None,
    ) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Visible files of a directory that fit the pattern; directories are noted."""
        for entry in _scan(directory):
            path = prefix + entry.name
            if skip is not None and skip(path):
                continue  # first of all: nearly every name is known
            if is_hidden_name(entry.name):
                continue
            if _is_directory(entry):
                kept.children.append((entry.path, f"{path}/"))
            elif matches(self._pattern, path):
                yield path, entry

    def _entry(
        self, entry: os.DirEntry[str], path: str, kept: _Directory, listing: FileListing
    ) -> Entry | None:
        if not _is_text(path):
            listing.unreadable.append(os.fsencode(path).decode("utf-8", "backslashreplace"))
            kept.settled = False
            return None
        return _entry(entry, path)


def stat_entry(root: str, path: str) -> Entry | None:
    """Size and time of a file on local disk; None when it is gone."""
    try:
        found = os.stat(f"{root}/{path}")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise translate(error, path, took_effect=False) from error
    return Entry(path, found.st_size, found.st_mtime_ns // 1_000)


def _unchanged(kept: _Directory, changed_ns: int) -> bool:
    quiet = kept.listed_ns - kept.changed_ns > _TRUSTED_NS
    return kept.settled and quiet and kept.changed_ns == changed_ns


def _scan(directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unlisted(error, directory) from error


def _unlisted(error: OSError, directory: str) -> HoldfastError:
    return translate(error, directory, took_effect=False)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _entry(entry: os.DirEntry[str], path: str) -> Entry | None:
    try:
        found = entry.stat()
    except FileNotFoundError:
        return None  # deleted between the listing and now, or a link that leads nowhere
    except OSError as error:
        raise translate(error, path, took_effect=False) from error
    if not stat.S_ISREG(found.st_mode):
        return None
    return Entry(path, found.st_size, found.st_mtime_ns // 1_000)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True

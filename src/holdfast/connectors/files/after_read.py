"""What becomes of files that were read: they stay, move to an archive, or are deleted.

Invariants:
- A file is touched only when no retained checkpoint would read it again: going back to any of them
  finds its files.
- A file whose bytes are not those that were read is never touched.
- Doing it again changes nothing: what is gone is done. A failure is told and tried again; it never
  fails the commit.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

from holdfast.connectors.files.file_log import Seen
from holdfast.connectors.files.listing import stat_entry
from holdfast.connectors.locations import is_hidden, local_path
from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.storage import Storage
from holdfast.storage.local.disk import current_disk
from holdfast.storage.open import OBJECT_SCHEMES, location_text

AfterRead = Literal["keep", "archive", "delete"]
log = logging.getLogger("holdfast.pipeline")


def checked_archive(path: str, after_read: str, archive: str | PathLike[str] | None) -> str | None:
    """The archive's directory, where one is needed."""
    if after_read not in ("keep", "archive", "delete"):
        raise InvalidInputError(
            "unknown way to treat files that were read",
            kind="invalid_option",
            after_read=str(after_read)[:60],
            remedy="use keep, archive or delete",
        )
    if (archive is not None) != (after_read == "archive"):
        raise InvalidInputError(
            "after_read='archive' and archive=... go together",
            kind="invalid_option",
            after_read=after_read,
            archive=str(archive)[:200],
            remedy="give both, or neither",
        )
    if archive is None:
        return None
    if path.split("://", 1)[0] in OBJECT_SCHEMES or "://" in location_text(archive):
        raise InvalidInputError(
            "files can be archived on local disk only",
            kind="invalid_option",
            archive=str(archive),
            remedy="use after_read='delete', or the bucket's own rules",
        )
    root, target = (Path(local_path(p)) for p in (path, location_text(archive)))
    if target == root or (
        target.is_relative_to(root) and not is_hidden(str(target)[len(str(root)) :])
    ):
        raise InvalidInputError(
            "the archive lies where the source would read it again",
            kind="invalid_option",
            path=str(root),
            archive=str(target),
            remedy="choose a directory outside of the source",
        )
    return str(target)


class Cleaner:
    """Archives or deletes files, in the order in which they were read."""

    def __init__(
        self,
        source: str,
        storage: Storage,
        root: str | None,
        after_read: AfterRead,
        archive: str | None,
    ) -> None:
        """root: the directory on local disk; None for an object store."""
        self._source, self._storage, self._root = source, storage, root
        self._after_read, self._archive = after_read, archive
        self._told, self._disk = False, current_disk()

    def clean(self, files: Sequence[Seen]) -> int:
        """Treat these files; returns how many at the beginning are done."""
        done = 0
        whole = True
        for seen in files:
            try:
                treated = self._one(seen)
            except (OSError, HoldfastError) as error:
                treated = False
                if not self._told:
                    self._told = True
                    log.warning(
                        "source %s: %s could not be cleaned up and will be tried again: %s",
                        self._source,
                        seen.path,
                        error,
                    )
            whole = whole and treated
            done += whole
        return done

    def _one(self, seen: Seen) -> bool:
        if self._root is None:
            self._storage.delete(seen.path)
            return True
        there = stat_entry(self._root, seen.path)
        if there is None:
            return True
        if (there.size, there.modified_us) != (seen.size, seen.modified_us):
            return False  # other bytes: the next look at the directory says so
        if self._after_read == "delete":
            self._disk.unlink(f"{self._root}/{seen.path}")
        else:
            self._move(seen.path)
        return True

    def _move(self, path: str) -> None:
        origin = f"{self._root}/{path}"
        target = f"{self._archive}/{path}"
        self._disk.make_dirs(os.path.dirname(target))
        number = 0
        while os.path.lexists(target):  # an older file of the same name
            number += 1
            target = f"{self._archive}/{path}.{number}"
        try:
            self._disk.rename(origin, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            temporary = f"{target}.copying"
            self._disk.copy(origin, temporary)
            descriptor = self._disk.open_read(temporary)
            try:
                self._disk.sync(descriptor)
            finally:
                self._disk.close(descriptor)
            self._disk.rename(temporary, target)
            self._disk.unlink(origin)

"""Errors of the system, as errors of Holdfast: one number, one kind, one remedy."""

from __future__ import annotations

import errno
import os
import stat as stat_module
from os import PathLike
from pathlib import Path

from holdfast.errors import (
    AlreadyExistsError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    StorageError,
)


def check_regular(mode: int, path: str) -> None:
    """Refuse links, directories and devices."""
    if stat_module.S_ISLNK(mode):
        raise symlink_refused(path)
    if stat_module.S_ISDIR(mode):
        raise NotFoundError("a directory is not an object", kind="is_directory", path=path)
    if not stat_module.S_ISREG(mode):
        raise RefusedError("not a regular file", kind="not_regular", path=path)


def symlink_refused(path: str) -> RefusedError:
    """A link inside a store is not followed."""
    return RefusedError(
        "a symbolic link inside a store is refused",
        kind="symlink_refused",
        path=path,
        remedy="replace the link by the file or directory itself",
    )


def missing_root(root: str) -> HoldfastError:
    """The root is not there, may not be looked at, or is no directory."""
    try:
        os.stat(root)
    except PermissionError as error:
        return translate(error, root, took_effect=False)
    except OSError:
        pass
    if os.path.exists(root):
        return InvalidInputError(
            "not a directory",
            kind="not_a_directory",
            path=root,
            remedy="give the directory that holds the pipelines",
        )
    return NotFoundError(
        "directory does not exist", kind="no_root", path=root, remedy="check the path"
    )


_KINDS: dict[int, tuple[str, str, bool]] = {
    errno.ENOSPC: ("disk_full", "free some space, then try again", True),
    errno.EDQUOT: ("disk_full", "raise the quota or free some space, then try again", True),
    errno.EACCES: ("denied", "check owner and permissions of the directory", False),
    errno.EPERM: ("denied", "check owner and permissions of the directory", False),
    errno.EROFS: ("read_only", "the file system is read-only: remount it or move", False),
    errno.EIO: ("io_error", "the disk reports an error: look at the system log", False),
    errno.EMFILE: ("too_many_files", "raise the limit of open files (ulimit -n)", True),
    errno.ENFILE: ("too_many_files", "raise the system's limit of open files", True),
    errno.ENAMETOOLONG: ("name_too_long", "use shorter names or a shorter root", False),
}  # fmt: skip


def same_file(one: str, other: str) -> bool:
    """Whether two names lead to one file."""
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def unsynced(error: OSError, path: str) -> HoldfastError:
    """A change was made, or may have been, and is perhaps not durable.

    Never retryable: the bytes that a second look shows may live in memory only.
    """
    found = translate(error, path, took_effect=None)
    if isinstance(found, StorageError):
        found.retryable = found.facts["retryable"] = False
    return found


def translate(error: OSError, path: str, *, took_effect: bool | None) -> HoldfastError:
    """One error of the system, one kind."""
    if error.errno == errno.ENOENT:
        return NotFoundError("object does not exist", path=path)
    if error.errno == errno.EEXIST:
        return AlreadyExistsError("object exists already", path=path)
    if error.errno == errno.ELOOP:
        return symlink_refused(path)
    if error.errno in (errno.ENOTDIR, errno.EISDIR):
        return InvalidInputError(
            "a file stands where a directory is needed, or the reverse",
            kind="not_a_directory",
            path=path,
            remedy="move the foreign file away or choose another root",
        )
    kind, remedy, retryable = _KINDS.get(
        error.errno or 0, ("os_error", "look at the system log", False)
    )
    return StorageError(
        os.strerror(error.errno) if error.errno else str(error),
        kind=kind,
        path=path,
        remedy=remedy,
        retryable=retryable,
        took_effect=took_effect,
    )


def temporary_lost(path: str) -> StorageError:
    """Says that somebody deletes what is being written."""
    return StorageError(
        "temporary files vanish as soon as they are written",
        kind="temporary_lost",
        path=path,
        took_effect=False,
        retryable=True,
        remedy="find out who deletes them; only a clean-up of Holdfast should",
    )


def root_text(root: str | PathLike[str]) -> str:
    """The absolute name of a root directory."""
    try:
        text = str(Path(root).expanduser().absolute())
        text.encode()
    except (RuntimeError, UnicodeEncodeError):
        text = "\0"
    if "\0" in text:
        raise InvalidInputError(
            "not the name of a directory",
            kind="bad_url",
            path=repr(str(root))[:200],
            remedy="give a path that this system knows",
        )
    return text

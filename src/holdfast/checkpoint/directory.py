"""A pipeline's directory: paths inside it, reading them, and whether a path lies inside one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.errors import HoldfastError
from holdfast.format import paths
from holdfast.format.manifest import FileEntry
from holdfast.storage.base import Entry, StorageReader

_MARKS = (paths.HEADER, paths.CATALOG)


@dataclass(frozen=True)
class PipelineDirectory:
    """A pipeline's directory below a root, for reading."""

    storage: StorageReader
    pipeline: str

    def __post_init__(self) -> None:
        """The name was checked, so no path made here can leave the root."""
        paths.pipeline_dir(self.pipeline)

    def at(self, path: str) -> str:
        """A path inside the pipeline, as the storage knows it."""
        return f"{self.pipeline}/{path}"

    def file(self, entry: FileEntry) -> str:
        """A file of an inventory; a fork may share files of another pipeline of the same root."""
        return f"{paths.pipeline_dir(entry.pipeline or self.pipeline)}/{entry.path}"

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Objects of the pipeline, with paths relative to it."""
        start = len(self.pipeline) + 1
        for entry in self.storage.list(self.at(prefix) if prefix else self.pipeline):
            yield Entry(entry.path[start:], entry.size, entry.modified_us, entry.tag)

    def get(self, path: str, *, bytes_max: int) -> bytes:
        """One small object of the pipeline."""
        return self.storage.get(self.at(path), bytes_max=bytes_max)

    def get_many(
        self, wanted_paths: Sequence[str], *, bytes_max: int
    ) -> Sequence[bytes | HoldfastError]:
        """Small objects of the pipeline, at once where that pays; an error stands in its place."""

        def fetch(path: str) -> bytes | HoldfastError:
            try:
                return self.get(path, bytes_max=bytes_max)
            except HoldfastError as error:
                return error

        if self.storage.parallel == 1 or len(wanted_paths) < 2:
            return [fetch(path) for path in wanted_paths]
        from concurrent.futures import ThreadPoolExecutor  # imports logging: not for one read

        with ThreadPoolExecutor(min(self.storage.parallel, len(wanted_paths))) as pool:
            return [*pool.map(fetch, wanted_paths)]


def enclosing_pipeline(path: str) -> str | None:
    """The pipeline's directory that a path is, or lies in; None outside of all.

    Symbolic links and `..` are resolved first. What does not exist yet lies where it would be made.
    """
    place = os.path.realpath(os.path.expanduser(path))
    while True:
        if all(os.path.exists(os.path.join(place, mark)) for mark in _MARKS):
            return place
        above = os.path.dirname(place)
        if above == place:
            return None
        place = above

"""Whether a path on this machine lies inside a pipeline's directory, where only Holdfast writes."""

from __future__ import annotations

import os

from holdfast.format import paths

_MARKS = (paths.HEADER, paths.CATALOG)


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

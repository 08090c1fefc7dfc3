"""Connectors of other packages: found by their entry points, loaded when they are asked for.

Invariants:
- A name of Holdfast's own is never given to another package.
- A package that cannot be loaded hurts nobody who does not ask for its connector, and is named to
  those who do.
- Nothing is remembered: a package that is installed is found by the next question.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from holdfast.connectors.base import Sink, Source
from holdfast.errors import HoldfastError, InvalidInputError

GROUPS: dict[str, type[Source | Sink]] = {
    "holdfast.sources": Source,
    "holdfast.sinks": Sink,
}
"""By group of entry points, what an entry point must be a class of."""


@dataclass(frozen=True)
class Plugin:
    """One entry point: a name in `hf.sources` or `hf.sinks`, and the package that gives it."""

    group: str
    name: str
    package: str
    version: str
    value: str
    entry: EntryPoint

    @property
    def origin(self) -> str:
        """The package with its version."""
        return f"{self.package} {self.version}".strip()

    def load(self) -> Any:
        """The connector's class.

        Raises:
            InvalidInputError: it cannot be loaded, or is no class of the right kind.
        """
        wanted = GROUPS[self.group]
        try:
            found = self.entry.load()
        except Exception as error:
            raise InvalidInputError(
                "a connector of another package cannot be loaded",
                kind="broken_connector",
                connector=self.name,
                group=self.group,
                package=self.origin,
                entry=self.value,
                reason=f"{type(error).__name__}: {error}"[:300],
                remedy=f"reinstall or remove {self.package}, or tell its authors",
            ) from error
        if not inspect.isclass(found) or not issubclass(found, wanted):
            raise InvalidInputError(
                f"an entry point is no {wanted.__name__}",
                kind="broken_connector",
                connector=self.name,
                group=self.group,
                package=self.origin,
                entry=self.value,
                reason=f"it is {found!r}"[:200],
                remedy=f"the entry point must name a subclass of holdfast.connectors."
                f"{wanted.__name__}: tell the authors of {self.package}",
            )
        return found


def plugins(group: str) -> list[Plugin]:
    """All entry points of a group, by name and package; nothing is imported."""
    found = []
    for entry in entry_points(group=group):
        package = entry.dist.name if entry.dist is not None else "unknown"
        version = entry.dist.version if entry.dist is not None else ""
        found.append(Plugin(group, entry.name, package, version, entry.value, entry))
    unique = {(one.name, one.package, one.value): one for one in found}
    return [unique[key] for key in sorted(unique)]


def plugin_names(group: str) -> list[str]:
    """Names that other packages give."""
    return sorted({one.name for one in plugins(group)})


def load_plugin(group: str, name: str, own: Collection[str]) -> Any:
    """The connector that another package gives under a name.

    Args:
        group: of the entry points.
        name: what was asked for; none of Holdfast's own.
        own: Holdfast's own names, for the error.

    Raises:
        InvalidInputError: two packages give it, or the one that does is broken.
        AttributeError: nobody gives it.
    """
    module = f"module {group!r}"
    if name.startswith("_"):
        message = f"{module} has no attribute {name!r}"
        raise AttributeError(message)
    offered = [one for one in plugins(group) if one.name == name]
    if len({one.package for one in offered}) > 1:
        raise InvalidInputError(
            "two packages give a connector of one name",
            kind="connector_clash",
            connector=name,
            group=group,
            packages=", ".join(one.origin for one in offered),
            remedy="remove one of them, or import the class from its package",
        )
    if not offered:
        known = ", ".join(sorted({*own, *plugin_names(group)}))
        message = f"{module} has no attribute {name!r}; there are: {known}"
        raise AttributeError(message, name=name)
    return offered[0].load()


def own_names(group: str) -> list[str]:
    """Holdfast's own names: `__all__` of `hf.sources` or `hf.sinks`."""
    return [*import_module(group).__all__]


def faults(group: str) -> dict[str, str]:
    """By name, what is wrong with entry points of a group; each is tried."""
    wrong, own = {}, own_names(group)
    for one in plugins(group):
        if one.name in own:
            wrong[one.name] = f"{one.origin} gives it, but it is Holdfast's own"
            continue
        try:
            load_plugin(group, one.name, own)
        except HoldfastError as error:
            wrong[one.name] = str(error)
    return wrong

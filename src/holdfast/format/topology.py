"""Topology and fingerprint: what a pipeline is, so that state is never given to another one.

Invariants:
- The fingerprint does not depend on the order in which parts were declared.
- Whatever changes the meaning of stored state changes the fingerprint: names, kinds, inputs, keys,
  schemas, parameters, state versions, the number of vnodes.
- A difference can be shown part by part.

Spec: spec/format-v2.md, section 3.2.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.errors import InvalidInputError
from holdfast.format.canonical import encode_value, sha256_hex
from holdfast.ids import VNODE_COUNT, check_name

VNODES_MAX = 65_536

PartKind = Literal["source", "operator", "sink", "table"]


class Part(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One source, operator, sink or reference table.

    `what` is the connector or operator kind, `params` everything else that gives state its meaning.
    A checkpoint without an entry for a `stateful` part is not valid.
    """

    name: str
    kind: PartKind
    what: str
    inputs: list[str] = []
    keys: list[str] = []
    schema: str = ""
    version: int = 1
    stateful: bool = False
    params: dict[str, str] = {}


class Topology(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """All parts of a pipeline, sorted by name, and the number of vnodes."""

    parts: list[Part]
    vnodes: int = VNODE_COUNT

    def names(self, kind: PartKind) -> list[str]:
        """Names of the parts of one kind."""
        return [part.name for part in self.parts if part.kind == kind]


def topology(*parts: Part, vnodes: int = VNODE_COUNT) -> Topology:
    """A checked topology: names are allowed and unique, inputs exist, vnodes are as supported."""
    seen: set[str] = set()
    for part in parts:
        check_name(part.name, f"{part.kind} name")
        if part.name in seen:
            raise InvalidInputError(
                "two parts of the pipeline have one name",
                kind="duplicate_name",
                name=part.name,
                remedy="give every source, operator and sink a name of its own",
            )
        seen.add(part.name)
    for part in parts:
        missing = [name for name in part.inputs if name not in seen]
        if missing:
            raise InvalidInputError(
                "a part takes input from one that does not exist",
                kind="unknown_input",
                part=part.name,
                missing=",".join(missing),
                remedy="declare the input first, or correct its name",
            )
    return Topology(parts=sorted(parts, key=lambda part: part.name), vnodes=vnodes)


def valid_vnodes(count: int) -> bool:
    """Whether a store may have that many vnodes: a power of two from 256 to 65,536."""
    return VNODE_COUNT <= count <= VNODES_MAX and count & (count - 1) == 0


def fingerprint(value: Topology) -> str:
    """SHA-256 over the canonical bytes of the topology, independent of declaration order."""
    ordered = Topology(parts=sorted(value.parts, key=lambda part: part.name), vnodes=value.vnodes)
    return sha256_hex(encode_value(ordered))


class TopologyDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between a stored topology and the running one."""

    part: str
    change: Literal["added", "removed", "changed"]
    field: str = ""
    stored: str = ""
    running: str = ""

    def __str__(self) -> str:
        """One line for a person."""
        if self.change != "changed":
            return f"{self.part}: {self.change}"
        return (
            f"{self.part}: {self.field} was {self.stored or 'empty'}, is {self.running or 'empty'}"
        )


def differences(stored: Topology, running: Topology) -> list[TopologyDifference]:
    """What differs, part by part, in order of name."""
    found: list[TopologyDifference] = []
    if stored.vnodes != running.vnodes:
        found.append(
            TopologyDifference(
                part="(pipeline)",
                change="changed",
                field="vnodes",
                stored=str(stored.vnodes),
                running=str(running.vnodes),
            )
        )
    before = {part.name: part for part in stored.parts}
    after = {part.name: part for part in running.parts}
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            found.append(
                TopologyDifference(part=name, change="added" if old is None else "removed")
            )
        else:
            found.extend(_part_differences(old, new))
    return found


def _part_differences(old: Part, new: Part) -> list[TopologyDifference]:
    found = []
    for field in Part.__struct_fields__:
        was, now = getattr(old, field), getattr(new, field)
        if was != now:
            found.append(
                TopologyDifference(
                    part=old.name,
                    change="changed",
                    field=field,
                    stored=_text(was),
                    running=_text(now),
                )
            )
    return found


def _text(value: object) -> str:
    return value if isinstance(value, str) else encode_value(value).decode()

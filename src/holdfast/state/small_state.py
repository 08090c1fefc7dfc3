"""Small operator state: typed, versioned, a few kilobytes, kept inside the checkpoint itself.

For what is not a trace: a watermark, a counter, a sketch. An operator declares a `msgspec.Struct`
and a version; the bytes go to `Draft.put_small`, which decides between inline and packed.

Invariants:
- What comes back has exactly the declared type, or there is a typed error that names the operator.
- A state from a newer version is refused. An older one goes through every upgrade in between.
- Same value, same bytes. No pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.errors import CorruptionError, IncompatibleError, InvalidInputError

S = TypeVar("S", bound=msgspec.Struct)
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]

_encoder = msgspec.msgpack.Encoder(order="sorted")


class _Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is stored: name of the state's type, its version, its fields."""

    type: str
    version: int
    state: msgspec.Raw


class SmallState(Generic[S]):
    """How one kind of small state is stored.

    `upgrades[n]` turns the fields of version n into those of version n + 1. `name` is what the
    stored bytes call the type; it stays when the class is renamed.
    """

    def __init__(
        self,
        kind: type[S],
        *,
        name: str,
        version: int = 1,
        upgrades: Mapping[int, Upgrade] | None = None,
    ) -> None:
        """Declare the type and its version."""
        self._kind, self._name, self._version = kind, name, version
        self._upgrades = dict(upgrades or {})
        missing = [n for n in range(1, version) if n not in self._upgrades]
        if version < 1 or missing:
            raise InvalidInputError(
                "small state lacks upgrades",
                kind="missing_upgrade",
                name=name,
                version=version,
                missing=",".join(map(str, missing)) or None,
                remedy="give a function for every older version, from 1 on",
            )

    @property
    def version(self) -> int:
        """The version that `encode` writes."""
        return self._version

    def encode(self, value: S) -> bytes:
        """The bytes of a value."""
        raw = msgspec.Raw(_encoder.encode(msgspec.to_builtins(value, builtin_types=(bytes,))))
        return _encoder.encode(_Envelope(self._name, self._version, raw))

    def decode(self, data: bytes, *, operator: str) -> S:
        """The value in these bytes, upgraded if it is older."""
        try:
            envelope = msgspec.msgpack.decode(data, type=_Envelope)
            if envelope.type == self._name and 1 <= envelope.version <= self._version:
                fields = msgspec.msgpack.decode(envelope.state, type=dict[str, Any])
                for number in range(envelope.version, self._version):
                    fields = self._upgrades[number](fields)
                return msgspec.convert(fields, self._kind)
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
            raise CorruptionError(
                "small state cannot be decoded",
                kind="undecodable",
                operator=operator,
                type=self._name,
                reason=str(error)[:300],
                remedy="run `holdfast recover --plan` for the way back",
            ) from error
        raise IncompatibleError(
            "small state is of another type or a newer version",
            kind="small_state_differs",
            operator=operator,
            expected=f"{self._name} v{self._version}",
            actual=f"{envelope.type} v{envelope.version}",
            remedy="upgrade Holdfast or the pipeline; nothing was changed",
        )

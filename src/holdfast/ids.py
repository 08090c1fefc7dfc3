"""Names and numbers that must not mix.

Invariants:
- A `Name` came from a user and was checked: it cannot contain a separator or climb a directory.
- A checkpoint id is a UUIDv7 in lower-case canonical text. Order comes from the catalog.
"""

from __future__ import annotations

import random
import re
import secrets
import threading
import uuid
from typing import NewType, Protocol

from holdfast.errors import InvalidInputError

Name = NewType("Name", str)
Epoch = NewType("Epoch", int)
Sequence = NewType("Sequence", int)
Vnode = NewType("Vnode", int)
CheckpointId = NewType("CheckpointId", str)
WriterId = NewType("WriterId", str)

VNODE_COUNT = 256
VNODE_BITS = 8

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
UUID_PATTERN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
UUID7_PATTERN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def check_name(value: str, what: str = "name") -> Name:
    """Accept a user's name or say what is wrong with it."""
    if not isinstance(value, str) or not NAME_PATTERN.fullmatch(value):
        raise InvalidInputError(
            f"{what} is not allowed",
            kind="invalid_name",
            value=repr(value)[:200],
            remedy="use 1 to 128 of letters, digits, '.', '_' and '-'; the first a letter or digit",
        )
    return Name(value)


def check_label(value: str) -> Name:
    """Accept a name for checkpoints that no other way of naming one hides."""
    label = check_name(value, "label")
    if label == "latest" or UUID_PATTERN.fullmatch(label):
        raise InvalidInputError(
            "label means something else already",
            kind="invalid_name",
            value=label,
            remedy="choose another: `latest` is the newest checkpoint, and a UUID is its id",
        )
    return label


def check_checkpoint_id(value: str) -> CheckpointId:
    """Accept the text of a UUIDv7."""
    if not isinstance(value, str) or not UUID7_PATTERN.fullmatch(value):
        raise InvalidInputError(
            "not a checkpoint id",
            kind="invalid_checkpoint_id",
            value=repr(value)[:200],
            remedy="a checkpoint id is a UUIDv7 such as 0198c0de-0000-7000-8000-000000000000",
        )
    return CheckpointId(value)


class IdSource(Protocol):
    """Where ids come from, so that tests can replay them."""

    def checkpoint_id(self, wall_us: int) -> CheckpointId:
        """A new UUIDv7."""
        ...

    def writer_id(self) -> WriterId:
        """A new id for one opening of a store for writing."""
        ...

    def token(self) -> str:
        """Sixteen hexadecimal digits that nobody else has: temporary names, task attempts."""
        ...


def uuid7(wall_us: int, random_bits: int) -> str:
    """The text of a UUIDv7: 48 bits of milliseconds, 74 random bits (RFC 9562, section 5.7)."""
    millis = (wall_us // 1_000) & ((1 << 48) - 1)
    high, low = (random_bits >> 62) & 0xFFF, random_bits & ((1 << 62) - 1)
    return str(uuid.UUID(int=(millis << 80) | (7 << 76) | (high << 64) | (2 << 62) | low))


class RandomIds:
    """Ids from the operating system's randomness."""

    def checkpoint_id(self, wall_us: int) -> CheckpointId:
        """A new UUIDv7 of the given instant."""
        return CheckpointId(uuid7(wall_us, secrets.randbits(74)))

    def writer_id(self) -> WriterId:
        """A new random UUID."""
        return WriterId(str(uuid.UUID(int=secrets.randbits(128), version=4)))

    def token(self) -> str:
        """Sixteen random hexadecimal digits."""
        return secrets.token_hex(8)


class SeededIds:
    """Replayable ids for tests and golden stores."""

    def __init__(self, seed: int = 0) -> None:
        """Begin the sequence that belongs to the seed."""
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def _bits(self, count: int) -> int:
        with self._lock:
            return self._random.getrandbits(count)

    def checkpoint_id(self, wall_us: int) -> CheckpointId:
        """A new UUIDv7 of the given instant."""
        return CheckpointId(uuid7(wall_us, self._bits(74)))

    def writer_id(self) -> WriterId:
        """A new UUID."""
        return WriterId(str(uuid.UUID(int=self._bits(128), version=4)))

    def token(self) -> str:
        """Sixteen hexadecimal digits."""
        return f"{self._bits(64):016x}"

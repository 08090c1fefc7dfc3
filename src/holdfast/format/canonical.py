"""Canonical JSON: one value, one sequence of bytes.

Invariants:
- Keys are sorted, there is no insignificant white space, there are no floats, text is UTF-8.
- Decoding is strict: unknown fields, wrong types, duplicate keys, a second spelling of the same
  value and oversized documents are `CorruptionError`; a newer format is `IncompatibleError`.
- Every document carries `sha256` over itself without that field, so that it can be checked
  alone, without the catalog.
- Documents are written in format 2. One of format 1 is read with the defaults of what came later,
  may use none of it, and encodes to its own bytes again.

Spec: spec/format-v2.md, section 2.
"""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar, TypeVar

import msgspec

from holdfast.errors import CorruptionError, IncompatibleError, InvalidInputError

FORMAT_VERSION = 2
NO_DIGEST = "0" * 64

_V = TypeVar("_V")
_encoder = msgspec.json.Encoder(order="sorted")


class Document(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Base of every stored JSON document: a format version and a digest over the rest."""

    newest_format: ClassVar[int] = FORMAT_VERSION

    format: int = msgspec.field()
    sha256: str = msgspec.field()

    def beyond_v1(self) -> str | None:
        """What of this document format 1 does not have; None: all of it could be format 1."""
        return None


class _Peek(msgspec.Struct):
    format: int


D = TypeVar("D", bound=Document)
_decoders: dict[type, msgspec.json.Decoder[Document]] = {}


def sha256_hex(data: bytes | memoryview) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def encode_value(value: object) -> bytes:
    """Canonical bytes of a value that is not a document of its own."""
    return _encoder.encode(value)


def encode(document: Document, *, bytes_max: int) -> bytes:
    """Canonical bytes of a document, its digest filled in."""
    return seal(document, bytes_max=bytes_max)[1]


def seal(document: D, *, bytes_max: int) -> tuple[D, bytes]:
    """A document with its digest filled in, and its canonical bytes.

    The digest covers the canonical bytes with the digest field set to 64 zeros, so that every
    byte of the document but the digest itself is covered, and the digest by comparison.
    """
    blank = _encoder.encode(msgspec.structs.replace(document, sha256=NO_DIGEST))
    digest = sha256_hex(blank)
    sealed = msgspec.structs.replace(document, sha256=digest)
    data = _swap(blank, NO_DIGEST, digest)
    if data is None:
        data = _encoder.encode(sealed)
    if len(data) > bytes_max:
        raise InvalidInputError(
            f"{type(document).__name__} is too large to be stored",
            kind="document_too_large",
            size=len(data),
            limit=bytes_max,
            remedy="move large state into files: fewer or larger runs, smaller tokens and labels",
        )
    return sealed, data


def decode(data: bytes, kind: type[D], *, path: str, bytes_max: int) -> D:
    """The document in these bytes, or a typed error that names the file."""
    if len(data) > bytes_max:
        raise CorruptionError(
            f"{kind.__name__} is larger than the format allows",
            kind="document_too_large_stored",
            path=path,
            size=len(data),
            limit=bytes_max,
            remedy=_REMEDY,
        )
    _check_version(data, kind, path)
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind, strict=True)
    try:
        document = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidInputError) as error:
        raise CorruptionError(
            f"{kind.__name__} cannot be decoded",
            kind="undecodable",
            path=path,
            reason=str(error)[:300],
            remedy=_REMEDY,
        ) from error
    if _encoder.encode(document) != data:
        raise CorruptionError(
            f"{kind.__name__} is not in canonical form",
            kind="not_canonical",
            path=path,
            remedy=_REMEDY,
        )
    blank = _swap(data, document.sha256, NO_DIGEST)
    if blank is None:
        blank = _encoder.encode(msgspec.structs.replace(document, sha256=NO_DIGEST))
    actual = sha256_hex(blank)
    if actual != document.sha256:
        raise CorruptionError(
            f"{kind.__name__} disagrees with its own digest",
            kind="digest_differs",
            path=path,
            expected=document.sha256[:64],
            actual=actual,
            remedy=_REMEDY,
        )
    later = document.beyond_v1() if document.format == 1 else None
    if later is not None:
        raise CorruptionError(
            f"{kind.__name__} says format 1, but holds what came later",
            kind="undecodable",
            path=path,
            reason=f"{later} is not part of format 1",
            remedy=_REMEDY,
        )
    return document  # type: ignore[return-value]


def _swap(data: bytes, old: str, new: str) -> bytes | None:
    """Exchange the digest in place; None where its place is not certain (a text spells it too).

    Saves encoding a large document a second time.
    """
    field = f'"sha256":"{old}"'.encode()
    if data.count(field) != 1:
        return None
    return data.replace(field, f'"sha256":"{new}"'.encode())


def _check_version(data: bytes, kind: type[Document], path: str) -> None:
    """Refuse a newer format by name, before its unknown fields look like damage."""
    try:
        version = msgspec.json.decode(data, type=_Peek, strict=True).format
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(
            f"{kind.__name__} cannot be decoded",
            kind="undecodable",
            path=path,
            reason=str(error)[:300],
            remedy=_REMEDY,
        ) from error
    if version > kind.newest_format:
        raise IncompatibleError(
            f"{kind.__name__} was written by a newer Holdfast",
            kind="newer_format",
            path=path,
            format=version,
            supported=kind.newest_format,
            remedy="upgrade Holdfast; nothing was changed",
        )
    if version < 1:
        raise CorruptionError(
            f"{kind.__name__} has an impossible format version",
            kind="impossible_format",
            path=path,
            format=version,
            remedy=_REMEDY,
        )


_REMEDY = (
    "run `holdfast verify` to see what is damaged and `holdfast recover --plan` for the way back"
)


def storable(value: _V, kind: Any, what: str, name: str) -> _V:
    """Refuse what would be written, but could never be read again."""
    try:
        again = msgspec.json.decode(msgspec.json.encode(value), type=kind, strict=True)
        if again != value:
            raise wrong_type(what, name, "it would be read as something else")
    except InvalidInputError:
        raise
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise wrong_type(what, name, str(error)) from error
    return value


def wrong_type(what: str, name: str, reason: str) -> InvalidInputError:
    """Says that a value cannot be stored."""
    return InvalidInputError(
        f"{what} has a value that cannot be stored",
        kind="wrong_type",
        name=name[:200],
        reason=reason.encode("utf-8", "backslashreplace").decode()[:300],
        remedy="give the types that the signature names",
    )

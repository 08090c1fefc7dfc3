"""Canonical JSON: one value, one sequence of bytes, and everything else refused."""

from __future__ import annotations

import json

import msgspec
import pytest

from holdfast.errors import CorruptionError, IncompatibleError, InvalidInputError
from holdfast.format import canonical
from holdfast.format.documents import header_bytes, outcome_bytes, parse_header, parse_outcome
from holdfast.format.manifest import SegmentEntry, manifest_bytes, parse_manifest
from holdfast.format.position import OpenPosition
from holdfast.format.topology import Topology
from tests.helpers.documents import ID, header, manifest, outcome
from tests.helpers.rig import forge


def _kind(codec, data):
    with pytest.raises(CorruptionError) as caught:
        codec.read(data)
    assert caught.value.facts["path"] == "f"
    return caught.value.kind


def test_a_document_comes_back_as_it_was(codec):
    """Decoding gives the value, encoding it again gives the bytes."""
    document = codec.make()
    data = codec.write(document)
    again = codec.read(data)
    assert codec.write(again) == data
    assert msgspec.structs.replace(again, sha256=document.sha256) == document


def test_the_bytes_are_what_python_calls_sorted_and_compact(codec):
    """The canonical form is the standard library's sorted, compact JSON of the same value."""
    data = codec.write(codec.make())
    plain = json.loads(data)
    again = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert data == again.encode()


def test_the_digest_is_of_the_document_with_zeros_in_its_place(codec):
    """Anybody can check a document with SHA-256 and a JSON reader alone."""
    import hashlib

    data = codec.write(codec.make())
    plain = json.loads(data)
    stated, plain["sha256"] = plain["sha256"], "0" * 64
    blank = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(blank.encode()).hexdigest() == stated


def test_every_flipped_bit_is_found(codec):
    """No single bit of a document can change unnoticed."""
    data = codec.write(codec.make())
    for place in range(len(data)):
        for bit in range(8) if place % 7 == 0 else (0, 6):
            other = bytearray(data)
            other[place] ^= 1 << bit
            with pytest.raises((CorruptionError, IncompatibleError)):
                codec.read(bytes(other))


def test_every_shorter_document_is_found(codec):
    """A document that was cut anywhere is refused."""
    data = codec.write(codec.make())
    for end in range(0, len(data), max(1, len(data) // 200)):
        assert _kind(codec, data[:end]) == "undecodable"


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d + b"\n",
        lambda d: b" " + d,
        lambda d: d.replace(b'":', b'": ', 1),
        lambda d: b"{" + b'"format":1,' + d[1:].replace(b'"format":1,', b"", 1).replace(b',"format":1', b"", 1),
        lambda d: d.replace(b'"sha256"', b'"sh\\u0061256"', 1),
    ],
    ids=["newline", "space before", "space inside", "other order", "escaped key"],
)  # fmt: skip
def test_a_second_spelling_is_refused(codec, change):
    """The same value in other bytes is not the same document."""
    data = codec.write(codec.make())
    other = change(data)
    assert other != data
    assert json.loads(other) == json.loads(data)
    assert _kind(codec, other) in ("not_canonical", "digest_differs")


def test_a_duplicate_key_is_refused(codec):
    """A key that appears twice is refused, even with the same value."""
    data = codec.write(codec.make())
    assert _kind(codec, b'{"format":1,' + data[1:]) in ("not_canonical", "digest_differs")


def test_an_unknown_field_is_refused(codec):
    """A field that this format does not have is damage, with the right digest too."""
    assert _kind(codec, forge(codec.write(codec.make()), zzz=1)) == "undecodable"


def test_a_missing_field_is_refused(codec):
    """Every field without a default must be there."""
    plain = json.loads(codec.write(codec.make()))
    for field in plain:
        fields = type(codec.make()).__struct_fields__
        default = type(codec.make()).__struct_defaults__
        if field in fields[len(fields) - len(default) :] and field not in ("format", "sha256"):
            continue
        short = {key: value for key, value in plain.items() if key != field}
        with pytest.raises(CorruptionError):
            codec.read(canonical.encode_value(short))


@pytest.mark.parametrize("value", [1.5, 1.0, True, "1", None, [], {}])
def test_a_number_of_another_type_is_refused(value):
    """Floats, booleans, texts and nulls are no whole numbers."""
    data = forge(header_bytes(header()), created_us=value)
    with pytest.raises(CorruptionError) as caught:
        parse_header(data, "f")
    assert caught.value.kind == "undecodable"


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity", b"1e3", b"01", b"0x1", b"-0"])
def test_numbers_that_are_no_canonical_integers_are_refused(text):
    """NaN, infinities, exponents and odd spellings never get through."""
    data = header_bytes(header()).replace(b'"created_us":1', b'"created_us":' + text)
    with pytest.raises(CorruptionError):
        parse_header(data, "f")


@pytest.mark.parametrize("version", [3, 99, 2**40])
def test_a_newer_format_is_refused_by_name(codec, version):
    """A newer version is not damage: it is named, with what to do."""
    data = forge(codec.write(codec.make()), format=version, unheard_of="x")
    with pytest.raises(IncompatibleError) as caught:
        codec.read(data)
    assert caught.value.kind == "newer_format"
    assert caught.value.facts["format"] == version
    assert caught.value.facts["supported"] == canonical.FORMAT_VERSION
    assert "upgrade" in caught.value.remedy


@pytest.mark.parametrize("version", [0, -1])
def test_an_impossible_format_is_damage(codec, version):
    """Versions begin with one."""
    assert _kind(codec, forge(codec.write(codec.make()), format=version)) == "impossible_format"


def test_a_document_above_its_limit_is_neither_written_nor_read():
    """Both directions know the limit and say it."""
    big = outcome(reason="x" * 70_000)
    with pytest.raises(InvalidInputError) as caught:
        outcome_bytes(big)
    assert caught.value.kind == "document_too_large"
    with pytest.raises(CorruptionError) as found:
        parse_outcome(b" " * 70_000, "f", 3, "out", 0)
    assert found.value.kind == "document_too_large_stored"


def test_the_digest_covers_inline_state():
    """A changed byte of inline state changes the document's digest, without any catalog."""
    data = manifest_bytes(manifest())
    assert data.count(b'"Nw=="') == 1
    other = data.replace(b'"Nw=="', b'"OA=="')
    with pytest.raises(CorruptionError) as caught:
        parse_manifest(other, "f", ID)
    assert caught.value.kind == "digest_differs"


def test_a_text_that_spells_the_digest_field_confuses_nobody():
    """A nested digest of all zeros, or equal to the document's own, is hashed like any other."""
    zeros = "0" * 64
    document = manifest(
        listed=[*manifest().files],
        operators=[
            *manifest().operators[1:],
        ],
        properties={"a": f'"sha256":"{zeros}"'},
        fingerprint=zeros,
    )
    from tests.helpers import documents

    entry = documents.run(sha256=zeros, path=documents.RUN.replace("aa.", "ab."))
    document = msgspec.structs.replace(document, listed=[*document.files, entry])
    data = manifest_bytes(document)
    assert parse_manifest(data, "f", ID).files[-1].sha256 == zeros


LATER = {
    "segments": manifest(segments=[SegmentEntry(path="x", size=1, sha256="", files=1, bytes=1)]),
    "counts": manifest(counts="bound", operators=[]),
    "counts of an operator": manifest(counts="unknown"),
    "vnodes": manifest(counts="unknown", operators=[], topology=Topology(parts=[], vnodes=512)),
    "a position": manifest(
        counts="unknown", operators=[],
        log=OpenPosition(kind="q", offsets={"a": "1"}, order="number"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LATER)
def test_format_1_has_nothing_that_came_later(what):
    """An old number does not smuggle new fields in: that is damage, not a default."""
    document = msgspec.structs.replace(LATER[what], format=1)
    with pytest.raises(CorruptionError, match="format 1") as caught:
        parse_manifest(manifest_bytes(document), "f", ID)
    assert caught.value.kind == "undecodable"


def test_format_1_is_read_with_defaults_and_keeps_its_bytes():
    """What version 1 could say is the same in version 2, but for the number."""
    old = manifest(counts="unknown", operators=[], rows=0, keys=0, format=1)
    data = manifest_bytes(old)
    assert b"counts" not in data
    back = parse_manifest(data, "f", ID)
    assert (back.format, back.counts, back.segments) == (1, "unknown", [])
    assert manifest_bytes(back) == data

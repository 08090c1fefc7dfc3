"""Every decoder, given anything: a typed error or the right answer, in bounded time and memory."""

from __future__ import annotations

import json
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptionError, IncompatibleError
from tests.helpers.effort import examples
from tests.helpers.rig import forge

SECONDS_MAX = 5.0
BYTES_MAX = 64 * 1024 * 1024

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def check(codec, data):
    """A typed error, or a document whose canonical bytes are exactly these."""
    try:
        document = codec.read(data)
    except (CorruptionError, IncompatibleError) as error:
        assert error.kind
        assert error.what
        assert error.facts["path"] == "f"
        assert len(str(error)) < 5_000
        return False
    assert codec.write(document) == data
    return True


@examples(50)
@given(data=st.binary(max_size=400))
def test_arbitrary_bytes(codec, data):
    """Noise is never a document and never a crash."""
    assert not check(codec, data)


@examples(50)
@given(value=JSON)
def test_arbitrary_json(codec, value):
    """Well-formed JSON of any shape is a typed error."""
    assert not check(codec, json.dumps(value).encode("utf-8", "surrogatepass"))


@examples(60)
@given(data=st.data())
def test_damaged_documents(codec, data):
    """Valid bytes with a piece replaced, doubled, moved or cut are found, unless nothing changed."""
    good = codec.write(codec.make())
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(len(good), start + 40)))
    middle = data.draw(st.one_of(st.binary(max_size=40), st.just(good[start:end] * 2)))
    other = good[:start] + middle + good[end:]
    assert check(codec, other) == (other == good)


@examples(60)
@given(data=st.data())
def test_forged_documents(codec, data):
    """Any field with any value and the right digest: refused, or read as exactly that value."""
    good = codec.write(codec.make())
    fields = sorted(json.loads(good).keys() - {"sha256"})
    field = data.draw(st.sampled_from([*fields, "unheard-of"]))
    value = data.draw(JSON.filter(_encodable))
    check(codec, forge(good, **{field: value}))


def _encodable(value):
    try:
        json.dumps(value, allow_nan=False).encode()
    except (UnicodeEncodeError, ValueError):
        return False
    return "\\ud" not in json.dumps(value)


def _deep(kind, depth):
    opening, closing = {"list": (b"[", b"]"), "object": (b'{"a":', b"}")}[kind]
    return opening * depth + b"1" + closing * depth


HEAVY = {
    "nested lists": lambda: b'{"format":1,"x":' + _deep("list", 20_000) + b"}",
    "nested objects": lambda: b'{"format":1,"x":' + _deep("object", 8_000) + b"}",
    "nesting that never ends": lambda: b"[" * 60_000,
    "a number of 60,000 digits": lambda: b'{"format":' + b"9" * 60_000 + b"}",
    "a fraction of 60,000 digits": lambda: b'{"format":1.' + b"9" * 60_000 + b"}",
    "a huge exponent": lambda: b'{"format":1e999999999}',
    "a giant string": lambda: b'{"format":1,"sha256":"' + b"x" * 60_000 + b'"}',
    "a giant string of escapes": lambda: b'{"format":1,"x":"' + b"\\u0041" * 10_000 + b'"}',
    "many keys": lambda: b"{" + b",".join(b'"%d":1' % n for n in range(6_000)) + b"}",
    "many equal keys": lambda: b"{" + b",".join([b'"format":1'] * 5_000) + b"}",
    "no UTF-8": lambda: b'{"format":1,"x":"\xff\xfe"}',
    "a byte order mark": lambda: b'\xef\xbb\xbf{"format":1}',
    "UTF-16": lambda: '{"format":1}'.encode("utf-16"),
    "nothing": lambda: b"",
    "zeros": lambda: b"\0" * 60_000,
}


@pytest.mark.parametrize("name", HEAVY)
def test_heavy_input_is_refused_quickly_and_cheaply(codec, name):
    """Input made to exhaust a reader costs little time and memory."""
    data = HEAVY[name]()
    tracemalloc.start()
    begun = time.perf_counter()
    try:
        assert not check(codec, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - begun < SECONDS_MAX
    assert peak < BYTES_MAX


@pytest.mark.parametrize("field", ["created_us", "epoch", "sequence", "at_us", "vnodes", "attempt"])
@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**30, -(10**18)])
def test_huge_numbers_never_crash(codec, field, number):
    """A number beyond every register is refused or read as itself."""
    good = codec.write(codec.make())
    if field.encode() in good:
        check(codec, forge(good, **{field: number}))


def test_a_document_beyond_the_limit_is_refused_before_it_is_parsed(codec):
    """More bytes than the format allows are not even looked at."""
    begun = time.perf_counter()
    with pytest.raises(CorruptionError) as caught:
        codec.read(bytes(64 * 1024 * 1024 + 1))
    assert caught.value.kind == "document_too_large_stored"
    assert time.perf_counter() - begun < 1

"""The specification's example is real, and the new kind of artifact has a way back."""

from __future__ import annotations

import re

import pytest

from holdfast.errors import CorruptionError, InvalidInputError
from holdfast.format import paths
from holdfast.format.canonical import decode, sha256_hex
from holdfast.guard.index import (
    INDEX_BYTES_MAX,
    Index,
    OperatorFacts,
    SourceFacts,
    StoredFile,
    StoreFacts,
    index_bytes,
)
from tests.helpers.paths import ROOT

SPEC = ROOT / "spec" / "guard-v1.md"
ID = "018bcfe5-6be8-75d8-9818-e811892f902b"
QUERY = b'{"id":"0f7e1288-697f-45c1-ae9b-4dbe12497e7a"}'


def _example():
    return Index(
        format=1,
        sha256="0" * 64,
        query="0f7e1288-697f-45c1-ae9b-4dbe12497e7a",
        batch=0,
        location="/data/checkpoints/orders",
        layout="hdfs",
        watermark_ms=0,
        next_watermark_ms=1704067849000,
        timestamp_ms=1700000000000,
        sources=[SourceFacts(name="0", offset='{"logOffset":0}')],
        operators=[
            OperatorFacts(
                operator=0,
                name="stateStoreSave",
                partitions=1,
                bytes=3,
                stores=[StoreFacts(partition=0, store="default", files=["state/0/0/1.delta"])],
            )
        ],
        blobs=[f"checkpoints/{ID}/operators/files/blob-00000-0ed904759531985d.bin"],
        files=[
            StoredFile("metadata", len(QUERY), sha256_hex(QUERY), 0, 0, 1700000000000001),
            StoredFile("state/0/0/1.delta", 3, sha256_hex(b"xyz"), 0, 45, 1700000000000002),
        ],
    )


def test_the_index_in_the_specification_is_what_is_written():
    """Character by character, and it can be read back."""
    shown = re.search(r"```json\n(.*?)\n```", SPEC.read_text(), re.DOTALL)[1]
    data = index_bytes(_example())
    assert shown == data.decode()
    again = decode(data, Index, path="spec", bytes_max=INDEX_BYTES_MAX)
    assert again.files == _example().files


def test_an_index_with_another_digit_is_refused():
    """Every byte of the document is covered by its own digest."""
    data = index_bytes(_example()).replace(b'"batch":0', b'"batch":1')
    with pytest.raises(CorruptionError):
        decode(data, Index, path="spec", bytes_max=INDEX_BYTES_MAX)


def test_blob_paths_lead_back_to_their_meaning():
    """A blob is one of the artifacts that a manifest may name; nothing else looks like it."""
    path = paths.blob(ID, "files", 7, "0ed904759531985d")
    meaning = paths.classify(path)
    assert (meaning.kind, meaning.name, meaning.checkpoint) == ("blob", "files", ID)
    assert paths.is_artifact_path(path)
    for bad in (path.replace("blob-0", "blob-"), path + ".x", path.replace("files", "../files")):
        assert paths.classify(bad) is None
    with pytest.raises(InvalidInputError):
        paths.blob(ID, "files", 100_000, "0ed904759531985d")
    with pytest.raises(InvalidInputError):
        paths.blob(ID, "a/b", 0, "0ed904759531985d")

"""The small documents: names and contents that must agree."""

from __future__ import annotations

import pytest

from holdfast.errors import CorruptionError
from holdfast.format import documents as r
from holdfast.format.manifest import manifest_bytes, parse_manifest
from tests.helpers.documents import (
    CODECS,
    DIGEST,
    ID,
    PARENT,
    manifest,
    outcome,
    pin,
    record,
    summary,
)

BODIES = [
    r.OpenBody(),
    r.OpenBody(resume=ID, abandoned=[PARENT], revived=[ID], host="h"),
    r.CommitBody(summary=summary()),
    r.DropBody(checkpoints=[ID, PARENT], reason="gc"),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_every_kind_of_record_comes_back(body):
    """Open, commit and drop records are told apart by their type and survive."""
    data = r.record_bytes(record(body))
    assert r.parse_record(data, "f", 5).body == body


def test_a_base_record_is_its_own_base():
    """A base record that points elsewhere, or a record with a base beyond itself, is corrupt."""
    body = r.BaseBody(live=[summary()], epoch_max=3)
    good = r.record_bytes(record(body, base=5))
    assert r.parse_record(good, "f", 5).body == body
    for bad in (record(body, base=4), record(base=6), record(base=-1)):
        with pytest.raises(CorruptionError) as caught:
            r.parse_record(r.record_bytes(bad), "f", 5)
        assert caught.value.kind == "impossible_base"


@pytest.mark.parametrize(
    "read",
    [
        lambda: r.parse_record(r.record_bytes(record()), "f", 6),
        lambda: r.parse_pin(r.pin_bytes(pin()), "f", "silver"),
        lambda: r.parse_outcome(r.outcome_bytes(outcome()), "f", 4, "out", 0),
        lambda: r.parse_outcome(r.outcome_bytes(outcome()), "f", 3, "in", 0),
        lambda: r.parse_outcome(r.outcome_bytes(outcome()), "f", 3, "out", 1),
        lambda: parse_manifest(manifest_bytes(manifest()), "f", PARENT),
    ],
)
def test_a_file_under_another_name_is_misplaced(read):
    """A whole, valid document under the name of another one is not that one."""
    with pytest.raises(CorruptionError) as caught:
        read()
    assert caught.value.kind == "misplaced"
    assert {"expected", "actual", "path"} <= caught.value.facts.keys()


def test_one_kind_of_document_is_not_another():
    """A valid pin is no outcome, and so on for every pair."""
    for writer in CODECS:
        data = writer.write(writer.make())
        for reader in CODECS:
            if reader is not writer:
                with pytest.raises(CorruptionError):
                    reader.read(data)


def test_an_unknown_status_or_type_is_refused():
    """Enumerations are closed: a word from nowhere is damage."""
    for bad in (outcome(status="maybe"), outcome(replay="often")):
        with pytest.raises(CorruptionError):
            r.parse_outcome(r.outcome_bytes(bad), "f", 3, "out", 0)
    data = r.record_bytes(record()).replace(b'"type":"commit"', b'"type":"merge!"')
    with pytest.raises(CorruptionError):
        r.parse_record(data, "f", 5)
    assert DIGEST in str(summary())

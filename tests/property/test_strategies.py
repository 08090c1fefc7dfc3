"""What the shipped strategies make is what the store accepts, byte for byte."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given

from holdfast.checkpoint import open_store
from holdfast.errors import InvalidInputError
from holdfast.format.canonical import NO_DIGEST, sha256_hex
from holdfast.format.documents import (
    outcome_bytes,
    parse_outcome,
    parse_pin,
    parse_record,
    pin_bytes,
    record_bytes,
)
from holdfast.format.findings import errors_of
from holdfast.format.manifest import manifest_bytes, parse_manifest
from holdfast.format.position import compare
from holdfast.format.validate import validate
from holdfast.ids import check_name
from holdfast.storage import MemoryStorage
from holdfast.testing import strategies as own


def same(decoded, given_value):
    return msgspec.structs.replace(decoded, sha256=NO_DIGEST) == given_value


@given(own.manifests())
def test_manifests_are_valid_and_survive_storage(manifest):
    """A valid manifest is decoded to exactly what was encoded, and encodes to the same bytes."""
    data = manifest_bytes(manifest)
    decoded = parse_manifest(data, "m", manifest.checkpoint)
    assert same(decoded, manifest)
    assert manifest_bytes(decoded) == data
    assert errors_of(validate(decoded)) == []
    blank = data.replace(decoded.sha256.encode(), NO_DIGEST.encode(), 1)
    assert sha256_hex(blank) == decoded.sha256


@given(own.records())
def test_records_survive_storage(record):
    """A catalog record is decoded to exactly what was encoded."""
    assert same(parse_record(record_bytes(record), "r", record.sequence), record)


@given(own.pins(), own.outcomes())
def test_small_documents_survive_storage(pin, outcome):
    """Pins and outcomes are decoded to exactly what was encoded."""
    assert same(parse_pin(pin_bytes(pin), "p", pin.label), pin)
    data = outcome_bytes(outcome)
    assert same(parse_outcome(data, "o", outcome.epoch, outcome.sink, outcome.attempt), outcome)


@given(own.positions(), own.positions())
def test_positions_compare_both_ways(left, right):
    """A position equals itself, and before is the reverse of after."""
    assert compare(left, left) == "equal"
    reverse = {"before": "after", "after": "before", "equal": "equal", "diverged": "diverged"}
    assert compare(right, left) == reverse[compare(left, right)]


@given(own.bad_names())
def test_bad_names_are_refused(name):
    """A name that could climb, hide or separate is refused."""
    with pytest.raises(InvalidInputError):
        check_name(name)


@given(own.drafts())
def test_drafts_can_be_committed_and_read(calls):
    """Whatever a generated draft says is in the checkpoint that is read back."""
    storage = MemoryStorage()
    store = open_store(storage, "p", topology=own.draft_topology())
    with store.draft() as draft:
        for method, arguments, keywords in calls:
            getattr(draft, method)(*arguments, **keywords)
        summary = store.commit(draft)
    manifest = store.reader.manifest(summary)
    said = {method: arguments for method, arguments, _ in calls}
    assert store.reader.small_state(manifest, "state") == said["put_small"][1]
    assert manifest.source("source").position == said["set_source"][1]
    assert [s.token for s in manifest.sinks] == (
        [said["stage_sink"][1]] if "stage_sink" in said else []
    )
    assert manifest.watermark_us == said.get("set_watermark", (None,))[0]
    assert manifest.processed == said.get("add_processed", (0,))[0]
    assert manifest.properties == said.get("set_properties", ({},))[0]

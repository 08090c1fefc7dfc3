"""The specification is true: its bytes, its tables of fields, its rules, by other means than ours."""

import base64
import hashlib
import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.format import documents as records
from holdfast.format import manifest, paths, position, topology
from holdfast.format.canonical import encode_value
from tests.helpers.effort import examples
from tests.helpers.paths import ROOT
from tests.helpers.spec_store import write_spec_store

SPEC = (ROOT / "spec" / "format-v2.md").read_text()
BYTES = SPEC.split("test_spec.py -->\n")[1]


def _second_implementation(value) -> bytes:
    """Canonical bytes by the rules of section 2, with the standard library alone."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The specification's store, made again; bytes by path."""
    root = write_spec_store(tmp_path_factory.mktemp("spec"))
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def _shown():
    """Files as section 10 shows them; a run ends with the line feed that its size counts."""
    blocks = re.findall(
        r"^`(\S+)`, (\d+) bytes:\n\n```\n(.*?)\n```$", BYTES, re.MULTILINE | re.DOTALL
    )
    found = {}
    for path, size, text in blocks:
        data = text.encode()
        found[path] = data if len(data) == int(size) else data + b"\n"
        assert len(found[path]) == int(size), path
    return found


def test_the_bytes_in_the_specification_are_what_holdfast_writes(store):
    """Section 10 shows every byte of a store that Holdfast writes today."""
    shown = _shown()
    assert {path: data for path, data in store.items() if data} == shown


def test_the_digests_in_the_specification_are_what_sha256sum_prints(store):
    """The list of digests is that of all files, the empty one included."""
    listed = dict(reversed(line.split("  ")) for line in BYTES.split("```")[1].strip().split("\n"))
    assert listed == {path: hashlib.sha256(data).hexdigest() for path, data in store.items()}


def test_documents_can_be_checked_from_the_specification_alone():
    """Canonical form, own digest, chain, inventory and fingerprint hold for a second implementation."""
    shown = _shown()
    documents = {
        p: json.loads(d) for p, d in shown.items() if p.endswith(".json") or p == "_latest"
    }
    for path, document in documents.items():
        assert _second_implementation(document) == shown[path]
        blank = _second_implementation({**document, "sha256": "0" * 64})
        assert hashlib.sha256(blank).hexdigest() == document["sha256"], path
    catalog = [documents[path] for path in sorted(documents) if path.startswith("catalog/")]
    digests = [hashlib.sha256(shown[p]).hexdigest() for p in sorted(shown) if p[:8] == "catalog/"]
    assert [record["previous"] for record in catalog] == ["0" * 64, *digests[:-1]]
    commits = [
        record["body"]["summary"] for record in catalog if record["body"]["type"] == "commit"
    ]
    assert len(commits) == 2
    for summary in commits:
        path = f"checkpoints/{summary['checkpoint']}/manifest.json"
        assert hashlib.sha256(shown[path]).hexdigest() == summary["manifest_sha256"]
        described = documents[path]
        files = described.get("files", [])
        for segment in described.get("segments", []):
            listed = documents[segment["path"]]["files"]
            assert (segment["files"], segment["bytes"]) == (
                len(listed), sum(file["size"] for file in listed),
            )  # fmt: skip
            files = [*files, segment, *listed]
        assert sum(file["size"] for file in files) == described["bytes_total"]
        for file in files:
            assert hashlib.sha256(shown[file["path"]]).hexdigest() == file["sha256"]
            assert len(shown[file["path"]]) == file["size"]
        inline = [o["small"] for o in described["operators"] if "small" in o]
        for small in inline:
            data = base64.b64decode(small["data"], validate=True)
            assert hashlib.sha256(data).hexdigest() == small["sha256"]
        pipeline = hashlib.sha256(_second_implementation(described["topology"])).hexdigest()
        assert pipeline == described["fingerprint"]


def test_the_documents_of_version_1_are_read_and_encode_to_their_own_bytes():
    """The bytes that the first version's specification shows are documents for ever."""
    old = (ROOT / "spec" / "format-v1.md").read_text().split("test_spec.py -->\n")[1]
    shown = dict(
        re.findall(r"^`(\S+)`, \d+ bytes:\n\n```\n(.*?)\n```$", old, re.MULTILINE | re.DOTALL)
    )
    again = {
        "header": lambda d, x: records.header_bytes(records.parse_header(d, "f")),
        "latest": lambda d, x: records.latest_bytes(records.parse_latest(d, "f")),
        "pin": lambda d, x: records.pin_bytes(records.parse_pin(d, "f", x.name)),
        "record": lambda d, x: records.record_bytes(records.parse_record(d, "f", x.sequence)),
        "outcome": lambda d, x: records.outcome_bytes(
            records.parse_outcome(d, "f", x.epoch, x.name, x.attempt)
        ),
        "manifest": lambda d, x: manifest.manifest_bytes(
            manifest.parse_manifest(d, "f", x.checkpoint)
        ),
    }
    seen = set()
    for path, text in shown.items():
        meaning = paths.classify(path)
        if meaning.kind in again:
            seen.add(meaning.kind)
            assert again[meaning.kind](text.encode(), meaning) == text.encode()
    assert seen == set(again)


def test_the_worked_digest_in_the_text_is_right():
    """The command that the text shows prints the digest that the text names."""
    text = re.search(r"printf %s '(\{.*\})' \| sha256sum", SPEC)[1]
    named = re.search(r"^prints `([0-9a-f]{64})`", SPEC, re.MULTILINE)[1]
    assert hashlib.sha256(text.encode()).hexdigest() == named


def _structs():
    found = {
        name: value
        for module in (manifest, position, records, topology)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and name[0] != "_"
    }
    for name in ("Document", "TopologyDifference"):  # the two fields of section 2; never stored
        found.pop(name)
    return found


def _default(field):
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return f"`{json.dumps(value)}`"


@pytest.mark.parametrize("name", sorted(_structs()))
def test_the_table_of_fields_is_that_of_the_source(name):
    """Every stored type has a table with exactly its fields and their defaults."""
    struct = _structs()[name]
    section = re.search(rf"^#### `{name}`\n(.*?)(?=^#)", SPEC, re.MULTILINE | re.DOTALL)
    assert section, f"{name} has no table"
    table = re.findall(r"^\| `(\w+)` \|.*?\| (required|`[^`]*`) \|", section[1], re.MULTILINE)
    fields = {
        field.encode_name: _default(field)
        for field in msgspec.structs.fields(struct)
        if not (field.name in ("format", "sha256") and name in _documents())
    }
    config = struct.__struct_config__
    if config.tag_field:
        fields[config.tag_field] = "required"
        assert f"| `{config.tag_field}` | `{config.tag}` |" in section[1]
    assert dict(table) == fields


def _documents():
    return {"Manifest", "Segment", "StoreHeader", "Record", "Latest", "Pin", "Outcome"}


def test_limits_in_the_specification_are_those_of_the_source():
    """Section 7.3 names the limits that decoding enforces."""
    limits = SPEC.split("### 7.3 Limits")[1].split("\n## ")[0]
    assert f"header, outcome, pin, hint | {records.SMALL_BYTES_MAX:,} bytes" in limits
    assert records.RECORD_BYTES_MAX == manifest.MANIFEST_BYTES_MAX
    assert f"record, manifest, segment | {records.RECORD_BYTES_MAX:,} bytes" in limits


_TEXT = st.text(st.characters(exclude_categories=("Cs",)))
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)


@examples(300)
@given(_VALUES)
def test_canonical_json_is_what_section_2_says(value):
    """Our bytes are those of the standard library under the rules of section 2."""
    assert encode_value(value) == _second_implementation(value)

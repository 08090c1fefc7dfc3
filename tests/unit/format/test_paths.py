"""Paths: made from checked parts, understood again, and nothing else accepted."""

from __future__ import annotations

import posixpath
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidInputError
from holdfast.format import paths
from holdfast.ids import SeededIds, check_checkpoint_id, check_name, uuid7

NAMES = st.from_regex(re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"), fullmatch=True)
IDS = st.builds(uuid7, st.integers(0, 2**48 * 1000), st.integers(0, 2**74 - 1))
TOKENS = st.builds(lambda n: f"{n:016x}", st.integers(0, 2**64 - 1))
NUMBERS = st.integers(0, 2**63 - 1)
HOSTILE = [
    "", ".", "..", "../x", "a/b", "/a", "a\\b", "a\0", "a\n", " a", "a ", "-a", "_a", ".a", "a" * 129,
    "ä", "a%2fb", "a:b", "con\x00", "\u202eabc", "a/../b", "~", "$HOME", "*", None, 5, b"a",
]  # fmt: skip


@given(checkpoint=IDS, name=NAMES, partition=st.integers(0, 99_999), token=TOKENS,
       number=NUMBERS, attempt=st.integers(0, 999_999), snapshot=st.booleans())  # fmt: skip
def test_every_path_that_can_be_made_is_understood(
    checkpoint, name, partition, token, number, attempt, snapshot
):
    """Making a path and classifying it gives back what it was made from."""
    record = paths.classify(paths.record(number))
    assert (record.kind, record.sequence) == ("record", number)
    run = paths.classify(paths.run(checkpoint, name, partition, token, snapshot=snapshot))
    assert (run.kind, run.checkpoint, run.name) == ("run", checkpoint, name)
    assert paths.is_artifact_path(paths.run(checkpoint, name, partition, token, snapshot=snapshot))
    manifest = paths.classify(paths.manifest(checkpoint))
    assert (manifest.kind, manifest.checkpoint) == ("manifest", checkpoint)
    assert not paths.is_artifact_path(paths.manifest(checkpoint))
    pack = paths.classify(paths.pack(checkpoint))
    assert (pack.kind, pack.checkpoint) == ("pack", checkpoint)
    offsets = paths.classify(paths.offsets(checkpoint, name))
    assert (offsets.kind, offsets.checkpoint, offsets.name) == ("offsets", checkpoint, name)
    outcome = paths.classify(paths.outcome(number, name, attempt))
    assert (outcome.kind, outcome.epoch, outcome.name) == ("outcome", number, name)
    assert outcome.attempt == attempt
    assert (paths.classify(paths.pin(name)).kind, paths.classify(paths.pin(name)).name) == (
        "pin",
        name,
    )
    for directory in ("", "catalog", f"checkpoints/{checkpoint}"):
        assert paths.classify(paths.temporary(directory, token)).kind == "temporary"


@given(first=NUMBERS, second=NUMBERS)
def test_records_sort_by_number(first, second):
    """The order of names is the order of numbers, so that one listing is in order."""
    assert (paths.record(first) < paths.record(second)) == (first < second)


@given(st.text(max_size=60))
def test_a_foreign_name_is_never_taken_for_ours(text):
    """What classify knows, the functions of the module could have made."""
    meaning = paths.classify(text)
    if meaning is not None:
        assert paths.check_relative(text) == text
        assert text in (paths.HEADER, paths.LATEST, paths.LOCK) or "/" in text or "hf-tmp" in text


@pytest.mark.parametrize(
    "path",
    [
        "holdfast.json.bak", "catalog/1.json", "catalog/0000000000000000000a.json",
        "catalog/00000000000000000001.json/x", "catalog/00000000000000000001.JSON",
        "checkpoints/x/manifest.json", "checkpoints/018bcfe5-6800-4000-8000-000000000001/manifest.json",
        "checkpoints/018BCFE5-6800-7000-8000-000000000001/manifest.json",
        "checkpoints/018bcfe5-6800-7000-8000-000000000001/manifest.json\n",
        "checkpoints/018bcfe5-6800-7000-8000-000000000001/notes.txt",
        "checkpoints/018bcfe5-6800-7000-8000-000000000001/operators/../x/partition-00000-00000000000000aa.snap",
        "pins/.json", "pins/a/b.json", "pins/-a.json", "outcomes/x.json", "lock/x", "_latest.tmp",
        ".hf-tmp-xyz", "a/.hf-tmp-00000000000000ag", "", "/", "catalog", f"catalog/{10**20 - 1}.json",
        f"outcomes/{2**63}-000000-out.json",
    ],
)  # fmt: skip
def test_what_was_not_made_here_is_foreign(path):
    """A name that is almost ours is foreign, so it is reported and never deleted."""
    assert paths.classify(path) is None


@pytest.mark.parametrize("name", HOSTILE)
def test_every_hostile_name_is_refused(name):
    """No name can carry a separator, climb, hide or be empty; the error says what is allowed."""
    checkpoint = SeededIds().checkpoint_id(1)
    for use in (
        check_name,
        paths.pipeline_dir,
        paths.pin,
        lambda n: paths.offsets(checkpoint, n),
        lambda n: paths.outcome(1, n, 0),
        lambda n: paths.run(checkpoint, n, 0, "0" * 16, snapshot=True),
    ):
        with pytest.raises(InvalidInputError) as caught:
            use(name)
        assert caught.value.kind == "invalid_name"
        assert caught.value.remedy


@pytest.mark.parametrize("text", ["", "x", "../x", "018bcfe5-6800-4000-8000-000000000001",
                                  "018BCFE5-6800-7000-8000-000000000001", None, 7])  # fmt: skip
def test_what_is_no_uuid7_is_no_checkpoint(text):
    """Other versions, capitals and paths are not ids."""
    for use in (check_checkpoint_id, paths.manifest, paths.pack, paths.checkpoint_dir):
        with pytest.raises(InvalidInputError) as caught:
            use(text)
        assert caught.value.kind == "invalid_checkpoint_id"


@pytest.mark.parametrize("number", [-1, 2**63, 1.0, True, "1", None])
def test_impossible_numbers_are_refused(number):
    """Sequences and epochs are whole, not negative, and fit into 63 bits."""
    with pytest.raises(InvalidInputError):
        paths.record(number)
    with pytest.raises(InvalidInputError):
        paths.outcome(number, "out", 0)


@pytest.mark.parametrize("token", ["", "x", "0" * 15, "0" * 17, "A" * 16, "../" + "0" * 13])
def test_an_attempt_is_sixteen_hexadecimal_digits(token):
    """A retried task cannot smuggle a path into its attempt."""
    checkpoint = SeededIds().checkpoint_id(1)
    with pytest.raises(InvalidInputError):
        paths.run(checkpoint, "op", 0, token, snapshot=True)
    for partition in (-1, 100_000):
        with pytest.raises(InvalidInputError):
            paths.run(checkpoint, "op", partition, "0" * 16, snapshot=True)
    for attempt in (-1, 1_000_000):
        with pytest.raises(InvalidInputError):
            paths.outcome(1, "out", attempt)


@given(st.text(alphabet=st.sampled_from("ab./\\\x00\n-_~\ud800"), max_size=30))
def test_what_is_accepted_stays_below_the_root(path):
    """An accepted path, joined to a root and normalised by the library, is still below it."""
    try:
        paths.check_relative(path)
    except InvalidInputError:
        return
    joined = posixpath.normpath(posixpath.join("/base/here", path))
    assert joined == f"/base/here/{path}"


@given(
    wall_us=st.integers(0, 2**48 * 1000 - 1),
    other=st.integers(0, 2**48 * 1000 - 1),
    seed=st.integers(),
)
def test_ids_sort_by_time(wall_us, other, seed):
    """Ids of different milliseconds sort as the milliseconds do, and are UUIDs of version 7."""
    import uuid

    ids = SeededIds(seed)
    first, second = ids.checkpoint_id(wall_us), ids.checkpoint_id(other)
    assert uuid.UUID(first).version == 7
    assert uuid.UUID(first).int >> 80 == wall_us // 1_000
    if wall_us // 1_000 != other // 1_000:
        assert (first < second) == (wall_us < other)

"""What two inventories do not share is found without walking what they do."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.draft_files import DraftFiles
from holdfast.format.inventory import (
    NO_FILES,
    FileEntry,
    Inventory,
    Segment,
    SegmentEntry,
    SharedPart,
)
from tests.helpers.effort import examples

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "remove", "remove", "replace", "forget"]),
        st.sets(st.integers(0, 30), max_size=6),
    ),
    max_size=12,
)


def entry(number, size=1, operator=None, pipeline=None):
    return FileEntry(
        path=f"r{number}", size=size, sha256="", kind="delta", epoch_low=number, epoch_high=number,
        operator=operator or "ab"[number % 2], pipeline=pipeline,
    )  # fmt: skip


def sealed(files, number):
    """The inventory of a draft, its segments under names of their own."""
    plan = files.arrange(["a", "b"], [])
    new = []
    for place, entries in enumerate(plan.new):
        size = sum(e.size for e in entries)
        head = SegmentEntry(
            path=f"s{number}-{place}", size=7, sha256=f"{number}", files=len(entries), bytes=size
        )
        new.append(SharedPart(head, Segment(format=2, sha256="", files=entries)))
    return Inventory([*plan.kept, *new], plan.listed, by_operator=files.by_operator)


def check_pair(one, other):
    ones, others = ({e.key: e for e in each} for each in (one, other))
    assert {e.key for e in one.beyond(other)} == ones.keys() - others.keys()
    assert {e.key for e in one.unlike(other)} == {k for k, e in ones.items() if others.get(k) != e}
    assert one.repeated(other, one.unlike(other)) == []


@examples(120)
@given(STEPS)
def test_drafts_and_differences_are_those_of_plain_sets(steps):
    """Adding, removing and replacing files, with segments or without: the same as with dicts."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("LISTED_MAX", 3), ("SEGMENT_FILES", 4), ("SMALL_SEGMENTS", 2)):
            patch.setattr(f"holdfast.checkpoint.segments.{name}", value)
        model, history, serial = {}, [NO_FILES], 0
        for name, numbers in steps:
            serial += 1
            files = DraftFiles(history[-1], operators=["a", "b"])
            if name == "add":
                for number in sorted(numbers):
                    serial += 1
                    model[serial, number] = new = entry(number + 100 * serial, size=serial)
                    files.add(new)
            elif name in ("remove", "replace"):
                operators = "ab" if name == "remove" else "a"
                for operator in operators:
                    own = {k: e for k, e in model.items() if e.operator == operator}
                    left = [key for key in own if key[1] in numbers]
                    if name == "remove":
                        files.remove(operator, [own[key].key for key in left])
                    else:
                        again = [e for key, e in own.items() if key not in left]
                        data = msgspec.json.encode(again)
                        again = msgspec.json.decode(data, type=list[FileEntry])
                        assert files.replace("a", again) == []
                    model = {key: e for key, e in model.items() if key not in left}
            elif name == "forget":
                files = DraftFiles(history[-1], operators=["b"])
                model = {key: e for key, e in model.items() if e.operator == "b"}
            inventory = sealed(files, serial)
            state = [e for e in inventory if e.kind != "segment"]
            assert sorted(e.path for e in state) == sorted(e.path for e in model.values())
            assert len(inventory) == len([*inventory])
            assert inventory.bytes == sum(e.size for e in inventory)
            plain = Inventory(inventory.parts, inventory.listed)
            assert {k: t for k, t in files.by_operator.items() if t.files} == plain.by_operator
            for other in history:
                check_pair(inventory, other)
                check_pair(other, inventory)
            for e in model.values():
                assert inventory.find(e.key) == e
            history.append(inventory)


def test_a_file_that_is_listed_twice_is_found_wherever_it_is():
    """In the list, in two segments, in a shared segment and the list; the parent vouches for none."""
    first = SharedPart(
        SegmentEntry(path="s", size=1, sha256="x", files=3, bytes=3),
        Segment(format=2, sha256="", files=[entry(n) for n in range(3)]),
    )
    other = SharedPart(
        SegmentEntry(path="t", size=1, sha256="y", files=1, bytes=1),
        Segment(format=2, sha256="", files=[entry(2)]),
    )
    parent = Inventory([first], [entry(9)])
    cases = [
        (Inventory([first], [entry(9), entry(9)]), ["r9"]),
        (Inventory([first], [entry(1)]), ["r1"]),
        (Inventory([first, other], []), ["r2"]),
        (Inventory([first.without([2]), other], []), []),
        (Inventory([first.without([1])], [entry(1)]), []),
    ]
    for inventory, twice in cases:
        assert inventory.repeated(parent, inventory.unlike(parent)) == twice
        assert inventory.repeated(NO_FILES, inventory.unlike(NO_FILES)) == twice

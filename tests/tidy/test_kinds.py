"""The catalogue of kinds is what the source raises and reports, no more and no less."""

from __future__ import annotations

import ast

import pytest

from holdfast import errors
from holdfast.api.spelling import UnknownNameError
from holdfast.format.finding_kinds import finding_kinds
from holdfast.guard.checkpoint_location import MovedError
from holdfast.guard.spark_files.state_inspect import UnreadableError
from holdfast.kinds import SECTIONS, kinds
from tests.helpers import kinds as source
from tests.helpers.source import nodes_of

ELSEWHERE = (UnknownNameError, MovedError, UnreadableError)  # subclasses outside errors.py
CLASSES = {**vars(errors), **{each.__name__: each for each in ELSEWHERE}}


@pytest.mark.parametrize(
    ("catalogue", "collect"),
    [(kinds, source.error_kinds), (finding_kinds, source.finding_kinds)],
    ids=["errors", "findings"],
)
def test_every_kind_of_the_source_is_in_the_catalogue_and_every_one_of_it_in_the_source(
    catalogue, collect
):
    """A kind without a row, and a row without a kind, both fail."""
    used = collect()
    assert {kind: sorted(files) for kind, files in used.items() if kind not in catalogue()} == {}
    assert sorted(set(catalogue()) - set(used)) == []


def test_rows_are_sorted_complete_and_stand_once():
    """A section is in order; every row says what happened; no kind stands in two sections."""
    names = []
    for _, table in SECTIONS.values():
        rows = [row.split("|") for row in table.splitlines()]
        assert all(len(row) == 4 for row in rows), [row for row in rows if len(row) != 4]
        inner = [row[0].strip() for row in rows]
        assert inner == sorted(inner)
        names += inner
    assert len(names) == len(set(names)) == len(kinds())
    assert list(finding_kinds()) == sorted(finding_kinds())
    silent = [each.name for each in kinds().values() if not each.meaning or not each.remedy]
    assert silent == ["error"]  # the root, never raised by itself


def test_a_kind_is_raised_as_the_class_of_the_catalogue():
    """What a caller catches is what the catalogue promises."""
    wrong = []
    for path in source.SOURCE.rglob("*.py"):
        for node in nodes_of(path):
            cls = CLASSES.get(getattr(node.func, "id", "")) if isinstance(node, ast.Call) else None
            if not isinstance(cls, type) or not issubclass(cls, errors.HoldfastError):
                continue
            for keyword in node.keywords:
                kind = getattr(keyword.value, "value", None)
                if keyword.arg == "kind" and isinstance(kind, str):
                    if not issubclass(cls, kinds()[kind].classes):
                        wrong.append((path.name, kind, cls.__name__))
    assert wrong == []

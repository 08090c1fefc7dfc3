"""Errors: one tree, stable kinds, and every fact survives the way to another process."""

from __future__ import annotations

import ast
import copy
import multiprocessing
import pickle
from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast.errors import HoldfastError, InternalError, StorageError, invariant
from tests.helpers.source import nodes_of

CLASSES = sorted(
    (c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, HoldfastError)),
    key=lambda c: c.__name__,
)
SOURCE = Path(holdfast.__file__).parent


def _make(cls):
    extra = {"retryable": True, "took_effect": False} if cls is StorageError else {}
    return cls(
        "it broke", kind="some_kind", remedy="mend it", path="a/b", size=5, ratio=0.5, ok=True,
        other=Path("x"), nothing=None, **extra,
    )  # fmt: skip


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("way", ["pickle", "copy", "deepcopy"])
def test_every_error_survives_pickling_with_all_its_facts(cls, way):
    """Type, message, kind, remedy and every fact are the same on the other side."""
    error = _make(cls)
    again = {
        "pickle": lambda e: pickle.loads(pickle.dumps(e)),
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
    }[way](error)
    assert type(again) is cls
    assert str(again) == str(error)
    assert (again.what, again.kind, again.remedy) == (error.what, error.kind, error.remedy)
    assert again.facts == {
        key: str(v) if isinstance(v, Path) else v for key, v in error.facts.items()
    }
    assert again.args == error.args
    if cls is StorageError:
        assert (again.retryable, again.took_effect) == (True, False)


def test_a_lost_reply_stays_unknown_after_pickling():
    """`took_effect=None` is not turned into False on the way."""
    again = pickle.loads(pickle.dumps(StorageError("x", took_effect=None)))
    assert again.took_effect is None


def _raise(number):
    raise CLASSES[number]("from a worker", path="p", nested=object())


def test_errors_come_out_of_another_process():
    """An error raised in a worker process arrives as itself."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for number, cls in enumerate(CLASSES):
            with pytest.raises(cls) as caught:
                pool.apply(_raise, (number,))
            assert caught.value.facts["path"] == "p"


@pytest.mark.parametrize("cls", CLASSES)
def test_the_message_is_what_then_facts_then_remedy(cls):
    """A person reads what happened, the facts as key=value, and what to do."""
    text = str(_make(cls))
    assert text.startswith("it broke. path=a/b size=5")
    assert text.endswith("mend it")
    assert "nothing" not in text


def test_the_tree_is_the_documented_one():
    """Callers catch by what they do about it: the families are as drawn in the module."""
    assert issubclass(errors.FencedError, errors.ConflictError)
    assert issubclass(errors.AlreadyExistsError, errors.ConflictError)
    assert issubclass(errors.NotFoundError, KeyError)
    assert issubclass(errors.InvalidInputError, ValueError)
    drawn = errors.__doc__
    assert all(cls.__name__ in drawn for cls in CLASSES)


def test_default_kinds_are_all_different():
    """One kind never has two meanings, not even by default."""
    kinds = [cls.kind_default for cls in CLASSES]
    assert len(set(kinds)) == len(kinds)


def _raised_kinds():
    """(kind, class) for every error that the source constructs with a literal kind."""
    names = {cls.__name__ for cls in CLASSES}
    for path in SOURCE.rglob("*.py"):
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in names:
                for keyword in node.keywords:
                    value = getattr(keyword.value, "value", None)
                    if keyword.arg == "kind" and isinstance(value, str):
                        yield value, node.func.id


def test_one_kind_belongs_to_one_class():
    """Who switches on `kind` never meets one word for two kinds of failure."""
    classes: dict[str, set[str]] = {}
    for kind, cls in _raised_kinds():
        classes.setdefault(kind, set()).add(cls)
    assert classes
    assert {kind: found for kind, found in classes.items() if len(found) > 1} == {}


def test_an_invariant_raises_a_bug_report():
    """A broken invariant says that it is a bug, with the facts."""
    invariant(True, "fine")
    with pytest.raises(InternalError) as caught:
        invariant(0, "count went wrong", count=0)
    assert "please report" in str(caught.value)
    assert caught.value.facts == {"count": 0}

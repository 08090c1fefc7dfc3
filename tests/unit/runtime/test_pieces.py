"""Operators in pieces: every model of an operator holds when its rows come through the disk.

The tests of the operators are played again, with rows cut at every few bytes: keys in pieces of
their own, and keys that are cut themselves.
"""

from __future__ import annotations

from itertools import product

import pytest

from tests.helpers.harness import Harness
from tests.unit.operators import (
    test_aggregate,
    test_apply,
    test_holistic,
    test_join,
    test_time_bounds,
    test_topk,
    test_upsert,
    test_window,
)
from tests.unit.operators.test_join import HOWS, SET_RULES

BOTH = (False, True)
MODELS = [
    (test_aggregate.test_aggregates_with_retractions_equal_a_model, {}),
    (test_aggregate.test_aggregates_of_growing_streams_equal_a_model, {}),
    (test_aggregate.test_distinct_shows_a_row_while_its_weights_sum_to_more_than_zero, {}),
    (test_apply.test_state_and_weighted_output_follow_the_rows, {}),
    (test_apply.test_a_timer_fires_once_when_the_watermark_reaches_it, {}),
    (test_apply.test_keys_are_forgotten_a_while_after_they_were_touched, {}),
    (test_holistic.test_gathered_aggregates_with_retractions_equal_a_model, {}),
    (test_holistic.test_gathered_aggregates_of_growing_streams_equal_a_model, {}),
    *(
        (test_join.test_a_join_equals_nested_loops_after_every_epoch, {"how": how, "weights": w})
        for how, w in product(HOWS, BOTH)
    ),
    *(
        (
            test_join.test_an_interval_join_equals_nested_loops_and_forgets_only_what_is_done,
            {"how": how},
        )
        for how in HOWS
    ),
    *(
        (test_join.test_set_operations_equal_counters, {"rule": rule, "weights": w})
        for rule, w in product(SET_RULES, BOTH)
    ),
    (test_time_bounds.test_dedupe_does_not_depend_on_how_epochs_are_cut, {}),
    *(
        (
            test_time_bounds.test_timers_and_keys_of_apply_do_not_depend_on_how_epochs_are_cut,
            {"ttl": t},
        )
        for t in (None, 10)
    ),
    (test_topk.test_top_rows_with_retractions_equal_a_sorted_list, {}),
    (test_topk.test_top_rows_of_growing_streams_equal_a_sorted_list, {}),
    (test_upsert.test_by_a_sequence_the_largest_row_of_each_key_counts, {}),
    (test_upsert.test_by_arrival_rows_are_applied_one_after_another, {}),
    *((test_window.test_windows_are_those_of_the_model, {"closing": c}) for c in BOTH),
    *((test_window.test_sessions_are_those_of_the_model, {"closing": c}) for c in BOTH),
]


USUAL = (
    "with_retractions",
    "follow_the_rows",
    "full",
    "except all",
    "dedupe",
    "model-True",
    "last",
)


def _named(model, more: dict) -> str:
    return f"{model.__name__}-{'-'.join(map(str, more.values()))}"


def _case(model, more: dict):
    """The longest ones of each operator in every run, all of them in a long one."""
    name = _named(model, more)
    usual = any(word in name for word in USUAL) and "False" not in name
    return pytest.param(model, more, id=name, marks=[] if usual else pytest.mark.soak)


@pytest.mark.parametrize(("model", "more"), [_case(*case) for case in MODELS])
def test_a_model_holds_in_pieces(monkeypatch, model, more) -> None:
    """The same rows, the same state, whatever fits into one piece."""
    monkeypatch.setattr(Harness, "budget", 100)
    monkeypatch.setattr(Harness, "steps", 0)
    model(**more)
    assert Harness.steps

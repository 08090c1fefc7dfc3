"""Mutations of connectors and of what makes rows of them: upsert, lag, plugins."""

from __future__ import annotations

from mutate import Mutation

UPSERT = "tests/unit/operators/test_upsert.py::"
LAG = "tests/unit/runtime/test_lag.py::"
PLUGINS = "tests/unit/connectors/test_plugins.py::"
TIES = "test_at_one_place_a_put_counts_more_than_a_delete_and_then_the_columns_decide"
FILLED = "test_nothing_is_filled_from_before_a_delete"


def _u(test: str, old: str, new: str) -> Mutation:
    return Mutation(UPSERT + test, "operators/upsert/execute.py", old, new)


def _l(test: str, old: str, new: str, file: str = "runtime/lag.py") -> Mutation:
    return Mutation(LAG + test, file, old, new)


def _p(test: str, old: str, new: str) -> Mutation:
    return Mutation(PLUGINS + test, "connectors/plugins.py", old, new)


MUTATIONS = [
    # upsert
    _u(TIES, "keys = [*self.order, SortKey(_PUT)]", "keys = [*self.order, SortKey(_PUT, True)]"),
    _u(
        TIES,
        "return total_order(number, keys, columns, values)",
        "return total_order(number, keys, columns, [])",
    ),
    _u("test_a_negative_weight_deletes", "deletes = units < 0", "deletes = units > 1"),
    _u(
        FILLED,
        "order: np.ndarray = np.lexsort([came, number])",
        "order: np.ndarray = np.lexsort([-came, number])",
    ),
    _u(FILLED, "np.maximum(start, since)", "start"),
    _u(
        FILLED,
        "newest = np.maximum.accumulate(spot)[last]",
        "newest = last",
    ),
    _u(
        "test_rows_behind_the_stored_one_are_ignored_and_counted",
        "outdated = spot < begin[number]",
        "outdated = spot < begin[number] - 1",
    ),
    _u(
        "test_a_row_that_changes_nothing_writes_nothing",
        "kept, deleted = differs & (answer.found | ~folded.gone), folded.gone",
        "kept, deleted = differs, folded.gone",
    ),
    _u(
        "test_a_row_that_changes_nothing_writes_nothing",
        "differs = ~(was & now & same)",
        "differs = ~(was & now & ~same)",
    ),
    Mutation(
        UPSERT + "test_what_can_never_work_is_refused_when_it_is_declared",
        "operators/declaration.py",
        'moves = self.static is not None or self.text.startswith("transform ")',
        "moves = self.static is not None",
    ),
    # Lag
    _l("test_what_a_source_says_is_kept", "if seconds is None:", "if True:"),
    _l(
        "test_rows_are_estimated_from_bytes_and_bytes_from_rows",
        "rows = round(bytes_left * seen.rows / seen.bytes)",
        "rows = round(bytes_left * seen.bytes / seen.rows)",
    ),
    _l(
        "test_seconds_count_from_when_there_was_more_than_is_read_now",
        "seen.totals[0][1] <= done",
        "seen.totals[0][1] < done",
    ),
    _l("test_nothing_left_is_zero_in_every_unit", "return Lag(0, 0, 0.0)", "return Lag()"),
    _l(
        "test_metrics_show_lag_bad_rows_and_expectations",
        "self._bad.labels(source).inc(bad.count)",
        "self._bad.labels(source).inc(bad.rows)",
        "runtime/metrics.py",
    ),
    # Connectors of other packages
    _p(
        "test_two_packages_with_one_name_are_refused_by_name",
        "if len({one.package for one in offered}) > 1:",
        "if len(offered) > 2:",
    ),
    _p(
        "test_an_entry_point_that_cannot_be_used_names_its_package",
        "if not inspect.isclass(found) or not issubclass(found, wanted):",
        "if not inspect.isclass(found):",
    ),
    _p(
        "test_a_name_of_holdfasts_own_stays_its_own",
        "if one.name in own:",
        "if one.name == own:",
    ),
]

"""Few rows get few tasks, many rows all partitions; without Spark."""

from __future__ import annotations

import itertools

import pytest

from holdfast.connectors.base import Split
from holdfast.errors import InternalError
from holdfast.runtime.task import Control, check_partitions
from holdfast.runtime.task_counts import (
    ROWS_PER_RUN,
    ROWS_PER_TASK,
    ROWS_PER_TASK_MAX,
    TaskCountPolicy,
    task_counts,
)
from holdfast.state.partition import partition_range

SOURCES = {"t": frozenset({"in"})}


def split(rows: int | None, size: int = 0) -> Split:
    return Split("in", rows, size, None)


def policy(partitions: int = 256, cores: int = 256) -> TaskCountPolicy:
    return TaskCountPolicy(partitions, lambda: cores)


def seen(chosen: TaskCountPolicy, rows: int, work: int, size: int = 0) -> None:
    chosen.note(
        {"in": split(None, size)}, {"in": rows}, SOURCES, {"t": {"rows": work, "changes": 0}}
    )


@pytest.mark.parametrize("partitions", range(1, 257))
def test_ranges_of_all_counts_nest(partitions):
    """Every border of a smaller count is one of every larger count, up to all partitions."""
    counts = task_counts(partitions)
    assert counts[0] == 1
    assert counts[-1] == partitions
    assert len(counts) <= 9
    for few, many in itertools.pairwise(counts):
        borders = {partition_range(n, many).low for n in range(many)}
        assert {partition_range(n, few).low for n in range(few)} < borders


def test_few_rows_get_one_task_and_many_get_all_partitions():
    """From one task to all of them, never more than asked for, whatever the number is."""
    counts = [policy().choose("t", rows, 0, timed=False) for rows in (0, 1, ROWS_PER_TASK, 10**9)]
    assert counts == [1, 1, 1, 256]
    assert policy(6).choose("t", 10**9, 0, timed=False) == 6
    assert policy(6).choose("t", 3 * ROWS_PER_TASK, 0, timed=False) == 6
    assert policy(6).choose("t", 2 * ROWS_PER_TASK, 0, timed=False) == 2


def test_more_tasks_than_cores_only_where_a_task_has_much_to_do():
    """On two cores, eight tasks do the same work as two, later."""
    assert policy(cores=2).choose("t", 8 * ROWS_PER_TASK, 0, timed=False) == 2
    assert policy(cores=2).choose("t", 8 * ROWS_PER_TASK_MAX, 0, timed=False) == 8


def test_runs_to_look_into_count_as_work():
    """A few rows that meet thousands of runs are not left to one task."""
    runs = 4 * ROWS_PER_TASK // ROWS_PER_RUN
    assert policy().choose("t", 1, runs - 1, timed=False) == 4


def test_rows_of_a_source_that_does_not_count_them_are_learned():
    """First by bytes alone, then by how many bytes a row had."""
    chosen = policy()
    assert chosen.expected(split(None, 4_000_000)) == 1_000_000
    seen(chosen, 10_000, 10_000, size=1_000_000)
    assert chosen.expected(split(None, 4_000_000)) == 40_000
    assert chosen.expected(split(7, 4_000_000)) == 7


def test_an_operator_that_makes_more_of_its_rows_gets_more_tasks():
    """What it did for each row of its sources is expected again, for some epochs."""
    chosen = policy()
    seen(chosen, 1_000, 8 * 1_000)
    assert chosen.choose("t", ROWS_PER_TASK, 0, timed=False) == 8
    for _ in range(8):
        seen(chosen, 1_000, 1_000)
    assert chosen.choose("t", ROWS_PER_TASK, 0, timed=False) == 1


def test_time_alone_brings_back_what_came_before():
    """A window that closes without rows has as much to do as the epochs that filled it."""
    chosen = policy()
    seen(chosen, 4 * ROWS_PER_TASK, 4 * ROWS_PER_TASK)
    assert chosen.choose("t", 0, 0, timed=True) == 4
    assert chosen.choose("t", 0, 0, timed=False) == 1


def test_every_task_of_a_count_must_report_once():
    """The check goes by the count of this epoch, operator by operator."""
    controls = [Control("a", 0), Control("b", 0), Control("b", -1)]
    check_partitions(controls, {"a": 1, "b": 2, "not run": 5})
    with pytest.raises(InternalError, match="did not report"):
        check_partitions(controls, {"a": 1, "b": 4})
    with pytest.raises(InternalError, match="twice"):
        check_partitions([*controls, Control("b", 2)], {"a": 1, "b": 2})

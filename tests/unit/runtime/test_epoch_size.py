"""The size of an epoch follows its target: pure decisions, and what sources make of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.epoch_size import FIRST_ROWS, LEAST_ROWS, EpochSize, Pacing
from holdfast.sources import Generator


def played(size: EpochSize, rate: float, fixed_ms: float, epochs: int) -> list[float]:
    """Times of epochs that always have rows enough."""
    times = []
    for _ in range(epochs):
        rows = size.choice.rows
        times.append(fixed_ms + rows / rate)
        size.note({"s": rows}, times[-1])
    return times


@given(st.floats(1, 5_000), st.floats(0, 500), st.integers(1_000, 20_000))
def test_epochs_come_to_last_as_long_as_the_target_says(rate, fixed_ms, target_ms) -> None:
    """Within a fifth after a few epochs, whatever the rate and the fixed cost are."""
    size = EpochSize(target_ms, ("s",))
    times = played(size, rate, fixed_ms, 40)
    least = fixed_ms + LEAST_ROWS / rate
    for time in times[-3:]:
        assert 0.8 * target_ms <= time <= max(1.2 * target_ms, least * 1.01)


@given(st.lists(st.tuples(st.integers(0, 10**7), st.floats(0.1, 10**5)), max_size=30))
def test_sizes_at_most_double_or_halve(epochs) -> None:
    """And never fall below a least size, whatever is measured."""
    size = EpochSize(1_000, ("s",))
    before = size.choice.rows
    assert before == FIRST_ROWS
    for rows, milliseconds in epochs:
        after = size.note({"s": rows}, milliseconds).rows
        assert before // 2 <= after <= before * 2
        assert after >= LEAST_ROWS
        before = after


def test_few_rows_do_not_shrink_the_next_epoch() -> None:
    """A quiet source with a fixed cost of 200 ms would otherwise never take a backlog."""
    size = EpochSize(1_000, ("s",))
    played(size, 100, 200, 20)
    full = size.choice.rows
    for _ in range(20):
        assert size.note({"s": 3}, 200).why == "few rows came"
    assert size.choice.rows == full


def test_sources_share_by_what_they_had() -> None:
    """One that had nothing may take all as soon as it has some."""
    size = EpochSize(1_000, ("a", "b", "c"))
    assert size.of("a") == FIRST_ROWS // 3
    size.note({"a": 9_000, "b": 1_000}, 1_000)
    rows = size.choice.rows
    assert (size.of("a"), size.of("b"), size.of("c")) == (rows * 9 // 10, rows // 10, rows)


def test_a_generator_gives_no_more_than_its_limit() -> None:
    """The limit of the run, then its own again."""
    reader = Generator({"n": "id"}, rows=100, rows_per_epoch=40).open("g")
    pacing = Pacing(1_000, {"g": reader})
    pacing.limit()
    assert reader.plan().rows == 40
    reader.limit_rows(7)
    assert reader.plan().rows == 7
    reader.limit_rows(None)
    assert reader.plan().rows == 40

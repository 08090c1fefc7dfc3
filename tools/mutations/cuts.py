"""Mutations of what a new watermark does before its rows come."""

from __future__ import annotations

from mutate import Mutation

WINDOWS = "tests/unit/operators/test_window.py::"
APPLY = "tests/unit/operators/test_apply.py::"
LEFT_BEHIND = (
    WINDOWS + "test_a_part_that_a_delete_leaves_behind_the_watermark_closes_when_that_moves"
)

MUTATIONS = [
    Mutation(
        LEFT_BEHIND,
        "operators/window/session.py",
        "closes = None if context.watermark_us == context.previous_watermark_us else closed",
        "closes = closed",
    ),
    Mutation(
        LEFT_BEHIND,
        "operators/window/session.py",
        "watermark_us - self.lateness_us + 1 - self.gap_us}",
        "watermark_us - self.lateness_us + 1}",
    ),
    Mutation(
        WINDOWS + "test_a_row_never_extends_a_session_that_its_watermark_has_closed",
        "operators/window/session.py",
        "kept = standing.pick(np.flatnonzero(~leaves))",
        "kept = standing",
    ),
    Mutation(
        APPLY + "test_keys_are_forgotten_a_while_after_they_were_touched",
        "operators/apply/execute.py",
        " and mark != context.previous_watermark_us:",
        ":",
    ),
]

"""Mutations of what bounds memory and time: pieces of files, pieces of tasks, sizes of epochs."""

from __future__ import annotations

from mutate import Mutation

FILES = "tests/unit/connectors/test_file_pieces.py::"
SPOOL = "tests/unit/runtime/test_spool.py::"
PIECES = "tests/unit/runtime/test_pieces.py::test_a_model_holds_in_pieces"
SIZE = "tests/unit/runtime/test_epoch_size.py::"

MUTATIONS = [
    Mutation(
        FILES + "test_pieces_cover_every_row_once_and_keep_to_the_limits",
        "connectors/files/pieces.py",
        "        if taken and (len(taken) >= limits.files or not fits):",
        "        if taken and len(taken) >= limits.files:",
    ),
    Mutation(
        FILES + "test_repeated_values_count_as_often_as_they_are_there",
        "connectors/files/sizes.py",
        "                    size = max(size, unpacked)",
        "                    pass",
    ),
    Mutation(
        FILES + "test_a_file_that_was_begun_must_stay_as_it_was",
        "connectors/files/reader.py",
        "        if entry.size != part.size or self._digest(entry) != part.digest:",
        "        if entry.size != part.size:",
    ),
    Mutation(
        FILES + "test_a_restart_resumes_in_the_middle_of_a_file",
        "connectors/files/reader.py",
        "                    start = part.rows",
        "                    start = 0",
    ),
    Mutation(
        SPOOL + "test_pieces_have_every_row_once_and_keep_the_order_of_a_key",
        "runtime/spool.py",
        "sorted(stored, key=lambda s: s.number)",
        "sorted(stored, key=lambda s: -s.number)",
    ),
    Mutation(
        SPOOL + "test_rows_that_add_come_before_rows_that_retract_where_a_key_is_cut",
        "runtime/spool.py",
        "_signed(inside, retracting=False)",
        "_signed(inside, retracting=True)",
    ),
    Mutation(
        SIZE + "test_few_rows_do_not_shrink_the_next_epoch",
        "runtime/epoch_size.py",
        "        if total < _FULL * self.choice.rows or milliseconds <= 0:",
        "        if milliseconds <= 0:",
    ),
    Mutation(
        PIECES,
        "runtime/piece_work.py",
        "                previous = self.job.watermark_us\n",
        "",
    ),
    Mutation(
        "tests/unit/operators/test_holistic.py::test_values_at_ranks_are_those_of_the_sorted_list",
        "operators/aggregate/functions/selection.py",
        'rest[number], side="right"',
        'rest[number], side="left"',
    ),
    Mutation(
        "tests/unit/operators/test_holistic.py"
        "::test_percentiles_of_heavy_groups_are_those_of_light_ones",
        "operators/aggregate/functions/holistic.py",
        "            yield came.columns[0].to_numpy(zero_copy_only=False), came.weights\n",
        "",
    ),
    Mutation(
        "tests/unit/operators/test_join.py::test_pairs_are_the_same_however_many_come_at_once",
        "operators/join/matching.py",
        "np.maximum(begins, start)",
        "begins",
    ),
]

"""Mutations of sinks that write by tasks and in parts: upserts, folds, functions, staged files."""

from __future__ import annotations

from mutate import Mutation

UPSERT = "tests/unit/connectors/test_parquet_upsert.py::"
FOLDING = "tests/unit/connectors/test_parquet_folding.py::"
FUNCTION = "tests/unit/connectors/test_function.py::"
ROOM = "connectors/parquet_upsert/"
SPLIT = UPSERT + "test_buckets_that_grow_are_split_and_hold_their_own_rows_only"
CRASH = UPSERT + "test_a_crash_while_buckets_are_split_is_continued"
MODEL = UPSERT + "test_the_output_is_the_rows_as_they_are_now"

MUTATIONS = [
    Mutation(
        SPLIT,
        ROOM + "rewrite.py",
        "halves = bucket.split(min(_bits_for(",
        "halves = bucket.split(0 * min(_bits_for(",
    ),
    Mutation(
        UPSERT + "test_a_part_never_holds_more_than_its_bytes",
        ROOM + "rewrite.py",
        "            if self._bytes > self._bytes_max:\n",
        "            if self._bytes < 0:\n",
    ),
    Mutation(
        UPSERT + "test_row_groups_tell_their_slots_and_parts_read_no_others",
        ROOM + "rewrite.py",
        "            if self._file is None or end <= part.first or first >= part.end:",
        "            if self._file is None or end <= part.first:",
    ),
    Mutation(
        SPLIT,
        ROOM + "rewrite.py",
        "        waiting.extend(part.later)",
        "        del part.later[:]",
    ),
    Mutation(
        MODEL,
        ROOM + "rewrite.py",
        "            if self.epoch is not None and epoch_of(file) >= self.epoch:",
        "            if self.epoch is None:",
    ),
    Mutation(
        UPSERT + "test_parts_of_a_split_that_was_not_finished_do_not_count",
        ROOM + "remote.py",
        "set(old) - set(all_buckets(old))",
        "set()",
    ),
    Mutation(
        CRASH,
        ROOM + "remote.py",
        "({one.bucket} if one.old else set())",
        "set()",
    ),
    Mutation(
        UPSERT + "test_tasks_that_do_not_reach_the_output_leave_it_to_the_driver",
        ROOM + "tasks.py",
        "        if not self.remote and not os.path.isdir(",
        "        if self.remote and not os.path.isdir(",
    ),
    Mutation(
        UPSERT + "test_buckets_and_gaps_cover_every_slot_once",
        ROOM + "plan.py",
        "joined[place][0] < bucket.end",
        "joined[place][0] < bucket.first",
    ),
    Mutation(
        UPSERT + "test_an_output_of_an_older_version_goes_on",
        ROOM + "slots.py",
        "    mixed ^= mixed >> np.uint64(33)\n",
        "",
    ),
    Mutation(
        UPSERT + "test_large_row_groups_are_read_without_the_cache",
        ROOM + "changes.py",
        "                part = piece.part(first, end)",
        "                part = piece",
    ),
    Mutation(
        FOLDING + "test_a_crash_at_every_step_of_a_fold_leaves_all_rows",
        "connectors/parquet/folding.py",
        "        self._settle_link()\n        self._remove_attempts()\n",
        "        self._settle_link()\n",
    ),
    Mutation(
        FOLDING + "test_folded_files_are_cut_by_bytes_and_keep_order_and_rows",
        "connectors/parquet/fold_files.py",
        "            full = file is not None and file.size >= target_bytes",
        "            full = False",
    ),
    Mutation(
        FUNCTION + "test_large_objects_are_read_and_copied_by_ranges",
        "checkpoint/artifact.py",
        "        if target.stat(to).size != size:",
        "        if size < 0:",
    ),
    Mutation(
        FUNCTION + "test_a_handler_gets_an_epoch_in_bounded_batches_and_the_same_order",
        "connectors/parquet_files.py",
        "        count = max(1, min(_BATCH_ROWS, bytes_max // (4 * wide)))",
        "        count = 1 << 20",
    ),
]

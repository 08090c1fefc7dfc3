"""Mutations of the files source, its failures, and what a run writes on its checkpoints."""

from __future__ import annotations

from mutate import Mutation

UNIT = "tests/unit/connectors/test_files.py::"
SPARK = "tests/integration/pipeline/test_files_in_spark.py::"


def _u(test: str, file: str, old: str, new: str) -> Mutation:
    return Mutation(UNIT + test, file, old, new)


def _s(test: str, file: str, old: str, new: str) -> Mutation:
    return Mutation(SPARK + test, file, old, new)


MUTATIONS = [
    _u(
        "test_patterns_are_escaped_and_directories_name_columns",
        "connectors/files/frames.py",
        'return _PATTERN.sub(lambda match: "\\\\" + match.group(), path)',
        "return path",
    ),
    _u(
        "test_the_same_bytes_with_a_new_time_are_the_same_file",
        "connectors/files/reader.py",
        "        if entry.size != seen.size or digest != seen.digest:",
        "        if entry.modified_us != seen.modified_us:",
    ),
    _u(
        "test_a_file_that_changes_while_it_is_read_fails_its_epoch",
        "connectors/files/reader.py",
        "        if now is not None and now != entry:",
        "        if now is None:",
    ),
    _u(
        "test_a_young_file_waits_until_it_is_quiet",
        "connectors/files/listing.py",
        "        if age_ms >= self._min_age_ms:",
        "        if age_ms >= -(10**12):",
    ),
    _u(
        "test_names_that_are_no_text_do_not_hold_up_the_others",
        "connectors/files/reader.py",
        "        if listing.unreadable:",
        "        if listing.ready:",
    ),
    _u(
        "test_a_file_that_vanished_is_not_planned",
        "connectors/files/reader.py",
        "            moved = {old.path for old, new in entries if new != old}",
        "            moved = {old.path for old, new in entries if not old}",
    ),
    _u(
        "test_read_files_are_archived_or_deleted_behind_the_floor",
        "connectors/files/reader.py",
        "max(0, floor.files - first)]",
        "max(0, floor.files + 9 - first)]",
    ),
    _u(
        "test_a_changed_file_is_never_deleted_and_failures_are_tried_again",
        "connectors/files/after_read.py",
        "        if (there.size, there.modified_us) != (seen.size, seen.modified_us):",
        "        if there.size < 0:",
    ),
    _u(
        "test_ordered_names_keep_only_the_last_ones",
        "connectors/files/file_log.py",
        "self._ordered and self.after is not None and path <= self.after",
        "self._ordered and path <= self.order[-1].path",
    ),
    _u(
        "test_old_files_are_forgotten_behind_a_bound",
        "connectors/files/file_log.py",
        "            while gone < limit and self.order[gone].modified_us < self.old_us:",
        "            while gone < 0 and self.order[gone].modified_us < self.old_us:",
    ),
    _u(
        "test_the_log_is_written_again_when_it_grew_or_shrank",
        "connectors/files/file_log.py",
        "        if grown or shrunk:",
        "        if grown:",
    ),
    _u(
        "test_an_unchanged_directory_is_not_listed_again",
        "connectors/files/listing.py",
        "    return kept.settled and quiet and kept.changed_ns == changed_ns",
        "    return False",
    ),
    _u(
        "test_a_directory_that_does_not_fit_is_refused_before_spark",
        "connectors/files/formats.py",
        "        elif self._known[0] != found and not settled:",
        "        elif settled:",
    ),
    _s(
        "test_a_listed_name_is_a_literal",
        "connectors/files/frames.py",
        "texts = [escaped(self.url(path)) for path in paths]",
        "texts = [self.url(path) for path in paths]",
    ),
    _s(
        "test_partition_directories_are_sparks",
        "connectors/files/frames.py",
        "groups.setdefault((partition_columns(path), self._way(path)), []).append(path)",
        "groups.setdefault(((), self._way(path)), []).append(path)",
    ),
    _s(
        "test_the_sessions_time_zone_is_the_users",
        "spark/session.py",
        "RUNTIME = {",
        'RUNTIME = {\n    "spark.sql.session.timeZone": "UTC",',
    ),
    _s(
        "test_the_sessions_time_zone_is_the_users",
        "runtime/task.py",
        "    rows = (in_utc(batch) for batch in batches if batch.num_rows)",
        "    rows = (batch for batch in batches if batch.num_rows)",
    ),
    _s(
        "test_failures_name_the_file_the_record_and_the_cause",
        "spark/classic.py",
        '            throwable = _reach(throwable, "getCause")()',
        "            throwable = None",
    ),
    _s(
        "test_rows_are_those_of_the_source_whatever_becomes_of_them",
        "connectors/base.py",
        "    return reader.rows_read(split, scans) or 0",
        "    return sum(scan.rows for scan in scans)",
    ),
    _s(
        "test_a_run_marks_its_checkpoints_and_tells_what_it_does",
        "settings.py",
        "            return msgspec.structs.replace(self, epochs_max=1)",
        "            return msgspec.structs.replace(self, epochs_max=None)",
    ),
    _s(
        "test_a_pipeline_that_has_run_can_grow_and_removals_are_recorded",
        "api/launch.py",
        "        if changed and not changes.backfills:",
        "        if False:",
    ),
    _s(
        "test_another_static_table_is_refused_by_name",
        "runtime/checkpoint_marks.py",
        "    if changed and not allow_changes:",
        "    if False:",
    ),
]

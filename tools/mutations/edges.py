"""Mutations of the command line, the guard's places and the bounds of what is unpacked."""

from __future__ import annotations

from mutate import Mutation

SQL = "tests/integration/cli/test_sql_closed.py::"
REFERENCE = "tests/integration/cli/test_reference.py::"
VERBS = "tests/integration/cli/test_every_verb.py::"
PLACES = "tests/unit/guard/test_locations.py::"
BOMBS = "tests/unit/guard/test_bombs.py::"
BOUNDS = "tests/unit/state/test_run_bounds.py::"

MUTATIONS = [
    # Queries
    Mutation(
        SQL + "test_a_query_cannot_write_or_read_outside",
        "state/sql.py",
        '    if kind.endswith("_NODE") and kind not in _NODES:',
        '    if kind == "NODE":',
    ),
    Mutation(
        SQL + "test_a_query_cannot_write_or_read_outside",
        "state/sql.py",
        "        if name.lower() not in _TABLE_FUNCTIONS:",
        "        if name in _TABLE_FUNCTIONS:",
    ),
    Mutation(
        SQL + "test_a_condition_cannot_leave_its_parentheses",
        "state/sql.py",
        '        if depth or least or ";" in signs or not where.strip():',
        "        if not where.strip():",
    ),
    Mutation(
        SQL + "test_a_file_is_never_written_into_any_store",
        "checkpoint/directory.py",
        "    place = os.path.realpath(os.path.expanduser(path))",
        "    place = os.path.expanduser(path)",
    ),
    # The guard's places
    Mutation(
        PLACES + "test_a_target_that_overlaps_is_refused_and_leaves_nothing",
        "guard/locations.py",
        '    return inner == outer or inner.startswith(outer.rstrip("/") + "/")',
        "    return inner == outer",
    ),
    Mutation(
        PLACES + "test_what_cannot_be_saved_makes_no_store",
        "guard/_save.py",
        "        if not _exists(store, known_as, options):",
        "        if _exists(store, known_as, options):",
    ),
    Mutation(
        PLACES + "test_a_failure_removes_what_was_built",
        "guard/atomic_directory.py",
        "        disk.remove_tree(path)\n        for each in made:",
        "        for each in made:",
    ),
    Mutation(
        PLACES + "test_a_restore_that_still_runs_is_not_cleaned_up",
        "guard/atomic_directory.py",
        "            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "            pass",
    ),
    # What is unpacked
    Mutation(
        BOUNDS + "test_a_bomb_with_valid_digests_costs_no_memory",
        "state/arrow/message_bounds.py",
        "    if packed and sum(sizes) > UNPACKED_BYTES_MAX:",
        "    if packed and sum(sizes) < 0:",
    ),
    Mutation(
        BOUNDS + "test_a_column_of_fixed_width_unpacks_to_what_its_rows_need",
        "state/arrow/message_bounds.py",
        "        if packed and most is not None and size > most:",
        "        if most is None and size < 0:",
    ),
    Mutation(
        BOUNDS + "test_typed_columns_of_a_journal_are_never_compressed",
        "journal/format/columns.py",
        "        refuse_packed(buffer)",
        "        len(buffer)",
    ),
    Mutation(
        BOMBS + "test_a_stream_of_blocks_is_bounded_before_it_is_unpacked",
        "guard/spark_files/lz4_blocks.py",
        "    if total > bytes_max:",
        "    if total < 0:",
    ),
    Mutation(
        BOMBS + "test_a_snapshot_that_unpacks_to_too_much_is_refused",
        "guard/spark_files/metadata_logs.py",
        "            check_members(archive, path)\n",
        "",
    ),
    # One way to end
    Mutation(
        VERBS + "test_streams_that_cannot_be_written",
        "cli/output.py",
        'raise OutputError(getattr(error, "strerror", None) or "it is closed") from error',
        "return bool(error is None)",
    ),
    Mutation(
        VERBS + "test_bad_places_and_options",
        "cli/failures.py",
        "    if as_json:\n        wrong = InvalidInputError",
        "    if not as_json:\n        wrong = InvalidInputError",
    ),
    # One grammar for naming a checkpoint
    Mutation(
        REFERENCE + "test_a_label_wins_over_an_epoch_and_over_a_time",
        "checkpoint/reference.py",
        "        if not found and _TIME.fullmatch(text):",
        "        if _TIME.fullmatch(text):",
    ),
    Mutation(
        REFERENCE + "test_the_library_takes_the_same_names",
        "checkpoint/recovery/plan.py",
        'if options.resume is not None else "abandoned"',
        'if options.resume else "abandoned"',
    ),
    Mutation(
        REFERENCE + "test_a_time_without_a_zone_is_utc",
        "checkpoint/reference.py",
        "        moment = moment.replace(tzinfo=UTC)",
        "        moment = moment.replace(tzinfo=UTC) + timedelta(hours=1)",
    ),
    # One file for a command
    Mutation(
        "tests/integration/cli/test_own_command.py::test_listing_imports_no_command",
        "cli/app.py",
        "        return file.readline().strip().strip('\"')\n",
        "        return (load(name).help or file.readline()).split('\\n')[0]\n",
    ),
]

"""Mutations of the checkpoint core, the journal and the guard."""

from __future__ import annotations

from mutate import Mutation

DEFECTS = "tests/unit/checkpoint/test_defects.py::"
GUARD = "tests/unit/guard/"
RACES = "tests/crash/test_racing_writers.py::"
MOMENTS = "tests/crash/test_interleavings.py::"
BESIDE = "tests/unit/journal/test_concurrent_writer.py::"


def _g(test: str, file: str, old: str, new: str) -> Mutation:
    return Mutation(GUARD + test, file, old, new)


def _d(test: str, file: str, old: str, new: str, times: int = 1) -> Mutation:
    return Mutation(DEFECTS + test, file, old, new, times)


MUTATIONS = [
    # Retention and lineage
    _d(
        "test_retention_by_count_deletes_the_only_full_base",
        "checkpoint/gc/reachability.py",
        "        needed.update(e.path for e in manifest.files if e.pipeline in (None, pipeline))",
        "        needed.update(e.path for e in manifest.files if manifest.checkpoint in e.path)",
    ),
    _d(
        "test_deleting_a_checkpoint_that_a_later_one_depends_on_breaks_it",
        "checkpoint/gc/reachability.py",
        "            kept = entry.path in needed",
        "            kept = entry.path in needed and meaning.checkpoint in live",
    ),
    _d(
        "test_deleting_a_checkpoint_that_a_later_one_depends_on_breaks_it",
        "checkpoint/gc/collector.py",
        "        elif summary.checkpoint == current:",
        "        elif summary.checkpoint is None:",
    ),
    _d(
        "test_a_restart_makes_a_checkpoint_due_at_once",
        "checkpoint/schedule.py",
        "            self._start_ms -= min(max(elapsed_ms, 0), settings.interval_ms)",
        "            self._start_ms -= settings.interval_ms",
    ),
    _d(
        "test_a_crash_loop_evicts_every_good_checkpoint",
        "checkpoint/schedule.py",
        "            self._start_ms -= min(max(elapsed_ms, 0), settings.interval_ms)",
        "            self._start_ms -= settings.interval_ms",
    ),
    _d(
        "test_retention_runs_before_the_sinks_have_committed",
        "checkpoint/gc/retention.py",
        "    committed = [entry for entry in state.candidates if outcomes.fully_committed(entry)]",
        "    committed = list(state.candidates)",
    ),
    _d(
        "test_a_retention_error_turns_a_published_checkpoint_into_a_failure",
        "checkpoint/gc/collector.py",
        "        except HoldfastError as error:\n            report.error = error\n        fill",
        "        except OSError as error:\n            report.error = error\n        fill",
    ),
    _d(
        "test_partial_directories_are_never_reclaimed_or_count_as_kept",
        "checkpoint/gc/reachability.py",
        '                go = f"unreferenced {meaning.kind}"',
        "                go = None",
    ),
    _d(
        "test_keep_zero_deletes_everything_and_leaves_a_dangling_pointer",
        "settings.py",
        '    "retain": 2,',
        '    "retain": 0,',
    ),
    # Durability and atomicity
    _d(
        "test_metadata_is_written_without_fsync",
        "storage/local/storage.py",
        "                if durable:\n                    self._disk.sync(descriptor)",
        "                if not durable:\n                    self._disk.sync(descriptor)",
    ),
    _d(
        "test_metadata_is_written_without_fsync",
        "checkpoint/commit/protocol.py",
        "storage.barrier([*own_files, directory.at(path), *staged])",
        "storage.barrier([directory.at(path), *staged])",
    ),
    _d(
        "test_the_mere_existence_of_metadata_counts_as_complete",
        "checkpoint/commit/catalog.py",
        "            return _read_chain(directory, sequences)",
        "            return _with_strays(directory, _read_chain(directory, sequences))",
    ),
    _d(
        "test_a_rename_is_not_followed_by_a_directory_fsync",
        "storage/local/storage.py",
        "        try:\n            self._disk.sync_dir(os.path.dirname(target))",
        "        try:\n            pass",
    ),
    _d(
        "test_a_rename_is_not_followed_by_a_directory_fsync",
        "storage/local/storage.py",
        "            if durable:\n                self._disk.sync_dir(os.path.dirname(target))",
        "            if not durable:\n                self._disk.sync_dir(os.path.dirname(target))",
    ),
    _d(
        "test_two_files_both_act_as_the_current_one",
        "checkpoint/recovery/evidence.py",
        "        target = reader.resolve(resume, catalog=state) if resume is not None else None",
        "        import json\n"
        '        hint = json.loads(reader.directory.get("_latest", bytes_max=9999))["checkpoint"]\n'
        "        target = reader.resolve(resume or hint, catalog=state)",
    ),
    _d(
        "test_the_manifest_is_rewritten_after_the_sink_commit",
        "checkpoint/outcomes.py",
        '    failpoint("outcome.before_record")\n',
        "    rewritten = directory.at(paths.manifest(summary.checkpoint))\n"
        "    storage.put(rewritten, storage.get(rewritten))\n",
    ),
    _d(
        "test_a_failed_catalog_write_leaves_a_phantom_in_memory",
        "checkpoint/commit/catalog.py",
        "        data = record_bytes(record)\n",
        "        data = record_bytes(record)\n"
        "        self.state = fold(self.state, record, hashlib.sha256(data).hexdigest())\n",
    ),
    _d(
        "test_a_failed_catalog_write_leaves_a_phantom_in_memory",
        "checkpoint/commit/protocol.py",
        "        _forget(directory, storage, path)\n",
        "        pass\n",
        times=2,
    ),
    _d(
        "test_a_retried_put_that_had_succeeded_is_reported_as_a_conflict",
        "checkpoint/commit/conditional_put.py",
        '    return "ours" if content == data else "other"',
        '    return "other"',
    ),
    _d(
        "test_exists_already_is_taken_for_success_when_another_writer_wrote_it",
        "checkpoint/commit/conditional_put.py",
        '    return "ours" if content == data else "other"',
        '    return "ours"',
    ),
    _d(
        "test_artifacts_lie_beside_the_checkpoint_so_that_delete_deletes_nothing",
        "format/paths.py",
        '    return f"{checkpoint_dir(checkpoint)}/operators/{name}/{file}"',
        '    return f"{checkpoint_dir(checkpoint)}operators/{name}/{file}"',
    ),
    # Recovery
    _d(
        "test_torn_newest_metadata_is_a_hard_error_or_becomes_a_parent",
        "checkpoint/recovery/evidence.py",
        "        if intact(checked[entry.checkpoint]):",
        "        if True:",
    ),
    _d(
        "test_torn_newest_metadata_is_a_hard_error_or_becomes_a_parent",
        "checkpoint/recovery/plan.py",
        "        elif broken:\n",
        "        elif False:\n",
    ),
    _d(
        "test_a_lost_pointer_or_a_network_error_means_a_fresh_start",
        "checkpoint/recovery/evidence.py",
        "    except HoldfastError as error:\n        return replace(empty, failure=error)",
        "    except HoldfastError as error:\n        return empty",
    ),
    _d(
        "test_a_lost_catalog_means_a_fresh_start",
        "checkpoint/reader.py",
        "        if self.has_artifacts():",
        "        if not self.directory.pipeline:",
    ),
    _d(
        "test_every_candidate_bad_gives_the_same_answer_as_an_empty_store",
        "checkpoint/recovery/plan.py",
        "        return _refuse(plan, _nothing_intact(evidence, options))",
        "        return plan",
    ),
    _d(
        "test_a_restart_sets_the_epoch_back_and_forgets_offsets_and_watermark",
        "checkpoint/store.py",
        "        return Epoch(max(self._catalog.state.epoch_max, self._epoch_seen) + 1)",
        "        return Epoch(len(self._catalog.state.live) and 0)",
    ),
    _d(
        "test_an_epoch_of_a_branch_that_was_left_is_used_again",
        "checkpoint/store.py",
        "        return Epoch(max(self._catalog.state.epoch_max, self._epoch_seen) + 1)",
        "        return Epoch(self._current.epoch + 1 if self._current else 0)",
    ),
    _d(
        "test_corrupt_operator_state_is_logged_and_the_operator_starts_from_scratch",
        "checkpoint/reader.py",
        "        if sha256_hex(data) != small.sha256:",
        "        if not data:",
    ),
    _d(
        "test_offsets_are_restored_while_operator_state_is_empty",
        "format/validate.py",
        "        if part.stateful and part.name not in entries:",
        "        if part.stateful and part.name in entries and not part.name:",
    ),
    _d(
        "test_watermarks_restart_at_minus_infinity",
        "checkpoint/draft.py",
        "        self._watermark_us = parent.watermark_us\n",
        "        self._watermark_us = None\n",
    ),
    _d(
        "test_watermarks_restart_at_minus_infinity",
        "checkpoint/commit/protocol.py",
        "    if now is None or now < before:",
        "    if now is None:",
    ),
    _d(
        "test_the_pipeline_hash_depends_on_the_order_of_parts",
        "format/topology.py",
        "    ordered = Topology(parts=sorted(value.parts, key=lambda part: part.name), "
        "vnodes=value.vnodes)",
        "    ordered = value",
    ),
    _d(
        "test_a_changed_pipeline_is_only_a_log_line",
        "checkpoint/recovery/plan.py",
        "    if changes and not options.allow_changes:",
        "    if not changes and not options.allow_changes and not plan.pipeline:",
    ),
    _d(
        "test_a_directory_name_that_does_not_match_the_id_inside",
        "format/manifest.py",
        "    if manifest.checkpoint != checkpoint:",
        "    if not manifest.checkpoint:",
    ),
    # Integrity
    _d(
        "test_truncated_state_loads_without_complaint",
        "checkpoint/verify.py",
        "    if size != entry.size:",
        "    if size < 0:",
    ),
    _d(
        "test_verification_tests_presence_only_and_only_of_some_files",
        "checkpoint/verify.py",
        "        if actual != entry.sha256:",
        "        if not actual:",
    ),
    _d(
        "test_verification_tests_presence_only_and_only_of_some_files",
        "checkpoint/verify.py",
        "        for entry in manifest.files:\n            known",
        "        for entry in manifest.files[-1:]:\n            known",
    ),
    _d(
        "test_the_checksum_is_optional_or_covers_only_the_sidecar",
        "format/canonical.py",
        "    if actual != document.sha256:",
        "    if not actual:",
    ),
    _d(
        "test_inline_and_external_flags_contradict_each_other_and_ranges_overlap",
        "format/validate.py",
        "            if start + length > after:",
        "            if start > after:",
    ),
    _d(
        "test_a_document_of_a_newer_version_is_accepted",
        "format/canonical.py",
        "    if version > kind.newest_format:",
        "    if version > kind.newest_format + 1:",
    ),
    _d(
        "test_listing_silently_skips_what_it_cannot_read",
        "checkpoint/reader.py",
        "        if state.damage:\n            raise",
        "        if not state.live:\n            raise",
    ),
    _d(
        "test_a_hash_that_covers_only_the_payload_lets_records_be_edited_and_reordered",
        "checkpoint/commit/catalog.py",
        "        if not first and not self._last_damaged and record.previous != "
        "self._state.head_sha256:",
        "        if not first and not self._last_damaged and not record.previous:",
    ),
    _d(
        "test_a_pointer_past_the_end_of_a_truncated_log_restores_what_does_not_exist",
        "checkpoint/recovery/witness.py",
        "    if hint.sequence > state.head:",
        "    if hint.sequence < 0:",
    ),
    _d(
        "test_a_valid_but_inconsistent_document_makes_open_fail_instead_of_falling_back",
        "checkpoint/verify.py",
        "        except (CorruptionError, RefusedError, NotFoundError) as error:",
        "        except (RefusedError, NotFoundError) as error:",
    ),
    # A store that changes while it is read
    Mutation(
        RACES + "test_a_store_that_changes_while_it_is_read_is_not_called_damaged",
        "checkpoint/commit/catalog.py",
        "        held = bool(tags) and max(tags) == newest and (known is None or known in tags)",
        "        held = bool(tags) and (known is None or known in tags)",
    ),
    Mutation(
        RACES + "test_a_store_that_changes_while_it_is_read_is_not_called_damaged",
        "checkpoint/reader.py",
        "            state = load_catalog(self.directory)\n            if state is not None:",
        "            if state is not None:",
    ),
    Mutation(
        RACES + "test_a_store_that_changes_while_it_is_read_is_not_called_damaged",
        "checkpoint/verify.py",
        "        if report.ok or state is None or reader.head() == state.head:",
        "        if True:",
    ),
    Mutation(
        RACES + "test_a_store_that_changes_while_it_is_read_is_not_called_damaged",
        "checkpoint/verify.py",
        "    retired = reader.retired(suspects) if suspects else set()",
        "    retired = set()",
    ),
    Mutation(
        RACES + "test_a_store_that_changes_while_it_is_read_is_not_called_damaged",
        "checkpoint/recovery/evidence.py",
        "        if not evidence.retired and head in (None, looked, evidence.state.head):",
        "        if True:",
    ),
    Mutation(
        RACES + "test_what_is_damaged_stays_damaged_while_the_pipeline_runs",
        "checkpoint/reader.py",
        "        return set(checkpoints) - live",
        "        return set(checkpoints)",
    ),
    # Sync, fork, pins, rebuild and the journal beside others
    Mutation(
        MOMENTS + "test_a_sync_survives_a_busy_source_and_another_sync",
        "checkpoint/replication/sync.py",
        '_LOOK_AGAIN = ("not_found", "missing", "retired",',
        '_LOOK_AGAIN = ("not_found", "missing",',
    ),
    Mutation(
        MOMENTS + "test_a_savepoint_at_the_destination_holds_although_a_sync_is_under_way",
        "checkpoint/replication/sync.py",
        "if s.checkpoint not in held}",
        "if True}",
    ),
    Mutation(
        MOMENTS + "test_two_first_syncs_to_one_directory_do_not_mix",
        "checkpoint/replication/sync.py",
        "        self._held.take()\n        record = first",
        "        record = first",
    ),
    Mutation(
        MOMENTS + "test_a_rebuild_beside_a_live_writer_loses_no_commit",
        "checkpoint/recovery/rebuild.py",
        "        if (plan.take and not plan.leap) or record_numbers(reader.directory) == numbers:",
        "        if True:",
    ),
    Mutation(
        MOMENTS + "test_a_forced_rebuild_of_a_whole_catalog_fences_the_writer",
        "checkpoint/recovery/rebuild.py",
        "    leap = _end_is_lost(there, hint, take)",
        "    leap = True",
    ),
    Mutation(
        MOMENTS + "test_a_rebuild_lists_nothing_that_a_retention_is_removing",
        "checkpoint/recovery/rebuild.py",
        "            dropped.update(body.checkpoints)",
        "            pass",
    ),
    Mutation(
        MOMENTS + "test_a_fork_has_all_of_its_files_or_is_no_fork",
        "checkpoint/replication/fork.py",
        "        try:\n            _pin(reader, environment, new, source)\n",
        "        try:\n            pass\n",
    ),
    Mutation(
        MOMENTS + "test_a_collection_of_an_empty_pipeline_lets_no_pin_of_a_new_fork_go",
        "checkpoint/gc/collector.py",
        "            self._catalog.confirm_alive()\n        for path in fork_pins",
        "            pass\n        for path in fork_pins",
    ),
    Mutation(
        MOMENTS + "test_unpin_that_slept_through_a_fork_puts_the_pin_back",
        "checkpoint/pins.py",
        "    if fork is not None:\n        try:",
        "    if False:\n        try:",
    ),
    Mutation(
        MOMENTS + "test_letting_a_savepoint_go_disturbs_nobody",
        "checkpoint/reader.py",
        "                    continue  # unpinned since it was listed",
        "                    raise",
    ),
    Mutation(
        BESIDE + "test_a_writer_at_work_is_not_taken_for_damage",
        "journal/reader.py",
        "                if not _may_pass(error) or now == seen or attempt",
        "                if True or attempt",
    ),
    Mutation(
        BESIDE + "test_a_writer_at_work_is_not_taken_for_damage",
        "journal/verify.py",
        "        if report.ok or _settled(files, layout) == before:",
        "        if True:",
    ),
    Mutation(
        BESIDE + "test_a_file_that_vanishes_from_a_listing_takes_no_other_with_it",
        "journal/files.py",
        "                        with suppress(FileNotFoundError):",
        "                        with suppress():",
    ),
    Mutation(
        BESIDE + "test_a_hold_that_was_confirmed_holds",
        "journal/maintenance.py",
        "    if late.base_sequence < plan.base_sequence:",
        "    if False:",
    ),
    # Concurrency
    _d(
        "test_two_writers_on_one_directory_get_the_same_id_and_one_overwrites_the_other",
        "checkpoint/commit/catalog.py",
        "        try:\n            publish(self._storage, path, data, self._clock)",
        "        try:\n            self._storage.put(path, data)",
    ),
    _d(
        "test_a_zombie_commits_after_its_successor_has_started",
        "checkpoint/commit/catalog.py",
        "            self._dead = self._fenced(number)\n            raise self._dead from error",
        "            return record",
    ),
    _d(
        "test_a_zombie_writes_into_a_slot_that_a_compaction_has_freed",
        "checkpoint/commit/catalog.py",
        "        if not held:\n            raise self._fenced(newest)",
        "        del held",
    ),
    _d(
        "test_a_read_only_command_helpfully_writes",
        "checkpoint/reader.py",
        "    storage = storage_at(root, create=False, options=options)\n",
        "    storage = storage_at(root, create=True, options=options)\n",
    ),
    _d(
        "test_a_second_writer_on_the_same_machine_waits_for_nothing_and_breaks_nothing",
        "storage/local/storage.py",
        "            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)",
    ),
    # Names and input
    _d(
        "test_names_with_separators_escape_the_root",
        "ids.py",
        'NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")',
        'NAME_PATTERN = re.compile(r"(?s).{1,128}")',
    ),
    _d(
        "test_intervals_below_one_second_are_always_due",
        "checkpoint/schedule.py",
        "        return max(0, self._settings.interval_ms - elapsed)",
        "        return max(0, self._settings.interval_ms // 1_000 * 1_000 - elapsed)",
    ),
    _d(
        "test_a_clock_stepped_back_stops_checkpoints",
        "checkpoint/schedule.py",
        "self._clock.monotonic_ms()",
        "self._clock.wall_us() // 1_000",
        times=2,
    ),
    _d(
        "test_a_setting_is_accepted_documented_and_never_read",
        "checkpoint/gc/retention.py",
        "settings.retain_age_ms * 1_000",
        "0",
    ),
    _d(
        "test_every_failure_collapses_into_one_code",
        "checkpoint/reader.py",
        '                kind="not_a_store",',
        '                kind="no_pipeline",',
    ),
    # The guard
    _g(
        "test_offline.py::test_closure_is_what_the_last_batch_needs_and_nothing_else",
        "guard/closure.py",
        "        if batch > 0:  # on a restart",
        "        if batch > 10**9:  # on a restart",
    ),
    _g(
        "test_offline.py::test_closure_is_what_the_specification_says_computed_another_way",
        "guard/closure.py",
        "        for part, size in parts:",
        "        for part, size in parts[1:]:",
    ),
    _g(
        "test_offline.py::test_a_batch_whose_state_is_gone_already_is_never_saved_half",
        "guard/closure.py",
        "        if path not in self._listing.entries:\n            raise moved(path)",
        "        if path not in self._listing.entries:\n            return",
    ),
    _g(
        "test_offline.py::test_damage_is_never_saved",
        "guard/capture.py",
        "        _check_content(captured)\n        _check_still",
        "        _check_still",
    ),
    _g(
        "test_offline.py::test_behind_the_last_savepoint_is_refused",
        "guard/_save.py",
        "        _check_forward(before, captured)",
        "        pass",
    ),
    _g(
        "test_offline.py::test_damaged_savepoint_is_not_restored",
        "guard/savepoints.py",
        "    if actual != file.sha256:",
        "    if len(actual) != len(file.sha256):",
    ),
    _g(
        "test_offline.py::test_saved_and_restored_files_are_the_same_bytes",
        "guard/_restore.py",
        '        if meaning.kind == "operator":',
        '        if meaning.kind == "nothing":',
    ),
    _g(
        "test_offline.py::test_savepoints_share_unchanged_files_and_copy_only_what_changed",
        "guard/_save.py",
        "            if needed * 2 < entries[path].size:",
        "            if needed * 2 < entries[path].size * 10**9:",
    ),
    _g(
        "test_every_flipped_bit.py::test_every_byte_of_the_live_checkpoint_without_a_savepoint",
        "guard/_verify.py",
        "        self._steps()",
        "        pass",
    ),
    _g(
        "test_every_flipped_bit.py::"
        "test_without_checksums_beside_them_saved_files_are_still_covered",
        "guard/_verify.py",
        "            self._same(path, sha256_hex(data), saved.sha256)",
        "            pass",
    ),
    _g(
        "test_offline.py::test_a_lost_checkpoint_is_not_a_fresh_start",
        "guard/_verify.py",
        "    if index is not None:\n        report.finding(",
        "    if index is None and report is None:\n        report.finding(",
    ),
    _g(
        "test_offline.py::test_unknown_layouts_are_refused_not_guessed",
        "guard/capture.py",
        "        listing.refuse_foreign()",
        "        pass",
    ),
]

"""Mutations of the fence, the witnesses, recovery, full disks and retries."""

from __future__ import annotations

from mutate import Mutation

SLEEPERS = "tests/crash/test_sleeping_writers.py::"
LOST = "tests/unit/checkpoint/test_lost_records.py::"
BOUNDED = "tests/unit/checkpoint/test_bounded_catalog.py::"
FULL = "tests/unit/checkpoint/test_full_disk.py::"
RETRIES = "tests/unit/storage/test_own_retries.py::"
DEPTH = "tests/unit/state/test_recovery_depth.py::"


MUTATIONS = [
    # The fence
    Mutation(
        SLEEPERS + "test_two_sleepers_and_a_compaction",
        "checkpoint/commit/catalog.py",
        "        held = bool(tags) and max(tags) == newest and (known is None or known in tags)\n"
        "        if held and known is not None:\n"
        "            held = self._is_ours(known, tags[known])\n",
        "        held = bool(tags) and (known is None or known in tags)\n",
    ),
    Mutation(
        SLEEPERS + "test_random_interleavings_of_five_writers",
        "checkpoint/commit/catalog.py",
        "        held = bool(tags) and max(tags) == newest and (known is None or known in tags)\n"
        "        if held and known is not None:\n"
        "            held = self._is_ours(known, tags[known])\n",
        "        held = bool(tags) and (known is None or known in tags)\n",
    ),
    Mutation(
        SLEEPERS + "test_the_same_bytes_that_come_twice_fool_nobody",
        "checkpoint/commit/catalog.py",
        "max(tags) == newest and (known is None or known in tags)",
        "(known is None or known in tags)",
    ),
    Mutation(
        SLEEPERS + "test_a_record_that_was_replaced_is_noticed_by_the_commit_itself",
        "checkpoint/commit/catalog.py",
        "            held = self._is_ours(known, tags[known])",
        "            held = True",
    ),
    Mutation(
        SLEEPERS + "test_a_record_that_was_replaced_under_a_writer_fences_it",
        "checkpoint/commit/catalog.py",
        "            self._check_held(self.state.head, self.state.head)",
        "            self._check_held(self.state.head, None)",
    ),
    Mutation(
        SLEEPERS + "test_a_rebuild_that_leaps_over_a_live_writer_takes_its_commits_along",
        "checkpoint/commit/catalog.py",
        "        return not any(planned_from < number < self.state.head for number in self._seen)",
        "        return True",
    ),
    Mutation(
        SLEEPERS + "test_a_dead_record_is_named_and_removed",
        "checkpoint/verify.py",
        "        if free or number in chained:",
        "        if True:",
    ),
    Mutation(
        SLEEPERS + "test_an_interrupted_compaction_leaves_no_dead_record",
        "checkpoint/verify.py",
        "        if free or number in chained:",
        "        if free:",
    ),
    Mutation(
        SLEEPERS + "test_a_dead_record_is_named_and_removed",
        "checkpoint/commit/catalog.py",
        "        old = [number for number in self._seen if number < self.state.base]",
        "        old = [number for number in self._seen if number == self.state.base - 1]",
    ),
    # Witnesses
    Mutation(
        LOST + "test_the_plan_says_that_records_were_lost",
        "checkpoint/recovery/witness.py",
        "            _hint(witnesses.hint, state, reader),\n",
        "",
    ),
    Mutation(
        LOST + "test_the_plan_says_that_records_were_lost",
        "checkpoint/recovery/witness.py",
        "            _outcomes(outcomes, state, reader),\n",
        "",
    ),
    Mutation(
        LOST + "test_the_plan_says_that_records_were_lost",
        "checkpoint/recovery/witness.py",
        "            _manifests(witnesses, state, reader),\n",
        "",
    ),
    Mutation(
        LOST + "test_a_record_of_the_hint_that_was_written_again_is_noticed",
        "checkpoint/recovery/witness.py",
        '    if digest in ("", hint.record_sha256):',
        "    if digest is not None:",
    ),
    Mutation(
        LOST + "test_half_a_sync_is_no_loss",
        "checkpoint/recovery/witness.py",
        "    if state.synced:\n        return None\n",
        "",
    ),
    Mutation(
        LOST + "test_a_lost_checkpoint_survives_opening_after_opening",
        "checkpoint/recovery/open.py",
        "                _keep_lost(catalog, plan)\n",
        "",
    ),
    Mutation(
        LOST + "test_a_lost_checkpoint_survives_opening_after_opening",
        "checkpoint/recovery/evidence.py",
        "epoch_seen, _epoch_of_manifests(reader), epochs_beyond(witnesses, state, reader)\n",
        "epoch_seen, -1\n",
    ),
    Mutation(
        LOST + "test_a_rebuild_brings_a_lost_checkpoint_back",
        "checkpoint/recovery/rebuild.py",
        "not against(witnesses, state, reader.outcomes(), reader).damage:",
        "not state.damage:",
    ),
    Mutation(
        LOST + "test_the_command_line_says_it_and_exits_with_1",
        "cli/commands/recover.py",
        "made.refusal is not None or made.damaged",
        "made.refusal is not None",
    ),
    Mutation(
        LOST + "test_a_plan_is_made_while_older_checkpoints_are_settled_and_retired",
        "checkpoint/recovery/evidence.py",
        "            retired |= not _try_manifest(reader, entry, manifests)",
        "            _try_manifest(reader, entry, manifests)",
    ),
    # A catalog that stays short
    Mutation(
        BOUNDED + "test_no_kind_of_work_lets_the_catalog_grow",
        "checkpoint/store.py",
        "        self._collector.compact_if_due()  # before, so that it can never fail what was "
        "committed\n",
        "",
    ),
    Mutation(
        BOUNDED + "test_no_kind_of_work_lets_the_catalog_grow",
        "checkpoint/store.py",
        "        self._collector.compact_if_due()\n        fill_reserve(self.storage)",
        "        fill_reserve(self.storage)",
    ),
    Mutation(
        BOUNDED + "test_a_compaction_that_fails_does_not_fail_the_commit",
        "checkpoint/gc/collector.py",
        "        except HoldfastError:\n            return\n",
        "        except OSError:\n            return\n",
    ),
    # A full disk
    Mutation(
        FULL + "test_gc_frees_space_on_a_full_disk",
        "checkpoint/commit/catalog.py",
        "            if not (spare and full and release_reserve(self._storage)):",
        "            if True:",
    ),
    Mutation(
        FULL + "test_a_commit_fails_on_a_full_disk_and_leaves_the_reserve",
        "checkpoint/commit/catalog.py",
        "            self._put(path, data, spare=not isinstance(body, CommitBody))",
        "            self._put(path, data, spare=True)",
    ),
    Mutation(
        FULL + "test_again_and_again",
        "storage/local/reserve.py",
        "                file.write(os.urandom(_BYTES))",
        "                file.write(b'')",
    ),
    # Retries
    Mutation(
        RETRIES + "test_a_file_that_is_there_with_these_bytes_was_written",
        "storage/base.py",
        "        if refused or not _has(storage, path, size, sha256):\n            raise",
        "        raise",
    ),
    Mutation(
        RETRIES + "test_a_file_of_somebody_else_is_not_taken_for_ours",
        "storage/base.py",
        "    return digest.hexdigest() == sha256",
        "    return bool(digest)",
    ),
    Mutation(
        RETRIES + "test_a_refusal_is_not_resolved",
        "storage/base.py",
        "        if refused or not _has(",
        "        if not _has(",
    ),
    # What a recovery hashes
    Mutation(
        DEPTH + "test_what_no_read_checks_is_hashed_at_any_size",
        "checkpoint/recovery/evidence.py",
        "        if entry.kind in _RUNS and entry.size > left:",
        "        if entry.size > left:",
    ),
    Mutation(
        DEPTH + "test_the_newest_runs_are_hashed_up_to_the_limit",
        "checkpoint/recovery/evidence.py",
        "    newest_first = [*reversed(manifest.files)]",
        "    newest_first = [*manifest.files]",
    ),
    Mutation(
        DEPTH + "test_above_the_limit_the_plan_says_what_was_hashed",
        "checkpoint/recovery/evidence.py",
        "    return Coverage(files, size, total.files - files, total.bytes - size)",
        "    return Coverage(files, size)",
    ),
    Mutation(
        DEPTH + "test_a_flipped_bit_that_was_not_hashed_is_found_when_it_is_read",
        "state/run_reader.py",
        "            if actual != facts.crc32:",
        "            if False:",
    ),
]

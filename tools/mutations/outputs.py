"""Mutations of outputs: owner records, going back, rebuilds, quarantine, folding."""

from __future__ import annotations

from mutate import Mutation

DECISIONS = "tests/unit/runtime/test_outputs.py::"
SETTLING = "tests/unit/runtime/test_output_manager.py::"
FOLDING = "tests/unit/connectors/test_parquet_folding.py::"
MINE = (
    "return (owner.lineage, owner.pipeline, owner.sink) == "
    "(history.lineage, history.pipeline, sink)"
)
POWER = "tests/crash/test_power_cut_outputs.py::test_no_power_cut_costs_doubles_or_halves_an_epoch"
ANSWERS = DECISIONS + "test_every_state_of_an_output_has_one_answer"


def _o(test: str, old: str, new: str) -> Mutation:
    return Mutation(test, "runtime/outputs.py", old, new)


MUTATIONS = [
    # Owners
    _o(
        ANSWERS,
        MINE,
        "return (owner.pipeline, owner.sink) == (history.pipeline, sink)",
    ),
    _o(
        ANSWERS,
        MINE,
        "return (owner.lineage, owner.pipeline) == (history.lineage, history.pipeline)",
    ),
    _o(ANSWERS, "    if at not in (None, owner.checkpoint):", "    if at is sink:"),
    _o(
        ANSWERS,
        "owner.checkpoint in history.known or owner.epoch < history.epoch_next",
        "owner.epoch >= 0",
    ),
    _o(
        ANSWERS,
        "owner.checkpoint in history.known or owner.epoch < history.epoch_next",
        "owner.checkpoint in history.known",
    ),
    _o(ANSWERS, "            if not found.whole:", "            if found is None:"),
    _o(
        ANSWERS,
        "            if history.newest(sink) > owner.epoch:",
        "            if history.newest(sink) > owner.epoch + 99:",
    ),
    _o(ANSWERS, "(found.fits and sink not in history.owned)", "found.fits"),
    _o(ANSWERS, "(found.fits and sink not in history.owned)", "found.epochs"),
    _o(
        ANSWERS,
        "    if owner.building and history.staged(sink) > owner.epoch:",
        "    if wish == 1:",
    ),
    _o(ANSWERS, "    if found.retractable and rebuilt", "    if rebuilt"),
    _o(ANSWERS, " and rebuilt <= (history.epoch or 0):", " and rebuilt >= NOTHING:"),
    _o(
        DECISIONS + "test_a_shared_output_is_never_rebuilt_over_rows_of_others",
        "    if found.shared and not found.empty and not again:",
        "    if found is None:",
    ),
    _o(
        DECISIONS + "test_a_first_run_claims_what_is_empty_and_nothing_else",
        "    if found.empty or found.shared or wish is not None:",
        "    if found is not None:",
    ),
    _o(
        DECISIONS + "test_wishes_are_followed_by_name_only",
        " or history.forked or ",
        " or ",
    ),
    _o(
        DECISIONS + "test_wishes_are_followed_by_name_only",
        'if plain.action == "rebuild" else plain',
        "if plain else plain",
    ),
    Mutation(
        DECISIONS + "test_one_place_has_one_identity",
        "connectors/locations.py",
        "    if _own_link(absolute):",
        "    if not absolute:",
    ),
    Mutation(
        DECISIONS + "test_one_place_has_one_identity",
        "connectors/locations.py",
        '    return os.path.realpath(absolute).rstrip("/") + "/"',
        '    return absolute.rstrip("/") + "/"',
    ),
    Mutation(
        DECISIONS + "test_an_upsert_output_is_replaced_from_scratch",
        "connectors/parquet_upsert/remote.py",
        "        left = [bucket for bucket in self._objects() if bucket not in written]",
        "        left: list[Bucket] = []",
    ),
    Mutation(
        DECISIONS + "test_an_upsert_output_is_replaced_from_scratch",
        "connectors/parquet_upsert/local.py",
        "        self._make(token, None)\n",
        "        self._make(token, None if current is None else self._version(current))\n",
    ),
    Mutation(
        DECISIONS + "test_outputs_that_share_a_place_are_refused_however_it_is_spelled",
        "runtime/locations.py",
        "    return one.startswith(other) or other.startswith(one)",
        "    return one == other",
    ),
    Mutation(
        DECISIONS + "test_outputs_that_share_a_place_are_refused_however_it_is_spelled",
        "runtime/locations.py",
        "        for kind, first, place in others:",
        "        for kind, first, place in []:",
    ),
    Mutation(
        DECISIONS + "test_a_journal_has_one_owner_for_each_sink",
        "connectors/journal/sink.py",
        '_sinks/{name}.json"',
        '_sinks/all.json"',
    ),
    # Settling
    Mutation(
        SETTLING + "test_a_store_that_came_without_its_staged_rows_rebuilds_its_outputs",
        "runtime/output_manager.py",
        "    return not there and not writer.holds(token)",
        "    return False",
    ),
    Mutation(
        SETTLING + "test_a_store_that_came_without_its_staged_rows_rebuilds_its_outputs",
        "runtime/output_manager.py",
        "    return not there and not writer.holds(token)",
        "    return not there",
    ),
    Mutation(
        SETTLING + "test_all_outputs_are_asked_before_one_is_touched",
        "runtime/output_manager.py",
        "            self.owners[name] = found.owner or self._fresh(name)\n",
        "            self.owners[name] = found.owner or self._fresh(name)\n"
        "            if decision.action == 'retract':\n"
        "                writer.retract(history.epoch)\n",
    ),
    Mutation(
        SETTLING + "test_rows_are_published_then_recorded_then_settled",
        "runtime/output_manager.py",
        "        if owner is not None and (owner.building or owner.epoch < token.epoch):",
        "        if owner is not None and owner.building:",
    ),
    Mutation(
        SETTLING + "test_a_rebuild_supersedes_what_waits_and_begins_again_after_a_crash",
        "runtime/output_manager.py",
        "            if token.sink == name:\n                reason",
        "            if token.sink is store:\n                reason",
    ),
    Mutation(
        SETTLING + "test_a_rebuild_supersedes_what_waits_and_begins_again_after_a_crash",
        "runtime/output_manager.py",
        "                writer.clear()\n                failpoint",
        "                failpoint",
    ),
    Mutation(
        SETTLING + "test_what_can_pass_is_tried_again_and_other_sinks_do_not_wait",
        "checkpoint/store.py",
        "                if retryable and attempt + 1 < _PUBLISH_TRIES:",
        "                if attempt + 1 < 0:",
    ),
    Mutation(
        SETTLING + "test_what_can_pass_is_tried_again_and_other_sinks_do_not_wait",
        "checkpoint/store.py",
        "            elif token.sink not in failures:",
        "            elif not failures:",
    ),
    Mutation(
        SETTLING + "test_failed_epochs_are_set_aside_by_name_and_published_once",
        "checkpoint/reader.py",
        'in ("committed", "aborted")\n',
        'in ("committed",)\n',
    ),
    Mutation(
        SETTLING + "test_failed_epochs_are_set_aside_by_name_and_published_once",
        "runtime/quarantine.py",
        "            if token.sink in sinks and (gone or token.status",
        "            if (gone or token.status",
    ),
    Mutation(
        SETTLING + "test_failed_epochs_are_set_aside_by_name_and_published_once",
        "runtime/quarantine.py",
        '        self._storage.delete(f"{home}/{_TOKEN}")\n',
        "        return\n",
    ),
    Mutation(
        SETTLING + "test_what_a_rebuild_or_a_restore_made_wrong_is_not_published_late",
        "runtime/quarantine.py",
        "        if current is None or entry.epoch > current.epoch or entry.checkpoint in left:",
        "        if current is None:",
    ),
    Mutation(
        SETTLING + "test_what_a_rebuild_or_a_restore_made_wrong_is_not_published_late",
        "runtime/quarantine.py",
        "        if entry.epoch < since:",
        "        if entry.epoch < since - 99:",
    ),
    # Folding
    Mutation(
        FOLDING + "test_a_plan_folds_neighbours_of_one_level_and_never_past_the_limit",
        "connectors/parquet/folding.py",
        "        closed = entry.last > limit or entry.bytes >= target_bytes",
        "        closed = entry.bytes >= target_bytes",
    ),
    Mutation(
        FOLDING + "test_a_plan_folds_neighbours_of_one_level_and_never_past_the_limit",
        "connectors/parquet/folding.py",
        "every is not None and run and _level(run[0], every) != _level(entry, every)",
        "False",
    ),
    Mutation(
        FOLDING + "test_a_crash_at_every_step_of_a_fold_leaves_all_rows",
        "connectors/parquet/folding.py",
        "            self._link_rest(tree, folded)\n",
        "",
    ),
    Mutation(
        FOLDING + "test_a_crash_at_every_step_of_a_fold_leaves_all_rows",
        "connectors/parquet/sink.py",
        "    return any(first <= after < last for first, last in folds)",
        "    return False",
    ),
    Mutation(
        FOLDING + "test_old_trees_go_after_the_grace_period_and_staged_rows_stay",
        "connectors/parquet/folding.py",
        "            if stamp.isdigit() and not shown and self._retired_us(tree) <= bound:",
        "            if stamp.isdigit() and not shown and not tree:",
    ),
    Mutation(
        FOLDING + "test_readers_see_every_row_once_while_directories_are_folded",
        "connectors/parquet/folding.py",
        "            if stamp.isdigit() and not shown and self._retired_us(tree) <= bound:",
        "            if stamp.isdigit() and not shown:",
    ),
    # Power cuts
    Mutation(
        POWER + "[fsync-changelog]",
        "checkpoint/commit/protocol.py",
        "            place.barrier(files)",
        "            pass",
    ),
    Mutation(
        POWER + "[fsync-upsert]",
        "checkpoint/commit/protocol.py",
        "            in_store += files",
        "            pass",
    ),
    Mutation(
        POWER + "[fsync-upsert]",
        "connectors/parquet_upsert/local.py",
        "        self._disk.sync_dir(str(draft))\n",
        "",
    ),
    Mutation(
        POWER + "[fsync-folded]",
        "connectors/parquet/folding.py",
        "                self._disk.sync_dir(str(target))\n",
        "",
    ),
]

"""Mutations of what lies between outputs, sources and the start of a run."""

from __future__ import annotations

from mutate import Mutation

DECISIONS = "tests/unit/runtime/test_outputs.py::"
TOGETHER = "tests/integration/pipeline/test_outputs_and_sources.py::"
KEPT = DECISIONS + "test_a_kept_or_strange_output_is_not_filled_or_mixed"
SHARED = DECISIONS + "test_a_source_that_moves_or_deletes_files_shares_them_with_nobody"

MUTATIONS = [
    Mutation(
        KEPT, "runtime/outputs.py", 'if wish == "keep" and not found.empty:', "if wish == sink:"
    ),
    Mutation(KEPT, "runtime/outputs.py", "and found.strange and owner is None", "and found.fits"),
    Mutation(
        TOGETHER + "test_a_renamed_sink_keeps_its_output_or_rebuilds_it_or_begins_empty",
        "runtime/start.py",
        'new - outputs.asked("rebuild"))',
        "())",
    ),
    Mutation(
        TOGETHER + "test_what_a_rebuild_began_with_survives_a_wish_to_keep",
        "runtime/output_manager.py",
        'since = NOTHING if decision.action == "empty" else self.owners[name].since',
        "since = NOTHING",
    ),
    Mutation(
        TOGETHER + "test_sources_forget_after_a_fill_never_before_it",
        "runtime/engine.py",
        "        record_recovery(self._graph",
        "        self._logs.tell(self._store)\n        record_recovery(self._graph",
    ),
    Mutation(
        TOGETHER + "test_an_older_output_is_found_when_no_retained_checkpoint_wrote_to_it",
        "runtime/outputs.py",
        "    published = published_of(manifest)",
        "    published: dict[str, int] = {}",
    ),
    Mutation(
        TOGETHER + "test_a_new_part_without_history_is_refused_before_anything_is_touched",
        "runtime/start.py",
        "            raise error\n",
        "            break\n",
    ),
    Mutation(
        TOGETHER + "test_going_back_with_another_table_is_refused_before_the_store_goes_back",
        "api/launch.py",
        "                check_tables(at, marks.tables, allow_changes=allow_changes)\n",
        "",
    ),
    Mutation(SHARED, "runtime/locations.py", "and not apart:", "and apart is None:"),
    Mutation(
        SHARED,
        "runtime/locations.py",
        "identity(location.path))",
        "identity(location.path) if location.use != 'archives' else location.path + '/')",
    ),
    Mutation(
        "tests/unit/checkpoint/test_settings.py::"
        "test_a_checkpoint_from_before_a_source_was_added_holds_its_log",
        "checkpoint/store.py",
        "if n in everywhere and n not in diverged",
        "if n not in diverged",
    ),
]

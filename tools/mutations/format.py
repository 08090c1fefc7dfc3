"""Mutations of the format: versions, positions, segments, counts, upgrading."""

from __future__ import annotations

from mutate import Mutation

FORMAT = "tests/unit/format/"
CHECKPOINT = "tests/unit/checkpoint/"


def _p(test: str, old: str, new: str) -> Mutation:
    return Mutation(f"{FORMAT}test_positions.py::{test}", "format/position.py", old, new)


def _s(test: str, file: str, old: str, new: str) -> Mutation:
    return Mutation(f"{CHECKPOINT}test_segments.py::{test}", file, old, new)


def _i(test: str, old: str, new: str) -> Mutation:
    return Mutation(f"{FORMAT}test_inventory.py::{test}", "format/inventory.py", old, new)


def _r(old: str, new: str) -> Mutation:
    test = "tests/property/test_run_index.py::test_an_index_answers_as_the_pure_functions_do"
    return Mutation(test, "state/run_index.py", old, new)


def _u(test: str, old: str, new: str) -> Mutation:
    return Mutation(f"{CHECKPOINT}test_upgrade.py::{test}", "checkpoint/upgrade.py", old, new)


def _c(old: str, new: str) -> Mutation:
    return Mutation(
        "tests/unit/state/test_live_counts.py::test_counts_follow_the_state",
        "state/live_counts.py",
        old,
        new,
    )


MUTATIONS = [
    # Versions
    Mutation(
        f"{FORMAT}test_canonical.py::test_format_1_has_nothing_that_came_later",
        "format/canonical.py",
        "    later = document.beyond_v1() if document.format == 1 else None",
        "    later = None",
    ),
    Mutation(
        "tests/compat/test_golden.py::"
        "test_encoding_the_golden_documents_again_gives_the_same_bytes",
        "format/canonical.py",
        "    blank = _encoder.encode(msgspec.structs.replace(document, sha256=NO_DIGEST))\n"
        "    digest",
        "    document = msgspec.structs.replace(document, format=FORMAT_VERSION)\n"
        "    blank = _encoder.encode(msgspec.structs.replace(document, sha256=NO_DIGEST))\n"
        "    digest",
    ),
    # Positions
    _p(
        "test_a_topic_that_was_made_again_diverges",
        "        return later == earlier if isinstance(earlier, str) else later >= earlier",
        "        return True if isinstance(earlier, str) else later >= earlier",
    ),
    _p(
        "test_a_postgres_snapshot_comes_before_its_stream",
        "        return self.snapshot == inner.snapshot and all(",
        "        return all(",
    ),
    _p(
        "test_a_postgres_snapshot_comes_before_its_stream",
        "        return not earlier.done and (",
        "        return bool(",
    ),
    _p(
        "test_following_a_table_comes_after_its_snapshot",
        '        return bool(before == "snapshot" and point[0] == reached[0] and point >= reached)',
        "        return bool(point >= reached)",
    ),
    _p(
        "test_an_iceberg_snapshot_that_was_replaced_diverges",
        "        if table != other or (point[0] == reached[0] and which != mine):",
        "        if table != other:",
    ),
    _p(
        "test_open_offsets_compare_as_their_order_says",
        "            return int(after) >= int(before)",
        "            return after >= before",
    ),
    _p(
        "test_open_offsets_compare_as_their_order_says",
        '        if self.order == "none" or (self.order == "fixed" and len(before) != len(after)):',
        '        if self.order == "none":',
    ),
    _p(
        "test_open_positions_without_an_order_still_lose_no_partition",
        "        and left.offsets.keys() <= right.offsets.keys()",
        "        and True",
    ),
    # Segments
    _s(
        "test_a_segment_that_lost_half_its_files_is_dissolved",
        "checkpoint/segments.py",
        "if len(part.gone) <= min(GONE_MAX, part.entry.files // 2)]",
        "]",
    ),
    _s(
        "test_a_segment_names_the_places_of_what_left_it",
        "format/inventory.py",
        "        gone = sorted(self.gone.union(places))",
        "        gone = sorted(places)",
    ),
    _s(
        "test_places_of_a_segment_must_be_possible",
        "format/validate.py",
        "        ascending = all(first < second for first, second in pairwise(gone))",
        "        ascending = all(first <= second for first, second in pairwise(gone))",
    ),
    _s(
        "test_small_segments_become_larger_ones",
        "checkpoint/segments.py",
        "    if len(small) >= SMALL_SEGMENTS:",
        "    if len(small) >= 10**6:",
    ),
    _i(
        "test_drafts_and_differences_are_those_of_plain_sets",
        "for place in sorted(twin.gone - part.gone)]",
        "for place in ()]",
    ),
    _i(
        "test_a_file_that_is_listed_twice_is_found_wherever_it_is",
        "            if files[entry.key] + shared > 1:",
        "            if files[entry.key] > 1:",
    ),
    _r(
        "if path in self._runs and not self._seen[path]})",
        "if not path})",
    ),
    _r(
        "            self._parts[place] = part\n            self._touched.add(place)\n",
        "            self._parts[place] = part\n",
    ),
    Mutation(
        "tests/property/test_run_index.py::"
        "test_a_run_that_hid_another_goes_when_it_does_not_any_more",
        "state/run_index.py",
        "                self._hiding.add(path)\n",
        "                pass\n",
    ),
    _s(
        "test_a_segment_with_other_content_is_found_though_its_own_digest_is_right",
        "checkpoint/segments.py",
        "    if actual != entry.sha256 or len(content) != entry.size:",
        "    if len(content) > entry.size + 1_000:",
    ),
    _s(
        "test_only_files_without_an_order_go_into_segments",
        "checkpoint/segments.py",
        '    return entry.kind == "blob" or entry.epoch_low is not None',
        "    return True",
    ),
    _s(
        "test_collection_keeps_what_segments_list_and_the_segments",
        "format/inventory.py",
        "                files += [part.file, *part]",
        "                files += [*part]",
    ),
    _s(
        "test_sync_fork_and_rebuild_understand_segments",
        "checkpoint/recovery/rebuild.py",
        "            manifest = load_segments(reader.directory, manifest)\n",
        "",
    ),
    # Upgrading
    _u(
        "test_upgrading_leaves_checkpoints_alone_and_is_idempotent",
        "        opened.catalog.compact()\n",
        "",
    ),
    _u(
        "test_a_replica_is_upgraded_by_its_source",
        "    _check_no_replica(reader, state)\n",
        "",
    ),
    _u(
        "test_a_damaged_store_is_not_upgraded",
        "    if plan.abandon or plan.notes:",
        "    if plan.notes:",
    ),
    # Counts
    _c(
        "    change = after - before - (gone.num_rows if gone is not None else 0)",
        "    change = after - before",
    ),
    _c(
        "& _ahead(schema, hits.rows, bound_us)).sum())",
        ").sum())",
    ),
    _c(
        "        weights = numbers(written.column(1)) * _ahead(schema, written, bounds_us[1])",
        "        weights = numbers(written.column(1))",
    ),
]

"""Mutations of the journal, and of the journal as source and sink of a pipeline."""

from __future__ import annotations

from mutate import Mutation

CALLS = "tests/crash/test_journal_system_calls.py::"
EVERY = CALLS + "test_every_failing_call_is_typed_and_loses_nothing"
TRUST = "tests/unit/journal/test_trust.py::"
TYPES = "tests/integration/pipeline/test_journal_types.py::"
SETTINGS = "tests/integration/pipeline/test_journal_settings.py::"
CHAINED = TYPES + "test_a_journal_chained_into_a_journal_gives_the_same_rows"
REFUSED = TYPES + "test_what_cannot_be_published_is_refused_before_the_first_epoch"


def _m(test: str, file: str, old: str, new: str, times: int = 1) -> Mutation:
    return Mutation(test, file, old, new, times)


MUTATIONS = [
    # Every I/O is typed, no thread dies, nobody waits for ever
    _m(
        CALLS + "test_a_mark_that_cannot_be_written_fails_no_append",
        "journal/log_writer.py",
        "        except HoldfastError as error:\n            self.mark_problem = error\n",
        "        except HoldfastError as error:\n            raise self.fail(error) from error\n",
    ),
    _m(
        CALLS + "test_a_mark_is_mended_without_another_append",
        "journal/group_commit.py",
        '            self._jobs.put("mark")',
        "            pass",
    ),
    _m(
        CALLS + "test_an_untyped_failure_in_the_sync_thread_is_heard_too",
        "journal/writer.py",
        '                self._fail("sync", error)',
        "                return",
    ),
    _m(
        CALLS + "test_a_failed_sync_of_an_interval_is_heard_by_everybody",
        "journal/writer.py",
        "self.accepted > self._core.durable and self._promised:",
        "self._closed is None:",
    ),
    _m(
        CALLS + "test_closing_on_a_full_disk_claims_no_failure",
        "journal/writer.py",
        "        except (StorageError, NotFoundError) as error:",
        "        except NotFoundError as error:",
    ),
    _m(
        CALLS + "test_an_interrupted_producer_leaves_no_hole",
        "journal/group_commit.py",
        "        if chosen:\n            self._hand_over()",
        "        if chosen:\n            return",
    ),
    _m(
        CALLS + "test_nothing_is_done_with_a_closed_writer",
        "journal/log_writer.py",
        "        if self.closed:\n            raise",
        "        if self.closed and self.poison:\n            raise",
    ),
    _m(
        CALLS + "test_a_failed_truncation_leaves_a_writer_that_knows_its_base",
        "journal/writer.py",
        "                self._core.sealed = kept\n                remove_segments(self._files, "
        "self.layout, plan)\n",
        "                remove_segments(self._files, self.layout, plan)\n"
        "                self._core.sealed = kept\n",
    ),
    _m(
        CALLS + "test_a_compaction_that_fails_half_way_stops_the_writer",
        "journal/log_writer.py",
        "        self.poison = self.poison or error\n\n    def fail",
        "        del error\n\n    def fail",
    ),
    _m(
        CALLS + "test_a_disk_that_writes_nothing_is_an_error_and_no_hang",
        "journal/files.py",
        "            if wrote == 0:\n",
        "            if wrote < 0:\n",
    ),
    _m(
        EVERY + "[recover]",
        "journal/files.py",
        '        return self._look("stat", path, call, what)',
        "        return call(what)",
    ),
    _m(
        EVERY + "[read]",
        "journal/files.py",
        '            data = self._look("read", path, os.pread, fd, min(length, 1 << 30), offset)',
        "            data = os.pread(fd, min(length, 1 << 30), offset)",
    ),
    _m(
        EVERY + "[append, group]",
        "journal/files.py",
        "        with suppress(OSError):\n            self._disk.close(fd)",
        "        self._disk.close(fd)",
    ),
    # Marks, headers, chain (defect 30)
    _m(
        TRUST + "test_every_flipped_bit_of_the_mark_is_found",
        "journal/verify.py",
        '        if problem is not None:\n            self.find(\n                "mark_damaged"',
        "        if problem is None and durable < 0:\n            self.find(\n"
        '                "mark_damaged"',
    ),
    _m(
        TRUST + "test_every_flipped_bit_of_the_mark_is_found",
        "journal/open.py",
        "        elif owner != int.from_bytes(journal_id[:8]):",
        "        elif owner < 0:",
    ),
    _m(
        TRUST + "test_a_header_edited_under_its_old_chain_hash_is_found",
        "journal/format/frame.py",
        "    if hash_bytes(header_bytes) != chain:",
        "    if len(chain) != 32:",
    ),
    _m(
        TRUST + "test_a_header_edited_with_its_chain_hash_is_found_by_the_next_frame",
        "journal/frame_scan.py",
        "        if header.previous_hash != self.chain_hash:",
        "        if len(header.previous_hash) != 32:",
    ),
    # Knobs (defect 45)
    _m(
        TRUST + "test_every_setting_of_the_journal_has_an_effect",
        "journal/group_commit.py",
        "taken + len(batch.body) > self.settings.group_bytes_max",
        "taken + len(batch.body) > (8 << 20)",
    ),
    _m(
        TRUST + "test_every_setting_of_the_journal_has_an_effect",
        "journal/writer.py",
        "                    self.settings.compact_bytes,\n",
        "                    16 << 20,\n",
    ),
    _m(
        SETTINGS + "test_log_bytes_min_postpones_checkpoints_of_a_pipeline",
        "runtime/engine.py",
        "should_checkpoint(log_bytes=self._logs.grown_bytes)",
        "should_checkpoint()",
    ),
    _m(
        SETTINGS + "test_log_bytes_min_postpones_checkpoints_of_a_pipeline",
        "runtime/source_logs.py",
        "if self._names and len(self._names) == len(self._readers) else None",
        "if self._names else None",
    ),
    _m(
        SETTINGS + "test_truncate_log_decides_where_the_hold_lies",
        "checkpoint/store.py",
        "        if not self.settings.truncate_log:",
        "        if self.settings.retain < 0:",
    ),
    _m(
        SETTINGS + "test_truncate_log_decides_where_the_hold_lies",
        "connectors/journal/source.py",
        'sha256(f"{lineage}\\0{pipeline}\\0{source}".encode())',
        'sha256(f"{pipeline}\\0{source}".encode())',
    ),
    _m(
        SETTINGS + "test_a_checkpoint_says_how_far_it_has_seen_the_log",
        "runtime/source_logs.py",
        "position if self._names == {name} else None",
        "position",
    ),
    # Sources hear of durable checkpoints only (defect 36)
    _m(
        SETTINGS + "test_a_source_is_told_only_of_durable_checkpoints",
        "runtime/engine.py",
        "        summary = self._store.commit(draft)\n",
        "        self._logs.tell(self._store)\n        summary = self._store.commit(draft)\n",
    ),
    _m(
        SETTINGS + "test_a_hold_does_not_move_before_its_checkpoint_is_durable",
        "runtime/engine.py",
        "        by_source, future = advance(plan, self._readers, self._watermarks, self._lag)\n",
        "        by_source, future = advance(plan, self._readers, self._watermarks, self._lag)\n"
        "        for reader in self._readers.values():\n"
        "            if self._store.current is not None:\n"
        "                reader.committed(self._store.current, reader.save(None))\n",
    ),
    # Payloads
    _m(
        CHAINED,
        "connectors/journal/encode.py",
        '    texts = pc.if_else(pc.equal(texts, "-0"), "-0.0", texts)\n',
        "",
    ),
    _m(
        CHAINED,
        "connectors/journal/encode.py",
        "        texts = pc.if_else(pc.is_finite(column), texts, odd)\n",
        '        texts = pc.if_else(pc.is_finite(column), texts, "null")\n',
    ),
    _m(
        CHAINED,
        "connectors/journal/encode.py",
        '    texts = pc.if_else(late, _joined("+", texts), texts)\n',
        "",
    ),
    _m(
        CHAINED,
        "connectors/journal/encode.py",
        '        suffix = "Z" if kind.tz else ""',
        '        suffix = ""',
    ),
    _m(
        CHAINED,
        "connectors/journal/decode.py",
        "        return F.when(column.isNotNull(), F.struct(*parts))",
        "        return F.struct(*parts)",
    ),
    _m(
        CHAINED,
        "connectors/journal/source.py",
        "        self._head = [name for name in _HEAD_NAMES if name not in taken]",
        "        self._head = [name for name in _HEAD_NAMES if taken is not None]",
    ),
    _m(
        REFUSED,
        "runtime/analysis.py",
        "    named(node.name, lambda: node.connector.check(node.name, frame.schema))",
        "    pass",
    ),
    _m(
        TYPES + "test_a_large_epoch_is_appended_in_pieces_and_once",
        "connectors/journal/sink.py",
        "            journal.append(events.slice(known))",
        "            raise",
    ),
    _m(
        TYPES + "test_payloads_are_plain_json",
        "connectors/journal/encode.py",
        '        return valid_text(column).fill_null("")',
        '        return valid_text(column).fill_null("null")',
    ),
]

"""Mutations of the rules about sleeping writers, and about what outlives them."""

from __future__ import annotations

from mutate import Mutation

TESTS = "tests/crash/test_sleeping_files.py::"


def _m(test: str, file: str, old: str, new: str) -> Mutation:
    return Mutation(TESTS + test, file, old, new)


MUTATIONS = [
    Mutation(
        "tests/unit/checkpoint/test_lost_records.py::test_a_rebuild_after_numbers_were_used_again",
        "checkpoint/recovery/rebuild.py",
        " or proven.issuperset(winners)",
        "",
    ),
    Mutation(
        "tests/unit/checkpoint/test_lost_records.py::test_a_rebuild_after_numbers_were_used_again",
        "checkpoint/recovery/rebuild.py",
        "    take.sort(key=lambda entry: entry.summary.epoch)\n",
        "",
    ),
    Mutation(
        "tests/unit/checkpoint/test_segments.py::test_a_lost_record_of_a_checkpoint_with_segments",
        "checkpoint/recovery/rebuild.py",
        "            whole = load_segments(reader.directory, manifest)\n        except",
        "            whole = manifest\n        except",
    ),
    Mutation(
        "tests/unit/checkpoint/test_full_disk.py::test_a_torn_reserve_is_made_again",
        "storage/local/reserve.py",
        "            if os.lstat(self._path).st_size >= _BYTES:",
        "            if os.lstat(self._path).st_size >= 0:",
    ),
    _m(
        "test_a_rebuild_publishes_nothing_of_an_overtaken_writer",
        "checkpoint/recovery/rebuild.py",
        "        or (not found.confirmed and found.summary.checkpoint not in chain)\n",
        "",
    ),
    _m(
        "test_a_rebuild_that_finds_the_checkpoint_of_a_fenced_writer_may_keep_it",
        "checkpoint/commit/catalog.py",
        "            self.put_done = True\n",
        "",
    ),
    _m(
        "test_a_sleeper_that_was_built_upon_deletes_nothing",
        "checkpoint/commit/protocol.py",
        "draft.finished = catalog.put_done or _may_be_needed(directory, manifest)",
        "draft.finished = False",
    ),
    _m(
        "test_a_refused_put_that_was_the_second_one_deletes_nothing",
        "checkpoint/commit/protocol.py",
        "            entry.pipeline is None and entry.path.startswith(own)\n",
        "            entry.pipeline == own\n",
    ),
    _m(
        "test_a_refused_put_leaves_nothing_that_a_rebuild_could_take",
        "checkpoint/commit/protocol.py",
        "catalog.put_done or _may_be_needed(directory, manifest)",
        "True",
    ),
    _m(
        "test_whatever_keeps_a_record_from_being_confirmed_keeps_its_checkpoint",
        "checkpoint/commit/catalog.py",
        "        except FencedError:\n            raise\n        except HoldfastError as error:\n",
        "        except StorageError as error:\n",
    ),
    _m(
        "test_an_overtaken_writer_that_deletes_is_told_so",
        "checkpoint/gc/collector.py",
        "                self._catalog.confirm_alive()  # it was a successor that retired it\n",
        "",
    ),
    _m(
        "test_an_upgrade_next_to_a_writer_that_compacts",
        "checkpoint/upgrade.py",
        "_LOOKS = 5",
        "_LOOKS = 1",
    ),
    _m(
        "test_a_rebuild_next_to_a_writer_that_retires_everything",
        "checkpoint/recovery/rebuild.py",
        "(plan.take and not plan.leap)",
        "not plan.leap",
    ),
]

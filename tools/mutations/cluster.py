"""Mutations of what runs on clusters: the cache of runs, the look at executors."""

from __future__ import annotations

from mutate import Mutation

CACHE = "tests/unit/state/test_cache.py::"
JUDGED = "tests/integration/cli/test_executor_checks.py::"
PROBES = "tests/unit/spark/test_executors.py::"


def _c(test: str, old: str, new: str) -> Mutation:
    return Mutation(CACHE + test, "state/cache.py", old, new)


MUTATIONS = [
    # Bounds
    _c(
        "test_workers_that_fetch_at_once_stay_below_the_limit_and_download_once",
        "total += int(promised) if promised.isdecimal() else 0",
        "total += 0",
    ),
    _c(
        "test_workers_that_fetch_at_once_stay_below_the_limit_and_download_once",
        'with self._locked(f"-{info.sha256[:2]}"):',
        'with self._locked(f"-{self._ids.token()}"):',
    ),
    _c(
        "test_a_run_that_is_mapped_is_not_evicted",
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)",
    ),
    _c(
        "test_a_run_that_is_mapped_is_not_evicted",
        "fcntl.flock(descriptor, fcntl.LOCK_SH)\n            if os.fstat",
        "if os.fstat",
    ),
    _c(
        "test_leftovers_of_dead_downloads_go",
        "if not self._remove_unused(entry.path):",
        "if True:",
    ),
    _c("test_a_full_disk_serves_small_runs_from_memory", "self._evict(0)", "pass"),
    _c("test_a_full_disk_serves_small_runs_from_memory", "errno.ENOSPC, ", ""),
    # Damage
    Mutation(
        CACHE + "test_what_the_disk_of_the_cache_has_damaged_is_fetched_again",
        "state/run_reader.py",
        "            cache.discard(info)\n",
        "",
    ),
    Mutation(
        CACHE + "test_what_the_disk_of_the_cache_has_damaged_is_fetched_again",
        "state/run_reader.py",
        "self._content = renew()",
        "renew()",
    ),
    Mutation(
        CACHE + "test_open_runs_hold_at_most_half_of_the_cache",
        "state/run_reader.py",
        "while len(self._opened) > self._open_max or self._too_large():",
        "while len(self._opened) > self._open_max:",
    ),
    # Executors
    Mutation(
        JUDGED + "test_what_is_needed_depends_on_the_store_and_on_shipping",
        "cli/executor_checks.py",
        'if there is None and (name != "obstore" or want.remote)',
        "if there is None",
    ),
    Mutation(
        JUDGED + "test_what_is_needed_depends_on_the_store_and_on_shipping",
        "cli/executor_checks.py",
        '"problem" if want.shipped else "warning"',
        '"warning"',
    ),
    Mutation(
        JUDGED + "test_each_thing_that_is_wrong_is_found_with_its_remedy",
        "cli/executor_checks.py",
        "one.store_shared is False:",
        "False:",
    ),
    Mutation(
        PROBES + "test_a_probe_finds_a_store_that_is_another_directory_there",
        "spark/probe.py",
        'storage.exists(given["marker"])',
        "True",
    ),
    Mutation(
        PROBES + "test_a_probe_needs_nothing_but_python",
        "spark/probe.py",
        "import json\n",
        "import json\nimport msgspec\n",
    ),
    Mutation(
        PROBES + "test_an_address_that_nobody_listens_at_is_refused_at_once",
        "spark/executors.py",
        'master.partition(";")[0]',
        "master",
    ),
    Mutation(
        "tests/unit/test_lazy.py::test_the_list_of_names_is_read_by_the_path_that_the_loader_knows",
        "_lazy.py",
        "f\"{file.rpartition('.')[0]}.pyi\"",
        "f\"{file.rpartition('.')[0]}.pyi\".removeprefix('./')",
    ),
]

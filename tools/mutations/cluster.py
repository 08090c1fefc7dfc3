"""Mutations of what runs on clusters: the cache of runs, the look at executors."""

from __future__ import annotations

from mutate import Mutation

CACHE = "tests/unit/state/test_cache.py::"


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
]

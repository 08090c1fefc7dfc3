"""A short suite on every supported Spark, each in an environment of its own.

    python tools/sparks.py               all of them
    python tools/sparks.py 4.0 4.2       some of them

Environments are made once, below `.venv-sparks/`, with the newest release of each minor version.

Invariants:
- Standard library only, and nothing outside `.venv-sparks/` is written.
- What ran is told by the version that was found, not by the one that was asked for.
- The exit status is 0 only where every Spark passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv-sparks"
_GUARD = "tests/integration/guard/test_restore_and_continue.py"
SPARKS = ("4.0", "4.1", "4.2", "4.3")
# Every operator with crashes and rescales against Spark's own answer; what is stored and shown;
# kill -9 of a driver; the guard; and a canary for every private name.
SUITE = (
    "tests/operators/test_aggregate.py",
    "tests/operators/test_join.py::test_joins_and_sets_equal_the_batch_answer",
    "tests/operators/test_join.py::test_shapes_of_joins_that_users_write",
    "tests/operators/test_interval_join.py::test_interval_joins_equal_the_batch_answer_on_time",
    "tests/operators/test_dedupe.py",
    "tests/operators/test_holistic.py",
    "tests/operators/test_topk.py",
    "tests/operators/test_apply.py::test_random_histories_equal_the_batch_answer",
    "tests/operators/test_window.py::test_windows_equal_sparks_own_through_crashes_and_rescales",
    "tests/operators/test_window.py::test_sessions_equal_sparks_own_through_crashes_and_rescales",
    "tests/operators/test_types.py",
    "tests/integration/pipeline/test_begun_ahead.py",
    "tests/integration/pipeline/test_fast_paths.py::test_a_fast_path_works_on_this_spark",
    f"{_GUARD}::test_every_savepoint_restores_and_goes_on_batch_by_batch",
    f"{_GUARD}::test_attached_query_is_saved_every_few_batches_off_its_path",
    "tests/crash/test_kills.py",
)


def main(arguments: Sequence[str]) -> int:
    """Run the suite on some Sparks; 1 where one of them failed."""
    unknown = sorted(set(arguments) - set(SPARKS))
    if unknown:
        print(f"not supported: {', '.join(unknown)}; known: {', '.join(SPARKS)}", file=sys.stderr)
        return 2
    failed = []
    for version in arguments or SPARKS:
        began = time.perf_counter()
        python = environment(version)
        print(f"== PySpark {installed(python)}", flush=True)
        if run(python):
            failed.append(version)
        print(f"   {time.perf_counter() - began:.0f} s", flush=True)
    print(f"failed on {', '.join(failed)}" if failed else "passed on all")
    return int(bool(failed))


def environment(version: str) -> Path:
    """The Python of an environment with this Spark; made where it is not there."""
    home = HOME / version
    python, stamp = home / "bin" / "python", home / "ready"
    if not stamp.is_file():
        venv.create(home, with_pip=True, clear=True)
        wanted = ["-e", f"{ROOT}[test]", f"pyspark~={version}.0"]
        subprocess.run([str(python), "-m", "pip", "install", "-q", *wanted], check=True)
        stamp.touch()
    return python


def installed(python: Path) -> str:
    """The version of PySpark that an environment has."""
    code = "from importlib.metadata import version; print(version('pyspark'))"
    done = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def run(python: Path) -> int:
    """The suite in one environment."""
    suite = [str(python), "-m", "pytest", "-q", "-m", "not soak", "--timeout", "1800", *SUITE]
    source = {"PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": str(python)}
    return subprocess.run(suite, cwd=ROOT, check=False, env={**os.environ, **source}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Break the code on purpose and expect the tests to notice: `make mutants`.

Every entry is one small change of the source and the test that must go red with it. The source is
copied into a temporary directory, changed there, and tested there; the working tree stays as it is.
An entry whose text is not found exactly once in the source fails too, so the list cannot rot.

The entries are in `tools/mutations/`, a file for each area.

    python tools/mutate.py             all mutations
    python tools/mutate.py torn fsync  those whose test or file contains one of the words

A test that runs into its limit has noticed nothing: it counts as timed out, not as red.
`HOLDFAST_MUTATE_TIMEOUT=300` gives each test so many seconds instead of 60.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = os.environ.get("HOLDFAST_MUTATE_TIMEOUT", "60")
TIMED_OUT = "the test ran into its limit"


@dataclass(frozen=True)
class Mutation:
    """One change of the source, and the test that must notice it."""

    test: str
    file: str
    old: str
    new: str
    times: int = 1

    def apply(self, source: Path) -> str | None:
        """Change the copy; returns what is wrong with this entry, if anything."""
        path = source / "holdfast" / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != self.times:
            return f"text is in the source {text.count(self.old)} times, not {self.times}"
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
        return None


def mutations() -> list[Mutation]:
    """All of them: each file of `tools/mutations` has a list `MUTATIONS`."""
    sys.modules.setdefault("mutate", sys.modules[__name__])
    found: list[Mutation] = []
    for path in sorted((ROOT / "tools" / "mutations").glob("*.py")):
        found.extend(runpy.run_path(str(path))["MUTATIONS"])
    return found


STRAYS = """

def _with_strays(directory: PipelineDirectory, state: CatalogState) -> CatalogState:
    from holdfast.checkpoint.recovery.rebuild import summarise
    from holdfast.format.manifest import parse_manifest

    for entry in directory.list(paths.CHECKPOINTS):
        meaning = paths.classify(entry.path)
        if meaning and meaning.kind == "manifest" and meaning.checkpoint:
            data = directory.get(entry.path, bytes_max=1 << 26)
            manifest = parse_manifest(data, entry.path, meaning.checkpoint)
            if state.find(meaning.checkpoint) is None:
                state = replace(state, live=(*state.live, summarise(manifest, data)))
    return state
"""


def run(mutation: Mutation) -> str | None:
    """Test one mutation; returns None when the test went red, otherwise what is wrong."""
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        wrong = mutation.apply(source)
        if wrong is not None:
            return wrong
        if "_with_strays" in mutation.new:
            catalog = source / "holdfast" / mutation.file
            catalog.write_text(catalog.read_text(encoding="utf-8") + STRAYS, encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            mutation.test,
        ]
        done = subprocess.run(
            [*command, "--timeout", TIMEOUT_S],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    told = done.stdout + done.stderr
    if "Timeout (>" in told or "+++ Timeout +++" in told:
        return f"{TIMED_OUT} of {TIMEOUT_S} s"
    if done.returncode == 1 and ("FAILED" in done.stdout or "failed" in done.stdout):
        return None
    if done.returncode == 0:
        return "the test stayed green"
    return f"pytest ended with {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}"


def main(words: list[str]) -> int:
    """Run the chosen mutations; returns 0 when all were noticed."""
    chosen = [m for m in mutations() if not words or any(w in m.test + m.file for w in words)]
    begun = time.perf_counter()
    survived = slow = 0
    for mutation in chosen:
        wrong = run(mutation)
        late = wrong is not None and wrong.startswith(TIMED_OUT)
        slow += late
        survived += wrong is not None and not late
        name = mutation.test.split("::")[-1]
        verdict = "red      " if wrong is None else "TIMED OUT" if late else "SURVIVED "
        print(f"{verdict} {name}  [{mutation.file}] {wrong or ''}", flush=True)
    seconds = time.perf_counter() - begun
    noticed = len(chosen) - survived - slow
    print(
        f"{len(chosen)} mutations, {noticed} noticed, {survived} not, {slow} timed out, "
        f"{seconds:.0f} s"
    )
    return min(survived + slow, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

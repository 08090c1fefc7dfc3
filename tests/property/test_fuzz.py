"""Random pipelines against plain Spark, and against small models where event time decides.

A seed replays everything: `HOLDFAST_FUZZ_SEED=123 pytest tests/property/test_fuzz.py` plays one seed (a range with `100-120`),
`HOLDFAST_FUZZ_LARGE=1` with 100,000 rows, `HOLDFAST_FUZZ_TIMED=1` of the pipelines that go by event time.
`HOLDFAST_FUZZ_SHRINK=300` looks for a smaller program for so many seconds. `make soak` plays 300 seeds.
docs/internals/fuzzer.md says what is in a program.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.helpers.effort import SOAK
from tests.helpers.fuzz.model import EDGES
from tests.helpers.fuzz.run import candidates, make, outcome, report, shrink
from tests.helpers.fuzz.timed import KINDS, make_timed, play_timed

GIVEN = os.environ.get("HOLDFAST_FUZZ_SEED", "")
LARGE = os.environ.get("HOLDFAST_FUZZ_LARGE") == "1"
TIMED = os.environ.get("HOLDFAST_FUZZ_TIMED") == "1"
SHRINK_S = float(os.environ.get("HOLDFAST_FUZZ_SHRINK", "120" if SOAK or GIVEN else "0"))
# In `make test`: a join with a restart, then edges that touch files, sums, outputs and going back.
FEW = (8, 3, 9, 37)
FEW_TIMED = (70, 91, 2)


def _seeds(few, many: int) -> list[int]:
    if GIVEN:
        first, _, last = GIVEN.partition("-")
        return list(range(int(first), int(last or first) + 1))
    return list(range(many)) if SOAK else list(few)


def _play(spark, seed: int, *, large: bool) -> None:
    program = make(seed, large=large)
    found = outcome(spark, program)
    if found.startswith("failed"):
        smaller, why = shrink(spark, program, found, SHRINK_S)
        how = f"HOLDFAST_FUZZ_SEED={seed}{' HOLDFAST_FUZZ_LARGE=1' if large else ''} pytest tests/property/test_fuzz.py"
        pytest.fail(f"replay: {how}\n{report(smaller, why)}", pytrace=False)


@pytest.mark.skipif(bool(GIVEN) and (LARGE or TIMED), reason="other seeds were asked for")
@pytest.mark.parametrize("seed", _seeds(FEW, 300))
def test_a_random_pipeline_equals_plain_spark(spark, seed) -> None:
    """Every sink and view equals batch over the net rows, whatever happened on the way."""
    _play(spark, seed, large=False)


@pytest.mark.skipif(bool(GIVEN) and not LARGE, reason="other seeds were asked for")
@pytest.mark.soak
@pytest.mark.parametrize("seed", _seeds((), 6))
def test_a_random_pipeline_with_many_rows_equals_plain_spark(spark, seed) -> None:
    """The same with 100,000 rows and more."""
    _play(spark, seed, large=True)


@pytest.mark.skipif(bool(GIVEN) and not TIMED, reason="other seeds were asked for")
@pytest.mark.parametrize("seed", _seeds(FEW_TIMED, 100))
def test_a_random_pipeline_by_event_time_equals_its_model(spark, tmp_path, seed) -> None:
    """Windows, sessions, timers, interval joins and dedupe forget exactly what the watermark says."""
    made = make_timed(seed)
    found = play_timed(spark, made, tmp_path)
    if found:
        files = "\n".join(f"run {n}: {run}" for n, run in enumerate(made.runs))
        how = f"HOLDFAST_FUZZ_TIMED=1 HOLDFAST_FUZZ_SEED={seed} pytest tests/property/test_fuzz.py"
        pytest.fail(f"replay: {how}\n{found}\n{made.code}\n{files}", pytrace=False)


def test_a_seed_always_gives_the_same_program() -> None:
    """Program, files and models depend on the seed alone."""
    for seed in range(2 * len(EDGES)):
        one, two = make(seed), make(seed)
        assert one.code() == two.code()
        assert [phase.files for phase in one.phases] == [phase.files for phase in two.phases]
    for seed in range(2 * len(KINDS)):
        assert make_timed(seed).runs == make_timed(seed).runs


def test_all_edges_come_up_within_the_seeds_of_a_soak() -> None:
    """No edge is left out by chance."""
    assert {make(seed).edge for seed in range(300)} == {"", *EDGES}


def test_smaller_programs_are_whole_programs() -> None:
    """What the search for a smaller program tries is code, and retracts only rows that are there."""
    for seed in range(0, 60, 3):
        for smaller in candidates(make(seed)):
            compile(smaller.code(), "program", "exec")
            for source in smaller.sources:
                there: Counter = Counter()
                files = [file for phase in smaller.phases for file in phase.files[source.name]]
                for file in files:
                    for row, weight in file:
                        there[row] += weight or 0
                    assert min(there.values(), default=0) >= 0

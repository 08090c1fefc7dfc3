"""Plays one seed, and on failure looks for a smaller program that fails, too."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.helpers.fuzz.model import Phase, Program
from tests.helpers.fuzz.play import Failure, Refused, World
from tests.helpers.fuzz.programs import Maker


def outcome(spark, program: Program) -> str:
    """`ok`, `refused: kind`, or `failed: what`."""
    with tempfile.TemporaryDirectory(prefix="holdfast-fuzz-") as home:
        try:
            World(spark, copy.deepcopy(program), Path(home)).play()
        except Refused as refused:
            return f"refused: {refused}"
        except Failure as failure:
            return f"failed: {failure}"
        except Exception as error:  # noqa: BLE001 - what is not typed is a finding, too
            return f"failed: untyped {type(error).__name__}: {str(error)[:600]}"
    return "ok"


def make(seed: int, *, large: bool = False) -> Program:
    """The program of a seed."""
    return Maker(seed, large=large).program()


def report(program: Program, failed: str) -> str:
    """What a reader needs: seed, why, the pipeline as code, the phases."""
    lines = [f"seed {program.seed} edge {program.edge or 'none'} zone {program.zone}", failed, ""]
    lines += [program.code(), ""]
    for number, phase in enumerate(program.phases):
        lines.append(
            f"phase {number}: {phase.action} partitions={phase.partitions} crash={phase.crash}"
        )
        for source in program.sources:
            for rows in phase.files[source.name]:
                values = [_values(source, row, weight) for row, weight in rows[:8]]
                lines.append(f"  {source.name}: {len(rows)} rows {values}")
    return "\n".join(lines)


def _values(source, row, weight) -> str:
    pools = [(*f.pool, *f.outliers) for f in source.fields]
    return f"{[pool[place] for pool, place in zip(pools, row, strict=True)]} x{weight}"


def shrink(
    spark,
    program: Program,
    failed: str,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Program, str]:
    """Smaller programs that fail, as long as there is time: fewer sinks, steps, phases, rows."""
    until = clock() + seconds
    again = True
    while again and clock() < until:
        again = False
        for smaller in candidates(program):
            if clock() > until:
                break
            found = outcome(spark, smaller)
            if found.startswith("failed") and _same(found, failed):
                program, failed, again = smaller, found, True
                break
    return program, failed


def _same(found: str, failed: str) -> bool:
    """The same kind of failure, roughly: its first words."""
    return found.split(":")[1][:12] == failed.split(":")[1][:12]


def candidates(program: Program) -> Iterator[Program]:
    """Programs that are one step smaller."""
    for number in range(len(program.sinks)):
        if len(program.sinks) > 1 and program.edge != "two_sinks":
            smaller = copy.deepcopy(program)
            del smaller.sinks[number]
            yield smaller
    for node in program.needed[:-1]:
        smaller = copy.deepcopy(program)
        smaller.sinks = [_at(sink, node.name) for sink in smaller.sinks]
        yield smaller
    for number in range(len(program.phases)):
        if len(program.phases) > 1:
            smaller = copy.deepcopy(program)
            _merge(smaller.phases, number)
            yield smaller
    for number, phase in enumerate(program.phases):
        if phase.crash:
            smaller = copy.deepcopy(program)
            smaller.phases[number].crash = None
            yield smaller
    for source in program.sources:
        rows = sorted(
            {
                row
                for phase in program.phases
                for file in phase.files[source.name]
                for row, _ in file
            }
        )
        for gone in ({*rows[: len(rows) // 2]}, {*rows[len(rows) // 2 :]}):
            if gone and len(rows) > 1:
                smaller = copy.deepcopy(program)
                for phase in smaller.phases:
                    phase.files[source.name] = [
                        [(row, w) for row, w in file if row not in gone]
                        for file in phase.files[source.name]
                    ]
                yield smaller


def _at(sink, node: str):
    from dataclasses import replace

    return replace(sink, node=node)


def _merge(phases: list[Phase], number: int) -> None:
    """Take a phase out; its files go to its neighbour, so that nothing is retracted too early."""
    gone = phases.pop(number)
    place = min(number, len(phases) - 1)
    here = phases[place]
    for name, files in gone.files.items():
        here.files[name] = files + here.files[name] if number <= place else here.files[name] + files
    if gone.action != "run":
        here.action = gone.action

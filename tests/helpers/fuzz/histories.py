"""Random histories: files whose rows come and go, restarts, crashes, and what else happens."""

from __future__ import annotations

import random
from collections import Counter

from tests.helpers.fuzz.model import OUTLIERS, File, Phase, Program, Source


class Histories:
    """Adds random phases to a program: files with rows that come and go, and what happens besides."""

    CRASHES = (
        "epoch.after_plan",
        "epoch.after_execute",
        "epoch.after_draft",
        "commit.after_record",
        "epoch.after_commit",
        "outcome.before_record",
        "epoch.after_publish",
    )

    def __init__(self, rng: random.Random, program: Program, *, large: bool) -> None:
        self.rng, self.large, self.program = rng, large, program
        self.live: dict[str, Counter] = {s.name: Counter() for s in program.sources}

    def add(self) -> None:
        rng, edge = self.rng, self.program.edge
        actions = {
            "fork_same": "fork_same",
            "fork_upsert": "fork",
            "two_pipelines": "intrude",
            "lost_output": "lose",
            "restore_old": "restore",
            "restore_before": "restore",
            "touch": "touch",
            "moved_store": "move",
        }
        count = rng.randint(2, 3) + (edge == "lost_output")
        for number in range(count):
            last = number == count - 1
            phase = Phase({}, partitions=rng.randint(1, 7))
            for source in self.program.sources:
                phase.files[source.name] = self._files(source, number, last=last)
            if last and edge in actions:
                phase.action = actions[edge]
            elif rng.random() < 0.3 and not self.large:
                phase.crash = (rng.choice(self.CRASHES), rng.randint(1, 2))
            elif not edge and number and rng.random() < 0.25:
                phase.action = rng.choice(["restore", "fork", "move"])
            self.program.phases.append(phase)

    def _files(self, source: Source, number: int, *, last: bool) -> list[File]:
        rng, edge = self.rng, self.program.edge
        count = rng.randint(1, 3)
        if edge == "restore_old" and last:
            count = 14 if source.name == "s0" else 1
        if edge in ("restore_before", "two_pipelines") and number == 0:
            return [[]]
        if edge in OUTLIERS or edge == "odd_names":
            count = 3
        most = 50_000 if self.large else 20
        files = [
            self._rows(source, rng.randint(1, most) if not self.large else most)
            for _ in range(1 if self.large else count)
        ]
        if edge in OUTLIERS and source.weighted:
            self._outliers(source, files)
        if edge == "null_weight" and last and source.name == "s0":
            files.append([(self._row(source), None), (self._row(source), 1)])
        return files

    def _row(self, source: Source) -> tuple[int, ...]:
        return tuple(self.rng.randrange(len(f.pool)) for f in source.fields)

    def _rows(self, source: Source, count: int) -> File:
        rng, live, found = self.rng, self.live[source.name], []
        there: list = [row for row, n in live.items() if n > 0] if source.weighted else []
        for _ in range(count):
            if there and rng.random() < 0.35:
                row = rng.choice(there)
                weight = -rng.randint(1, live[row]) if live[row] > 0 else 1
            else:
                row = self._row(source)
                weight = rng.choice([1, 1, 1, 2, 3]) if source.weighted else 1
                there.append(row) if source.weighted and not self.large else None
            live[row] += weight
            found.append((row, weight))
        return found

    def _outliers(self, source: Source, files: list[File]) -> None:
        """Rows that come in the first file and are retracted in the last: they leave no trace."""
        fields = source.fields
        wild = [i for i, f in enumerate(fields) if f.outliers]
        row = list(self._row(source))
        for place in wild:
            field_ = fields[place]
            row[place] = len(field_.pool) + self.rng.randrange(len(field_.outliers))
        files[0].append((tuple(row), 1))
        files[-1].append((tuple(row), -1))

"""A changed pipeline on an old store: what is kept, dropped, backfilled, and what is refused.

Invariants:
- The decision is a pure function of the two topologies and the graph, made before anything runs.
- State is only kept for an operator that means exactly what it meant. A part that changed its
  meaning must take a new name: then the old one is removed and the new one backfilled.
- A new operator or sink is backfilled from the history of its sources or from the state of
  operators that hold all their rows; where neither is possible the change is refused, never half
  done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from holdfast.errors import IncompatibleError
from holdfast.format.topology import Part, Topology, differences
from holdfast.operators.base import Analyzed
from holdfast.operators.declaration import Node, SinkNode
from holdfast.runtime.graph import Graph


@dataclass(frozen=True)
class ChangePlan:
    """What a changed pipeline does with an old checkpoint.

    replayed: kept operators that run again over the past, with a state that is thrown away, because
    their own does not hold the rows that they gave. rebuilt: those of `new` that are not new, but
    whose output is built from scratch.
    """

    kept: frozenset[str] = frozenset()
    new: frozenset[str] = frozenset()
    removed: tuple[str, ...] = ()
    from_sources: tuple[str, ...] = ()
    from_state: tuple[str, ...] = ()
    replayed: frozenset[str] = frozenset()
    rebuilt: frozenset[str] = frozenset()

    @property
    def backfills(self) -> bool:
        """Whether new operators or sinks must be given rows of the past."""
        return bool(self.new) and bool(self.from_sources or self.from_state)

    def lines(self) -> list[str]:
        """One line for each decision."""
        made = [f"{name}: removed, its state goes with it" for name in self.removed]
        how = [*(f"source {name}" for name in self.from_sources)]
        how += [f"the state of {name}" for name in self.from_state]
        origin = " and ".join(how) or "nothing: no row came yet"
        made += [
            f"{name}: {'rebuilt' if name in self.rebuilt else 'new'}, filled from {origin}"
            for name in sorted(self.new)
        ]
        return made


def plan_changes(
    stored: Topology,
    running: Topology,
    graph: Graph,
    analyzed: Mapping[str, Analyzed],
    unfilled: Collection[str] = (),
) -> ChangePlan:
    """Decide, or refuse with a reason for every part that cannot be done.

    unfilled: new sinks whose output is kept as it is, or begins empty.
    """
    before = {part.name: part for part in stored.parts}
    after = {part.name: part for part in running.parts}
    refused = _changed(before, after)
    operators = {node.name for node in graph.operators}
    kept = frozenset(name for name in operators if name in before)
    targets: list[Node] = [*graph.operators, *graph.sinks]
    new = frozenset(t.name for t in targets if t.name not in before and t.name not in unfilled)
    known_sources = {part.name for part in stored.parts if part.kind == "source"}
    sources: dict[str, None] = {}
    states: dict[str, None] = {}
    for target in targets:
        if target.name in new:
            _origins(target, kept, known_sources, analyzed, sources, states, refused)
    if refused:
        raise IncompatibleError(
            "the pipeline has changed in a way that the old state cannot follow",
            kind="changes_refused",
            reasons="; ".join(refused[:20]),
            differences="; ".join(str(d) for d in differences(stored, running)[:20]),
            remedy="give a changed part a new name, or start a new pipeline",
        )
    removed = tuple(
        name for name in sorted(before) if name not in after and not _inner(before[name])
    )
    return ChangePlan(kept, new, removed, tuple(sources), tuple(states))


def plan_rebuild(
    stored: Topology, graph: Graph, analyzed: Mapping[str, Analyzed], sink: SinkNode
) -> tuple[ChangePlan, list[str]]:
    """How the output of a kept sink is rebuilt, and why it cannot be."""
    kept = frozenset(part.name for part in stored.parts) | {n.name for n in graph.operators}
    known = {part.name for part in stored.parts if part.kind == "source"}
    sources: dict[str, None] = {}
    states: dict[str, None] = {}
    refused: list[str] = []
    replayed: set[str] = set()
    waiting: list[Node] = [sink]
    while waiting:
        node = waiting.pop()
        for before in node.inputs:
            operator = analyzed.get(before.name)
            if before.late:
                refused.append(f"{sink.name}: rows that were late once were not kept")
            elif operator is not None and operator.task.replayable:
                if before.name not in replayed:
                    replayed.add(before.name)
                    waiting.append(before)
            elif before.inputs and not before.name:
                waiting.append(before)
            else:
                _origin(before, kept, known, analyzed, sources, states, refused)
    plan = ChangePlan(
        new=frozenset([sink.name]),
        rebuilt=frozenset([sink.name]),
        from_sources=tuple(sources),
        from_state=tuple(states),
        replayed=frozenset(replayed),
    )
    return plan, refused


def joined(plans: Iterable[ChangePlan]) -> ChangePlan:
    """Several plans at once; `kept` and `removed` are those of the first."""
    first, *others = plans
    new, sources, states = first.new, dict.fromkeys(first.from_sources), first.from_state
    replayed, rebuilt = first.replayed, first.rebuilt
    for plan in others:
        new |= plan.new
        rebuilt |= plan.rebuilt
        replayed |= plan.replayed
        sources |= dict.fromkeys(plan.from_sources)
        states = tuple(dict.fromkeys([*states, *plan.from_state]))
    return ChangePlan(first.kept, new, first.removed, tuple(sources), states, replayed, rebuilt)


def _inner(part: Part) -> bool:
    """A further trace of an operator, not a part of its own."""
    return part.what.endswith(" part")


def _changed(before: Mapping[str, Part], after: Mapping[str, Part]) -> list[str]:
    """Parts of one name that do not mean the same any more."""
    found = []
    for name in sorted(before.keys() & after.keys()):
        old, new = before[name], after[name]
        if old == new:
            continue
        if old.kind == new.kind == "source" and old.what == new.what:
            continue  # other columns: operators that see a difference have changed themselves
        fields = [f for f in Part.__struct_fields__ if getattr(old, f) != getattr(new, f)]
        found.append(f"{name}: its {', '.join(fields)} changed")
    return found


def _origins(
    target: Node,
    kept: frozenset[str],
    known_sources: set[str],
    analyzed: Mapping[str, Analyzed],
    sources: dict[str, None],
    states: dict[str, None],
    refused: list[str],
) -> None:
    """Where the past rows of a new part come from."""
    for before in target.inputs:
        _origin(before, kept, known_sources, analyzed, sources, states, refused)


def _origin(
    before: Node,
    kept: frozenset[str],
    known_sources: set[str],
    analyzed: Mapping[str, Analyzed],
    sources: dict[str, None],
    states: dict[str, None],
    refused: list[str],
) -> None:
    """Where the past rows of one step come from."""
    if before.late:
        return  # rows that were late once were not kept
    if not before.inputs:
        if before.name in known_sources:
            sources[before.name] = None
    elif before.name in kept:
        if analyzed[before.name].task.complete:
            states[before.name] = None
        else:
            refused.append(
                f"{before.name}: its state does not hold all its rows, so what is new behind "
                "it cannot be filled"
            )
    else:
        _origins(before, kept, known_sources, analyzed, sources, states, refused)

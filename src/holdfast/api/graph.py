"""The graph of a pipeline as text, as Mermaid and as SVG; nothing of Spark is needed.

Invariants:
- What is drawn is what the fingerprint is taken from: sources, operators and sinks, and between
  them the steps without state.
- Every text of a user is escaped and has a bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from holdfast.display import listed, short, shown, shown_html
from holdfast.format.topology import Part
from holdfast.runtime.graph import Graph

LINE_MAX = 48
DRAWN_MAX = 60
_CHARACTER, _LINE, _PAD = 6.6, 16, 10
_GAP_X, _GAP_Y = 70, 24
_FILLS = {"source": "#e3f0e3", "operator": "#e4ebf7", "sink": "#f7ecdc"}
_SHAPES = {"source": ('(["', '"])'), "operator": ('["', '"]'), "sink": ('[("', '")]')}


@dataclass(frozen=True)
class Box:
    """One named part: what is written in its box, and whose rows it takes."""

    name: str
    kind: str
    lines: tuple[str, ...]
    inputs: tuple[str, ...]
    columns: tuple[str, ...] | None
    changelog: bool


@dataclass(frozen=True)
class PipelineGraph:
    """The parts of a pipeline in the order in which rows pass them; made by `Pipeline.graph`."""

    pipeline: str
    store: str
    boxes: tuple[Box, ...]

    def __repr__(self) -> str:
        return shown(self, self.text)

    def _repr_html_(self) -> str:
        if len(self.boxes) > DRAWN_MAX:
            return f"<pre>{escape(shown(self, self.text)[:20_000])}</pre>"
        return shown_html(self, self.svg)

    def text(self) -> str:
        """The graph as lines of text.

        Returns:
            One entry for each source, operator and sink.

        Example:
            >>> print(pipe.graph().text().splitlines()[0])
            pipeline shop
        """
        lines = [f"pipeline {self.pipeline}", f"  store     {short(self.store, 200)}"]
        for box in self.boxes:
            lines.append(f"  {box.kind:9} {box.name} ({box.lines[0]})")
            lines += [f"            {line}" for line in box.lines[1:]]
            if box.inputs:
                lines.append(f"            from {listed(box.inputs)}")
            if box.kind != "sink":
                columns = "columns that only Spark knows" if box.columns is None else ""
                what = columns or listed(box.columns or ())
                lines.append(f"            gives {what}{' as a changelog' * box.changelog}")
        return "\n".join(lines)

    def mermaid(self) -> str:
        """The graph as Mermaid text, for Markdown pages.

        Returns:
            A `flowchart`; a thick arrow is a changelog.

        Example:
            >>> print(pipe.graph().mermaid().splitlines()[0])
            flowchart LR
        """
        ids = {box.name: f"n{number}" for number, box in enumerate(self.boxes)}
        changelogs = {box.name for box in self.boxes if box.changelog}
        lines = ["flowchart LR"]
        for box in self.boxes:
            left, right = _SHAPES[box.kind]
            label = "<br/>".join(_mermaid_text(line) for line in (box.name, *box.lines))
            lines.append(f"  {ids[box.name]}{left}{label}{right}")
        for box in self.boxes:
            for name in box.inputs:
                arrow = "==>" if name in changelogs else "-->"
                lines.append(f"  {ids[name]} {arrow} {ids[box.name]}")
        return "\n".join(lines)

    def svg(self) -> str:
        """The graph as a picture, from left to right.

        Returns:
            An `<svg>` element; a thick arrow is a changelog.

        Example:
            >>> pipe.graph().svg()[:4]
            '<svg'
        """
        places = _layout(self.boxes)
        width = max((x + w for x, _, w, _ in places.values()), default=0) + _PAD
        height = max((y + h for _, y, _, h in places.values()), default=0) + _PAD
        changelogs = {box.name for box in self.boxes if box.changelog}
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:.0f}" '
            f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
            'font-family="monospace" font-size="11">'
            f"<title>{escape(f'pipeline {self.pipeline}')}</title>"
            '<defs><marker id="hf-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto" markerUnits="userSpaceOnUse">'
            '<path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>'
        )
        edges = [
            _edge(places[name], places[box.name], thick=name in changelogs)
            for box in self.boxes
            for name in box.inputs
        ]
        drawn = [_drawn(box, places[box.name]) for box in self.boxes]
        return "".join([head, *edges, *drawn, "</svg>"])


def pipeline_graph(graph: Graph, store: str) -> PipelineGraph:
    """The graph as it is declared now."""
    nodes = {n.name: n for part in (graph.sources, graph.operators, graph.sinks) for n in part}
    titles = {operator.name: operator.title() for operator in graph.operators}
    parts = {part.name: part for part in graph.topology().parts}
    boxes = [
        Box(
            name=part.name,
            kind=part.kind,
            lines=tuple(_lines(part, titles.get(part.name, part.what))),
            inputs=tuple(dict.fromkeys(part.inputs)),
            columns=None if (known := nodes[part.name].columns) is None else tuple(known),
            changelog=nodes[part.name].retracts,
        )
        for part in _ordered(parts)
    ]
    return PipelineGraph(graph.pipeline, store, tuple(boxes))


def _ordered(parts: Mapping[str, Part]) -> list[Part]:
    """Every part behind those whose rows it takes."""
    order: dict[str, Part] = {}

    def add(name: str) -> None:
        if name in order:
            return
        for before in parts[name].inputs:
            add(before)
        order.setdefault(name, parts[name])

    kinds = {"source": 0, "operator": 1, "sink": 2}
    for name in sorted(parts, key=lambda n: (kinds.get(parts[n].kind, 1), n)):
        add(name)
    return [*order.values()]


def _lines(part: Part, title: str) -> list[str]:
    """What a part is, in a few short lines."""
    lines = [short(title, LINE_MAX)]
    steps = [text for key, text in part.params.items() if key.split(".")[0] == "steps"]
    others = [
        f"{key} = {text}"
        for key, text in part.params.items()
        if key.split(".")[0] != "steps" and key != "rule"
    ]
    lines += [short(text, LINE_MAX) for text in others[:4]]
    if len(others) > 4:
        lines.append(f"and {len(others) - 4} more")
    return lines + [short(text, LINE_MAX) for text in steps[:2]]


def _mermaid_text(text: str) -> str:
    escapes = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;"}
    return "".join(escapes.get(character, character) for character in text)


Place = tuple[float, float, float, float]


def _layout(boxes: Sequence[Box]) -> dict[str, Place]:
    """Columns by the longest way from a source; in a column, near the boxes before."""
    ranks: dict[str, int] = {}
    for box in boxes:
        ranks[box.name] = max((ranks[name] + 1 for name in box.inputs), default=0)
    sizes = {box.name: _size(box) for box in boxes}
    places: dict[str, Place] = {}
    x = float(_PAD)
    for rank in range(max(ranks.values(), default=-1) + 1):
        column = [box for box in boxes if ranks[box.name] == rank]
        column.sort(key=lambda box: _middle(box, places))
        y = float(_PAD)
        for box in column:
            width, height = sizes[box.name]
            places[box.name] = (x, y, width, height)
            y += height + _GAP_Y
        x += max(sizes[box.name][0] for box in column) + _GAP_X
    return places


def _size(box: Box) -> tuple[float, float]:
    lines = (box.name, *box.lines)
    return max(map(len, lines)) * _CHARACTER + 2 * _PAD, len(lines) * _LINE + _PAD


def _middle(box: Box, places: Mapping[str, Place]) -> float:
    heights = [places[name][1] + places[name][3] / 2 for name in box.inputs]
    return sum(heights) / len(heights) if heights else 0.0


def _edge(start: Place, end: Place, *, thick: bool) -> str:
    x1, y1 = start[0] + start[2], start[1] + start[3] / 2
    x2, y2 = end[0], end[1] + end[3] / 2
    bend = max(30.0, (x2 - x1) / 2)
    return (
        f'<path d="M{x1:.1f} {y1:.1f} C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} '
        f'{x2:.1f} {y2:.1f}" fill="none" stroke="#555" stroke-width="{2.5 if thick else 1}" '
        'marker-end="url(#hf-arrow)"/>'
    )


def _drawn(box: Box, place: Place) -> str:
    x, y, width, height = place
    radius = 2 if box.kind == "operator" else 12
    texts = "".join(
        f'<text x="{x + _PAD:.1f}" y="{y + _LINE * (number + 1):.1f}"'
        f' font-weight="{"normal" if number else "bold"}">{escape(line)}</text>'
        for number, line in enumerate((box.name, *box.lines))
    )
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}" '
        f'fill="{_FILLS[box.kind]}" stroke="#555"/>{texts}'
    )

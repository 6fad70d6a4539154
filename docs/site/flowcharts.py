"""The directive `mermaid` for flowcharts, drawn as SVG when the site is made: readers need no script.

It knows what the pages use: nodes with texts, arrows whole and dashed, one level of groups. Anything else is
an error with the line.
"""

from __future__ import annotations

import html
import itertools
import re
from typing import Any, Final

from docutils import nodes
from grandalf.graphs import Edge, Graph, Vertex
from grandalf.layouts import SugiyamaLayout
from sphinx.util.docutils import SphinxDirective

NODE: Final = r"(?P<{0}>[\w.]+)(?:\[(?P<{0}_text>\(?.+?\)?)\])?"
EDGE: Final = re.compile(rf"^{NODE.format('a')}\s*(?P<arrow>-->|-\.->)\s*{NODE.format('b')}$")
SINGLE: Final = re.compile(rf"^{NODE.format('a')}$")
LETTER_PX, LINE_PX, PADDING_PX = 7.0, 16, 10
LONGEST: Final = 30
"""Letters of a line of a node, at which it breaks."""


class Box:
    """What the layout knows of a node: its size, and its place afterwards."""

    def __init__(self, text: str) -> None:
        self.lines = broken(text)
        self.w = max(map(len, self.lines)) * LETTER_PX + 2 * PADDING_PX
        self.h = len(self.lines) * LINE_PX + PADDING_PX
        self.xy = (0.0, 0.0)


class Way:
    """What the layout knows of an arrow: the places between its ends where it passes other rows."""

    def __init__(self) -> None:
        self.bends: list[tuple[float, float]] = []

    def setpath(self, points: list[tuple[float, float]]) -> None:
        """Called by the layout, with the ends."""
        self.bends = list(points[1:-1])


def move_out(chart: Flowchart, vertices: dict[str, Any]) -> float:
    """Move nodes of no group behind the frames that they seem to be in. Returns where the last one ends."""
    end = 0.0
    for members in chart.groups.values():
        border = max(vertices[name].view.xy[0] + vertices[name].view.w / 2 for name in members) + 10
        for name, vertex in vertices.items():
            box = vertex.view
            if (
                not any(name in names for names in chart.groups.values())
                and box.xy[0] - box.w / 2 < border + 30
            ):
                box.xy = (border + 30 + box.w / 2, box.xy[1])
            end = max(end, box.xy[0] + box.w / 2)
    return end


def broken(text: str) -> list[str]:
    """The text in lines."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) >= LONGEST:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


class Flowchart:
    """A parsed flowchart.

    Attributes:
        direction: ``TB`` or ``LR``.
        texts: of the nodes, by their names.
        edges: pairs of names, and whether the arrow is dashed.
        groups: the names of the nodes of each group.
    """

    def __init__(self, source: str) -> None:
        self.direction, self.texts, self.edges = "TB", {}, []  # type: ignore[var-annotated]
        self.groups: dict[str, set[str]] = {}
        group = ""
        for number, line in enumerate(map(str.strip, source.splitlines()), 1):
            if line.startswith("flowchart "):
                self.direction = line.split()[1]
            elif line.startswith("subgraph "):
                group = line.removeprefix("subgraph ")
                self.groups[group] = set()
            elif line == "end":
                group = ""
            elif match := EDGE.match(line) or SINGLE.match(line):
                self._add(match, group)
            elif line:
                raise ValueError(f"line {number} of a flowchart is not understood: {line}")

    def _add(self, match: re.Match[str], group: str) -> None:
        found = match.groupdict()
        for side in ("a", "b"):
            name = found.get(side)
            if name is None:
                continue
            text = found[f"{side}_text"]
            if text is not None or name not in self.texts:
                self.texts[name] = name if text is None else text.strip('"()')
            if group:
                self.groups[group].add(name)
        if found.get("b") is not None:
            self.edges.append((found["a"], found["b"], found["arrow"] != "-->"))


def svg_of(source: str, label: str) -> str:
    """A flowchart as SVG.

    Raises:
        ValueError: it has what this does not know.
    """
    chart = Flowchart(source)
    is_wide = chart.direction == "LR"
    vertices = {name: Vertex(name) for name in chart.texts}
    for name, vertex in vertices.items():
        vertex.view = Box(chart.texts[name])
        if is_wide:  # laid out from above, and turned when it is drawn
            vertex.view.w, vertex.view.h = vertex.view.h, vertex.view.w
    edges = [Edge(vertices[a], vertices[b], data=dashed) for a, b, dashed in chart.edges]
    for edge in edges:
        edge.view = Way()
    offset, shapes, right, bottom = 0.0, [], 0.0, 0.0
    for part in Graph(list(vertices.values()), edges).C:
        layout = SugiyamaLayout(part)
        layout.xspace, layout.yspace = (14, 60) if is_wide else (16, 34)
        layout.init_all(optimize=True)
        layout.draw(12)
        left = min(v.view.xy[0] - v.view.w / 2 for v in part.sV)
        top = min(v.view.xy[1] - v.view.h / 2 for v in part.sV)
        for v in part.sV:
            x, y = v.view.xy[0] - left + offset, v.view.xy[1] - top
            v.view.xy = (y, x) if is_wide else (x, y)
            if is_wide:
                v.view.w, v.view.h = v.view.h, v.view.w
            right, bottom = max(right, v.view.xy[0] + v.view.w / 2), max(bottom, v.view.xy[1] + v.view.h / 2)
        for edge in part.sE:
            bends = [(x - left + offset, y - top) for x, y in edge.view.bends]
            edge.view.bends = [(y, x) for x, y in bends] if is_wide else bends
        offset = (bottom if is_wide else right) + 20
    if is_wide:
        right = max(right, move_out(chart, vertices))
    shapes += [group_of(name, [vertices[one].view for one in names]) for name, names in chart.groups.items()]
    shapes += [arrow_of(edge, is_wide) for edge in edges]
    shapes += [node_of(vertex.view) for vertex in vertices.values()]
    size = f'viewBox="-24 -30 {right + 48:.0f} {bottom + 54:.0f}" width="{right + 48:.0f}"'
    return f'<svg {size} role="img" aria-label="{html.escape(label)}">{"".join(shapes)}</svg>'


def node_of(box: Box) -> str:
    """A rectangle with its text."""
    x, y = box.xy
    first = y - (len(box.lines) - 1) * LINE_PX / 2 + 4
    texts = "".join(
        f'<text x="{x:.1f}" y="{first + index * LINE_PX:.1f}" text-anchor="middle">{html.escape(line)}</text>'
        for index, line in enumerate(box.lines)
    )
    place = f'x="{x - box.w / 2:.1f}" y="{y - box.h / 2:.1f}" width="{box.w:.1f}" height="{box.h:.1f}"'
    return f'<rect class="node" rx="4" {place}/>{texts}'


def arrow_of(edge: Any, is_wide: bool) -> str:
    """A curve from the border of one node, by its bends, to the border of another, with a head."""
    start, end = edge.v[0].view, edge.v[1].view
    (x1, y1), (x2, y2) = start.xy, end.xy
    if is_wide:
        places = [(x1 + start.w / 2, y1), *edge.view.bends, (x2 - end.w / 2 - 6, y2)]
        head = f"M{places[-1][0] + 6:.1f},{y2:.1f} l-7,-3.5 v7 z"
    else:
        places = [(x1, y1 + start.h / 2), *edge.view.bends, (x2, y2 - end.h / 2 - 6)]
        head = f"M{x2:.1f},{places[-1][1] + 6:.1f} l-3.5,-7 h7 z"
    curve = f"M{places[0][0]:.1f},{places[0][1]:.1f}"
    for (x1, y1), (x2, y2) in itertools.pairwise(places):
        first, second = ((x1 + x2) / 2, y1), ((x1 + x2) / 2, y2)
        if not is_wide:
            first, second = (x1, (y1 + y2) / 2), (x2, (y1 + y2) / 2)
        curve += f" C{first[0]:.1f},{first[1]:.1f} {second[0]:.1f},{second[1]:.1f} {x2:.1f},{y2:.1f}"
    kind = ' class="dashed"' if edge.data else ""
    return f'<path{kind} d="{curve}"/><path class="head" d="{head}"/>'


def group_of(name: str, boxes: list[Box]) -> str:
    """The frame around the nodes of a group, with its name."""
    left = min(box.xy[0] - box.w / 2 for box in boxes) - 10
    top = min(box.xy[1] - box.h / 2 for box in boxes) - 10
    width = max(box.xy[0] + box.w / 2 for box in boxes) + 10 - left
    height = max(box.xy[1] + box.h / 2 for box in boxes) + 10 - top
    place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    title = f'<text x="{left + 4:.1f}" y="{top - 5:.1f}">{html.escape(name)}</text>'
    return f'<rect class="group" rx="6" {place}/>{title}'


class Mermaid(SphinxDirective):
    """A block of mermaid."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """The picture."""
        try:
            drawn = svg_of("\n".join(self.content), f"flowchart of {self.env.docname}")
        except ValueError as error:
            raise self.error(str(error)) from error
        return [nodes.raw("", f'<div class="flowchart">{drawn}</div>', format="html")]


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

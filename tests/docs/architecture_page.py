"""The generated parts of docs/architecture.md; as a program, it writes them into the page.

.venv/bin/python -m tests.docs.architecture_page
"""

from __future__ import annotations

import ast
import re

from tests.source_tree import PACKAGE, ROOT, imported_modules, modules, python_files
from tests.test_layering import KNOWS_THE_ENGINE, LAYERS, layer_name

PAGE = ROOT / "docs" / "architecture.md"
WIDTH = 32
"""Columns of the tree before what the line says."""


def packages() -> dict[str, str]:
    """The package and its sub-packages by dotted name, each with the first line of its docstring."""
    names = {".".join(path.parent.relative_to(ROOT).parts) for path in python_files()}
    found = {}
    for name in sorted(names):
        found[name] = (ast.get_docstring(modules()[name]) or "").partition("\n")[0]
    return found


def tree() -> str:
    """The sub-packages, indented by depth, with one line each."""
    lines = ["```text"]
    for name, says in packages().items():
        indent = "    " * name.count(".")
        lines.append(f"{indent}{name.rpartition('.')[2]}/".ljust(WIDTH) + says)
    return "\n".join([*lines, "```"])


def layer_graph() -> dict[str, set[str]]:
    """What each name of the table imports at run time of the names in lower layers; layer 0 is one node."""
    graph: dict[str, set[str]] = {_node(name): set() for name in LAYERS}
    for name, syntax in modules().items():
        own = layer_name(name)
        if own is None:
            continue
        for target in imported_modules(name, syntax):
            other = layer_name(target) if target.startswith("embeddedpulsar.") else None
            if other is not None and _node(other) != _node(own):
                graph[_node(own)].add(_node(other))
    return graph


def diagram() -> str:
    """The layers as a mermaid block: an arrow for each import that no chain of other arrows implies."""
    graph = layer_graph()
    numbers = {_node(name): layer for name, layer in LAYERS.items()}
    highest_first = sorted(graph, key=lambda node: (-numbers[node], node))
    values = ", ".join(name for name, layer in LAYERS.items() if layer == 0)
    lines = ["```mermaid", "flowchart TB"]
    for node in highest_first:
        label = values if node == "values" else node
        lines.append(f'    {node}["{numbers[node]} · {label}"]')
    for node in highest_first:
        implied = {far for near in graph[node] for far in _below(near, graph)}
        lines += [f"    {node} --> {target}" for target in sorted(graph[node] - implied)]
    return "\n".join([*lines, "```"])


def ways_to_the_engine() -> str:
    """The modules that know the engine, and what for, as a table."""
    lines = ["| module | what it knows of the engine |", "|---|---|"]
    for name, what in KNOWS_THE_ENGINE.items():
        path = PACKAGE.joinpath(*name.split("."))
        place = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        lines.append(f"| `{place.relative_to(PACKAGE)}` | {what} |")
    return "\n".join(lines)


def _node(name: str) -> str:
    return "values" if LAYERS[name] == 0 else name


def _below(node: str, graph: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    for target in graph[node]:
        found |= {target, *_below(target, graph)}
    return found


def rendered(page: str) -> str:
    """The text of the page with its generated parts replaced."""
    blocks = {"tree": tree(), "layers": diagram(), "ways to the engine": ways_to_the_engine()}
    for name, block in blocks.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
        assert len(pattern.findall(page)) == 1, f"{PAGE} needs {begin} and {end}"
        page = pattern.sub(lambda _, text=f"{begin}\n{block}\n{end}": text, page)
    return page


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text("utf-8")), "utf-8")

"""The generated parts of docs/architecture.md are what the source says."""

from __future__ import annotations

import ast

from tests.docs.architecture_page import PAGE, layer_graph, packages, rendered
from tests.source_tree import PACKAGE, ROOT, modules
from tests.test_layering import LAYERS


def test_the_page_shows_the_tree_and_the_layers_of_the_source():
    """If this fails, run ``python -m tests.docs.architecture_page``."""
    text = PAGE.read_text("utf-8")
    assert rendered(text) == text


def test_each_package_says_in_one_line_what_lives_there():
    """The first line of its docstring is a sentence of its own."""
    assert not [name for name, says in packages().items() if not says.endswith(".")]
    assert not [name for name in packages() if len(ast.get_docstring(modules()[name]) or "") < 30]


def test_the_diagram_has_every_layer():
    """Each name of the table is a node, and each arrow points to a lower layer."""
    graph = layer_graph()
    assert set(graph) == {name for name, layer in LAYERS.items() if layer > 0} | {"values"}
    numbers = LAYERS | {"values": 0}
    assert all(numbers[node] >= numbers[target] for node in graph for target in graph[node])


def test_folders_of_unit_tests_are_those_of_the_package():
    """A folder below tests/unit has the name of the sub-package it tests; those of the engine without its
    name."""
    unit = ROOT / "tests" / "unit"
    folders = {path.parent.relative_to(unit) for path in unit.rglob("*.py")}
    assert not {
        folder
        for folder in folders
        if not any((place / folder / "__init__.py").is_file() for place in (PACKAGE, PACKAGE / "_engine"))
    }

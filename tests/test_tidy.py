"""Tidiness: size limits, banned constructs, and a docstring on every public name."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

import embeddedpulsar
from tests.source_tree import PACKAGE, ROOT, module_name, modules, nodes, python_files, trees_of_tests

MAX_FILE_LINES = 900
MAX_FUNCTION_LINES = 70

# File or function -> why it may be longer.
LONG_FILES: dict[str, str] = {
    "embeddedpulsar.admin.topics": "flat, as in pulsar-admin; most of it is docstrings with examples",
}
LONG_FUNCTIONS: dict[str, str] = {
    "embeddedpulsar._engine.log.segment_writer.SegmentWriter.append": "hot: every call would cost 2 %",
    "embeddedpulsar.client.producer.producer.Producer.send_async": "hot: one call takes as long as the rest",
}

# Base class with a single subclass -> why it is one.
LONE_BASES: dict[str, str] = {
    "ActiveAttachment": "a consumer of a persistent topic; those of others differ in few methods",
    "SharedAttachment": "likewise",
    "TopicControl": "the words of its subclass are in memory: it is for a store that is only looked at",
    "ResultBackend": "ours for Celery has the name of a base class of dramatiq",
    "ForeignFileError": "one of the reasons is told from the others, because a store can be looked at then",
}

# Modules that talk to a terminal.
MAY_PRINT = ("embeddedpulsar.cli",)

# Modules that may pickle -> why.
MAY_PICKLE: dict[str, str] = {
    "embeddedpulsar.futures.encoding": "the serializer pickle, asked for by its name",
    "embeddedpulsar.functions.serde": "PickleSerDe of pulsar.functions, asked for by its name",
}

# Modules whose named tuples are those of `typing` -> why.
MAY_USE_TYPING: dict[str, str] = {
    "embeddedpulsar.records": "it says that its own are these",
    "embeddedpulsar.functions.function_config": "a generic one",
}

# Words that the text of the package does without -> what stands in their place.
DIALECT = {
    r"\bwhoever\b": "the process, the caller, the consumer that",
    r"\b(?:no|some)body\b": "no process, another caller, or a passive sentence",
    r"\b(?:is|are|was|were|be) told\b": "is called with, gets, is notified",
    r"\b(?:he|him|his)\b": "it, its",
    r"; whether\b": "Returns:, or a sentence of its own",
}

# Names of variables and parameters that say nothing of what they hold.
VAGUE_NAMES = frozenset({"found", "one", "there", "made", "asked"})
# These hold a bound, or one side of a pair, where they are unpacked or passed; alone they say nothing.
VAGUE_ALONE = frozenset({"left", "most"})
# Names of methods that do not say what happens.
VAGUE_VERBS = frozenset(
    {"look", "settle", "arm", "forget", "leave", "take", "follow", "turn", "rest", "note"}
)
# Method of the public API -> why it has the name.
VAGUE_METHODS: dict[str, str] = {
    "embeddedpulsar.admin.activity.ActivityWatch.look": "public, and what a watch does",
    "embeddedpulsar.frameworks.celery.ResultBackend.forget": "of the interface of Celery",
    "embeddedpulsar.functions.supervisor.Supervisor.look": "public",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def functions() -> list[tuple[str, Function]]:
    """Every function and method, by its dotted name."""
    found: list[tuple[str, Function]] = []

    def visit(prefix: str, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                found.append((f"{prefix}.{child.name}", child))
                visit(f"{prefix}.{child.name}", child)
            elif isinstance(child, ast.ClassDef):
                visit(f"{prefix}.{child.name}", child)
            else:
                visit(prefix, child)

    for name, tree in modules().items():
        visit(name, tree)
    return found


@cache
def calls(tree: ast.Module) -> list[str]:
    """The names of all functions called in a module: `f` of `f()` and of `x.f()`."""
    found = []
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                found.append(node.func.attr)
            elif isinstance(node.func, ast.Name):
                found.append(node.func.id)
    return found


def test_files_are_short():
    """A file holds one subject, within 900 lines."""
    sizes = {module_name(path): path.read_text("utf-8").count("\n") for path in python_files()}
    bad = {name: size for name, size in sizes.items() if size > MAX_FILE_LINES and name not in LONG_FILES}
    assert not bad


def test_functions_are_short():
    """A function is one step, within 70 lines (its docstring and its comments not counted)."""
    bad = {}
    texts = {module_name(path): path.read_text("utf-8").splitlines() for path in python_files()}
    for name, node in functions():
        documentation = node.body[0] if ast.get_docstring(node) is not None else None
        module = max((known for known in texts if name.startswith(f"{known}.")), key=len)
        lines = texts[module][node.lineno - 1 : node.end_lineno]
        size = sum(not line.lstrip().startswith("#") for line in lines)
        if documentation is not None:
            size -= (documentation.end_lineno or 0) - documentation.lineno + 1
        if size > MAX_FUNCTION_LINES and name not in LONG_FUNCTIONS:
            bad[name] = size
    assert not bad


def test_exceptions_to_the_limits_are_needed():
    """An exception that nothing needs any more is taken out of the list."""
    assert set(LONG_FILES) <= set(modules())
    assert set(LONG_FUNCTIONS) <= {name for name, _ in functions()}


def test_no_base_class_splits_a_class():
    """A base class has several subclasses, or is public, or a protocol; one class is not cut in two."""
    homes: dict[str, str] = {}
    subclasses: dict[str, set[tuple[str, str]]] = {}
    protocols: set[str] = set()
    for name, tree in modules().items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(getattr(base, "value", base)) for base in node.bases]
                homes.setdefault(node.name, name)
                if "Protocol" in bases:
                    protocols.add(node.name)
                for base in bases:
                    subclasses.setdefault(base, set()).add((name, node.name))
    lone = {
        base
        for base, found in subclasses.items()
        if base in homes
        and len(found) == 1
        and base not in {*embeddedpulsar.__all__, *protocols}
        # Two classes of one module, for example of one protocol, are read together.
        and next(iter(found))[0] != homes[base]
    }
    assert lone == LONE_BASES.keys(), "compose the two, or give the exception a reason, or take it out"


def test_no_error_is_swallowed():
    """No bare except, and no handler whose only act is `pass` or `...`."""
    bad = []
    for name, tree in modules().items():
        for node in nodes(tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            if node.type is None:
                bad.append(f"{name}:{node.lineno} bare except")
            (*_, last) = node.body
            ellipsis = isinstance(last, ast.Expr) and getattr(last.value, "value", None) is Ellipsis
            if len(node.body) == 1 and (isinstance(last, ast.Pass) or ellipsis):
                bad.append(f"{name}:{node.lineno} does nothing; use contextlib.suppress or handle it")
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("pack_into", "clears its target first, which a reader of the shared map can see"),
        ("lockf", "is dropped by closing any other descriptor of the file; use flock"),
        ("ftruncate", "kills every process that maps the file; grow by fallocate, retire by unlink"),
    ],
)
def test_no_dangerous_call(function: str, reason: str):
    """Calls that are wrong on shared maps and locks stay out."""
    bad = [name for name, tree in modules().items() if function in calls(tree)]
    if function == "ftruncate":
        bad = [
            name for name in bad if name != "embeddedpulsar._engine.platform.disk"
        ]  # grows a file nobody maps yet
    assert not bad, f"{function} {reason}"


def test_methods_are_written_in_their_class():
    """A class is one class in one file: no module has a function with ``self`` that a class takes over."""
    bad = [
        f"{name}:{node.lineno}"
        for name, tree in modules().items()
        for node in tree.body
        if isinstance(node, Function) and [arg.arg for arg in node.args.args[:1]] == ["self"]
    ]
    assert not bad


def test_no_lock_in_a_with_statement():
    """A locked section has the one form that survives an interrupt, which docs/contributing.md shows."""
    bad = [
        f"{name}:{node.lineno}"
        for name, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.With | ast.AsyncWith)
        for item in node.items
        if re.search(r"lock(ed)?\b", ast.unparse(item.context_expr), re.IGNORECASE)
    ]
    assert not bad


def test_no_class_is_exchanged():
    """An object keeps the class it was made with: `__class__` is read, never assigned."""
    bad = []
    for name, tree in modules().items():
        for node in nodes(tree):
            stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
            if stored and node.attr == "__class__":
                bad.append(f"{name}:{node.lineno}")
            if isinstance(node, ast.Call) and any(
                isinstance(argument, ast.Constant) and argument.value == "__class__" for argument in node.args
            ):
                bad.append(f"{name}:{node.lineno}")
    assert not bad


def test_no_print():
    """The library logs; only the command line prints."""
    bad = [
        name for name, tree in modules().items() if not name.startswith(MAY_PRINT) and "print" in calls(tree)
    ]
    assert not bad


def test_no_pickle():
    """Nothing that is read from a file can run code."""
    banned = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
    bad = []
    for name, tree in modules().items():
        for node in nodes(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            if banned & {imported.split(".")[0] for imported in names} and name not in MAY_PICKLE:
                bad.append(name)
    assert not bad


def test_named_tuples_are_records():
    """Those of `typing` take eight times as long to make, and there are a hundred in each process."""
    found = {
        name
        for name, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "typing"
        if any(alias.name == "NamedTuple" for alias in node.names)
    }
    assert found == set(MAY_USE_TYPING)


def test_variables_are_named_for_what_they_hold():
    """A local, a parameter and a loop variable is the noun of what it holds: an entry, a ledger, a match."""
    bad, fields = [], set()
    for name, tree in modules().items():
        for node in nodes(tree):
            if isinstance(node, ast.AnnAssign) and node.value is None:
                fields.add(node.target)  # of a public record
            if isinstance(node, ast.Assign | ast.AnnAssign):
                alone = node.targets if isinstance(node, ast.Assign) else [node.target]
            elif isinstance(node, ast.For | ast.comprehension):
                alone = [node.target]
            else:
                alone = []
            bad += [
                f"{name}:{target.lineno} {target.id}"
                for target in alone
                if isinstance(target, ast.Name) and target.id in VAGUE_ALONE and target not in fields
            ]
            is_stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            if is_stored and node.id in VAGUE_NAMES and node not in fields:
                bad.append(f"{name}:{node.lineno} {node.id}")
            if isinstance(node, ast.arg) and node.arg in VAGUE_NAMES:
                bad.append(f"{name}:{node.lineno} parameter {node.arg}")
    assert not bad, "\n".join(bad)


def test_methods_say_what_happens():
    """A method is a verb of the field: it claims, discards, catches up, and does not take or follow."""
    vague = {name for name, _ in functions() if name.rpartition(".")[2].lstrip("_") in VAGUE_VERBS}
    assert vague == VAGUE_METHODS.keys(), "name what happens, or take the exception out"


def test_no_open_ends_in_comments():
    """Work that is left is listed in the documentation, not in the source."""
    word = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
    folders = ("embeddedpulsar", "tests", "examples", "benchmarks", "docs")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")
    ]
    bad = [str(path.relative_to(ROOT)) for path in files if word.search(path.read_text("utf-8"))]
    assert not bad


def test_the_package_is_written_in_plain_english():
    """Docstrings, comments and messages name the process, the caller or the consumer."""
    bad = []
    for path in python_files():
        name = module_name(path)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            bad += [
                f"{name}:{number} {line.strip()!r}; write {instead}"
                for word, instead in DIALECT.items()
                if re.search(word, line, re.IGNORECASE)
            ]
    assert not bad, "\n".join(bad)


def test_public_names_are_documented():
    """Modules, public classes and functions have a docstring; in the public API, public methods too.

    Inside, the docstring of the class states the contract, and a method that adds nothing to it has none.
    """
    bad = []

    def visit(prefix: str, node: ast.AST, *, methods: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, Function | ast.ClassDef) or child.name.startswith("_"):
                continue
            if ast.get_docstring(child) is None and not _is_overload(child):
                bad.append(f"{prefix}.{child.name}")
            if isinstance(child, ast.ClassDef) and (methods or child.name in embeddedpulsar.__all__):
                visit(f"{prefix}.{child.name}", child, methods=methods)

    for name, tree in modules().items():
        if ast.get_docstring(tree) is None:
            bad.append(name)
        visit(name, tree, methods=name.count(".") < 2 or name.startswith("embeddedpulsar.schema"))
    assert not bad, "\n".join(bad)


def _is_overload(node: Function | ast.ClassDef) -> bool:
    """Whether the definition is a typing overload or the setter of a documented property."""
    return any(
        (isinstance(mark, ast.Name) and mark.id == "overload")
        or (isinstance(mark, ast.Attribute) and mark.attr == "setter")
        for mark in node.decorator_list
    )


def test_tests_say_what_they_promise():
    """Every test has a docstring that states the behaviour."""
    bad = []
    for path, tree in trees_of_tests().items():
        for node in nodes(tree) if path.name.startswith("test_") else ():
            if isinstance(node, Function) and node.name.startswith("test_"):
                if ast.get_docstring(node) is None:
                    bad.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not bad, "\n".join(bad)


def test_the_folders_of_conformance_are_subjects():
    """Each is told in the docstring of `tests/conformance`, and each test lies in one of them."""
    folder = ROOT / "tests" / "conformance"
    table = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8")))
    assert table is not None
    subjects = set(re.findall(r"^([a-z_]+)  +\w", table, re.MULTILINE))
    assert subjects == {test.relative_to(folder).parent.as_posix() for test in folder.rglob("test_*.py")}


def test_tests_do_not_sleep():
    """Only tests of several real processes may wait by the clock."""
    allowed = ("tests/multiprocess/", "tests/crash/", "tests/spark/", "tests/storms/")
    bad = [
        str(path.relative_to(ROOT))
        for path, tree in trees_of_tests().items()
        if not str(path.relative_to(ROOT)).startswith(allowed) and "sleep" in calls(tree)
    ]
    assert not bad


def test_the_package_is_typed():
    """Type checkers read the annotations of the package."""
    assert (PACKAGE / "py.typed").is_file()

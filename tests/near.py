"""The tests that lie nearest to a module, so that a change of it can be tried in seconds.

``python -m tests.near FILE...`` runs them; without a file, those nearest to what git says is changed. No
module is listed here, so that renaming one needs no care:

* A test is near by what it names: the module itself (an import, or the dotted name in a string, as
  patches have it), or a module of the package or of the helpers here that names it, a step away.
* Tests of behaviour use the public names only. They are near by words: those of the paths, and of the first
  lines of the docstrings, of the module and of the test, a rare word counting more than a common one.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# More users than this say nothing about a module: it is used everywhere.
MANY_USERS = 25
# The folders of tests that take seconds; those of processes, kills and Spark come behind them.
QUICK = ("unit", "property", "extending", "conformance")

# The folders whose tests name no module; those of processes take too long to be guessed.
OF_BEHAVIOUR = ("conformance", "extending", "property")
# What the words that two files share must count for: a word of the paths that a tenth of the tests has.
TELLING = 2.3
# A word in the docstrings of a greater share of the tests tells nothing.
COMMON = 0.05

_DOTTED = re.compile(r"\b(?:embeddedpulsar|tests)(?:\.\w+)*")
_FROM = re.compile(r"^[ \t]*from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)", re.MULTILINE)
_WORD = re.compile(r"[a-z]+")


class NearTests:
    """Which files name which modules, in one tree of sources.

    Args:
        root: The directory with ``embeddedpulsar`` and ``tests``.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._files = {
            _module_name(path.relative_to(root)): path.relative_to(root)
            for folder in ("embeddedpulsar", "tests")
            for path in sorted((root / folder).rglob("*.py"))
        }
        self._users: dict[str, set[str]] = defaultdict(set)
        self._words: dict[Path, frozenset[str]] = {}
        for name, path in self._files.items():
            text = (root / path).read_text("utf-8")
            self._words[path] = _words(path, text)
            for used in self._named_in(text):
                if used != name:
                    self._users[used].add(name)
        self._tests = [path for path in self._files.values() if _is_test(path)]
        self._frequency = Counter(word for test in self._tests for word in self._words[test])

    def of(self, path: Path, *, limit: int) -> list[Path]:
        """The test files nearest to one file, nearest first.

        Args:
            path: A file below the root, of the package or of the tests; a test is near to itself alone.
            limit: At most so many files.
        """
        if _is_test(path):
            return [path]
        by_name = self._by_name(_module_name(path))
        by_words = self._by_words(path)
        ranked = sorted(
            by_name, key=lambda test: (_is_slow(test), by_name[test], -self._likeness(path, test), test)
        )
        # A quarter of the room is for tests of behaviour, which name no module.
        room = max(limit - limit // 4, limit - len(by_words))
        chosen = ranked[:room]
        chosen += [test for test in by_words if test not in chosen][: limit - len(chosen)]
        return chosen

    def _by_name(self, module: str) -> dict[Path, int]:
        """Test file -> steps to it, along files that name each other."""
        steps = {module: 0}
        reached = [module]
        for step in (1, 2):
            # A module that everybody uses says nothing of who is near; the one asked for always does.
            sources = [name for name in reached if step == 1 or len(self._users[name]) <= MANY_USERS]
            reached = []
            for name in sources:
                for user in sorted(self._users[name] - steps.keys()):
                    if not user.endswith(".conftest"):
                        steps[user] = step
                        reached.append(user)
        tests = {self._files[name]: step for name, step in steps.items() if name in self._files}
        return {test: step for test, step in tests.items() if _is_test(test) and not _reads_sources(test)}

    def _by_words(self, path: Path) -> list[Path]:
        """The tests of behaviour whose paths share a telling word with that of the module."""
        tests = [test for test in self._tests if test.parts[1] in OF_BEHAVIOUR]
        likeness = {test: self._likeness(path, test) for test in tests}
        near = [test for test in tests if likeness[test] > TELLING]
        return sorted(near, key=lambda test: (-likeness[test], test))

    def _likeness(self, path: Path, test: Path) -> float:
        """The words that both have: each counts the more, the fewer tests have it, and in both paths most."""
        weights = 0.0
        for word in self._words[path] & self._words[test]:
            share = self._frequency[word] / len(self._tests)
            in_paths = word in _words(path) and word in _words(test)
            if in_paths or share < COMMON:
                weights -= math.log(share) * (1.0 if in_paths else 0.4)
        return weights

    def _named_in(self, text: str) -> Iterable[str]:
        for match in _DOTTED.finditer(text):
            name = match[0]
            while name and name not in self._files:
                name = name.rpartition(".")[0]
            if name:
                yield name
        for match in _FROM.finditer(text):
            for imported in re.findall(r"\w+", match[2]):
                if f"{match[1]}.{imported}" in self._files:
                    yield f"{match[1]}.{imported}"


def changed_files(root: Path = ROOT) -> list[Path]:
    """The Python files of the package and of the tests that differ from the last commit, new ones too."""
    command = [
        "git",
        "status",
        "--porcelain",
        "--no-renames",
        "--untracked-files=all",
        "--",
        "embeddedpulsar",
        "tests",
    ]
    lines = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
    paths = [Path(line[3:].strip('"')) for line in lines]
    return [path for path in paths if path.suffix == ".py" and (root / path).is_file()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the nearest test files, and run them unless ``--list`` is given."""
    parser = argparse.ArgumentParser(prog="python -m tests.near", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="without: what differs from the last commit"
    )
    parser.add_argument(
        "--limit", type=int, default=12, help="at most so many test files for each (%(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="print them, and run nothing")
    parser.add_argument("--pytest", default="", metavar="OPTIONS", help="passed to pytest, in one string")
    options = parser.parse_args(arguments)
    files = [file.resolve().relative_to(ROOT) for file in options.files] or changed_files()
    missing = [str(file) for file in files if not (ROOT / file).is_file()]
    if missing:
        parser.error(f"there is no file {', '.join(missing)}")
    near = NearTests()
    tests = list(dict.fromkeys(test for file in files for test in near.of(file, limit=options.limit)))
    print("\n".join(map(str, tests)) or "no test is near: nothing differs from the last commit", flush=True)
    if options.list or not tests:
        return 0
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "not slow",
        *options.pytest.split(),
        *map(str, tests),
    ]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_test(path: Path) -> bool:
    return path.name.startswith("test_") and path.suffix == ".py"


def _reads_sources(test: Path) -> bool:
    """Whether it checks the sources and the pages as a whole: those run with `make quick`."""
    return len(test.parts) == 2 or test.parts[1] == "docs"


def _is_slow(test: Path) -> bool:
    return test.parts[1] not in QUICK


@cache
def _words(path: Path, text: str = "") -> frozenset[str]:
    """The words of a path and of the first line of a docstring, without their endings."""
    first_line = text.partition("\n")[0] if text.startswith('"""') else ""
    words = _WORD.findall(f"{path.with_suffix('').as_posix()} {first_line}".lower())
    return frozenset(_stem(word) for word in words) - {"embeddedpulsar", "test"}


def _stem(word: str) -> str:
    for ending in ("ing", "ion", "ies", "ed", "er", "es", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word.removesuffix(ending)
    return word


if __name__ == "__main__":
    sys.exit(main())

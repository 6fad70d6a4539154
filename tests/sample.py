"""A sample of the tests, the same one each time: what `make quick` runs.

Of the tests of behaviour (`tests/conformance`) every third one with one set of parameters; of all others each
one, with at most three sets of parameters, spread over those it has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

SHARE_OF_BEHAVIOUR = 3
MOST_PARAMETERS = 3


def add_option(parser: pytest.Parser) -> None:
    """The option of pytest that asks for the sample."""
    parser.addoption("--sample", action="store_true", help="a third of conformance, few of many parameters")


def take(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the sample of the collected tests, where it was asked for."""
    if not config.getoption("--sample"):
        return
    names = [(item.path.relative_to(config.rootpath), item.nodeid.partition("[")[0]) for item in items]
    kept = sample(names)
    config.hook.pytest_deselected(items=[item for at, item in enumerate(items) if at not in kept])
    items[:] = [item for at, item in enumerate(items) if at in kept]


def sample(tests: Sequence[tuple[Path, str]]) -> set[int]:
    """Which of the tests to run.

    Args:
        tests: For each its file and its name without parameters, in the order of the collection.

    Returns:
        Their indexes.
    """
    sets: dict[Path, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for at, (path, name) in enumerate(tests):
        sets[path][name].append(at)
    kept: set[int] = set()
    for path, functions in sets.items():
        is_of_behaviour = "conformance" in path.parts
        share, most = (SHARE_OF_BEHAVIOUR, 1) if is_of_behaviour else (1, MOST_PARAMETERS)
        for parameters in list(functions.values())[::share]:
            kept.update(_spread(parameters, most))
    return kept


def _spread(numbers: list[int], most: int) -> list[int]:
    """At most so many of the numbers, the first among them, at even distances."""
    count = min(most, len(numbers))
    return [numbers[index * len(numbers) // count] for index in range(count)]

"""The client of a storm of frameworks: sends tasks, awaits the results, and says whether they are right."""

from __future__ import annotations

import importlib


def main(app: str, session: str, count: str, timeout_s: str) -> None:
    """Run a session of a program."""
    results = getattr(importlib.import_module(app), session)(int(count), float(timeout_s))
    wrong = [(number, result) for number, result in enumerate(results) if result != 2 * number]
    print(f"wrong: {wrong[:10]}" if wrong else f"{len(results)} results")

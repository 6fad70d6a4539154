"""The tables on the terminal, and the same facts as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contest import Settings
from benchmarks.harness import Row, Table, Verdict, ratio


def figure(value: float) -> str:
    """A figure with the digits that mean something: 1,234,567, 123.4 or 0.0123."""
    if value >= 1000:
        return f"{value:,.0f}"
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.3g}"


def lines(table: Table) -> list[str]:
    """A table as text; the third column says how many times better the first row is than each other row."""
    direction = "more is better" if table.higher_is_better else "less is better"
    reference = table.rows[0]
    head = ["", table.unit + ", median", "best", "first is better", "survives", ""]
    body = [_cells(table, row, reference) for row in table.rows]
    widths = [max(len(cells[i]) for cells in [head, *body]) for i in range(len(head))]
    out = [f"{table.title}  ({direction})"]
    for cells in [head, *body]:
        texts = [cells[0].ljust(widths[0])]
        texts += [cells[i].rjust(widths[i]) for i in (1, 2, 3)]
        texts += [cells[4].ljust(widths[4]), cells[5]]
        out.append(("  " + "  ".join(texts)).rstrip())
    out += ["  " + _verdict_line(v) for v in table.verdicts]
    return out


def advantage(table: Table, row: Row) -> float | None:
    """How many times better the first row did than `row`, as the median over the rounds; None if unknown."""
    first = table.rows[0]
    return ratio(first, row) if table.higher_is_better else ratio(row, first)


def _cells(table: Table, row: Row, reference: Row) -> list[str]:
    if row.missing:
        return [row.name, "-", "-", "-", "", f"not run: {row.missing}"]
    if not row.figures:
        return [row.name, "-", "-", "-", row.survives, ""]
    best = max(row.figures) if table.higher_is_better else min(row.figures)
    times = advantage(table, row)
    shown = "" if times is None or row is reference else f"{figure(times)} x"
    notes = ", ".join(f"{name} {figure(value)}" for name, value in row.notes.items())
    return [row.name, figure(median(row.figures)), figure(best), shown, row.survives, notes]


def _verdict_line(verdict: Verdict) -> str:
    budget = verdict.budget
    if verdict.got is None:
        return f"budget  {budget.text}: not measured"
    unit = " x" if budget.peer else ""
    measured = f"measured {figure(verdict.got)}{unit}"
    if verdict.met:
        return f"budget  {budget.text}: {measured}, met"
    factor = budget.limit / verdict.got if budget.at_least else verdict.got / budget.limit
    return f"budget  {budget.text}: {measured}, SHORT by a factor of {factor:.2f}"


def as_json(workload: str, table: Table, settings: Settings, *, date: str, load: float) -> dict[str, Any]:
    """One table for the results file, every round kept; with the day, and the load before the run."""
    return {
        "date": date,
        "load": load,
        "workload": workload,
        "settings": {"seconds": settings.seconds, "rounds": settings.rounds},
        "title": table.title,
        "unit": table.unit,
        "higher_is_better": table.higher_is_better,
        "rows": [_row_json(table, row) for row in table.rows],
        "budgets": [
            {"text": v.budget.text, "limit": v.budget.limit, "measured": v.got, "met": v.met}
            for v in table.verdicts
        ],
    }


def merged(newest: Path | None, results: list[dict[str, Any]], order: Sequence[str]) -> list[dict[str, Any]]:
    """New tables together with those that the newest results file has of other workloads, in ``order``."""
    before = json.loads(newest.read_text())["tables"] if newest is not None else []
    fresh = {table["workload"] for table in results}
    tables = [table for table in before if table["workload"] not in fresh] + results
    return sorted(tables, key=lambda table: order.index(table["workload"]))


def _row_json(table: Table, row: Row) -> dict[str, Any]:
    facts: dict[str, Any] = {"key": row.key, "name": row.name, "survives": row.survives}
    if row.missing:
        return facts | {"missing": row.missing}
    return facts | {
        "operations_per_round": row.operations,
        "rounds": row.figures,
        "median": median(row.figures) if row.figures else None,
        "first_is_better_by": advantage(table, row),
        "notes": row.notes,
    }

"""Put the newest results into docs/performance.md.

python benchmarks/document.py [benchmarks/results/<date>-<host>.json]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path[:] = [str(Path(__file__).resolve().parent.parent)] + [
        entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent
    ]

from benchmarks.report import figure

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"


def render(facts: dict[str, Any]) -> str:
    """The figures as Markdown."""
    host, settings = facts["host"], facts["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in host["versions"].items())
    out = [
        f"{facts['date'][:10]}: {host['processor']}, {host['cores']} cores, {host['system']}, "
        f"{host['filesystem']}, Python {host['python']}; {settings['rounds']} rounds, "
        f"{settings['seconds']:g} s to a table; load before the run {host['load'][0]}. {versions}.",
        "",
    ]
    for table in facts["tables"]:
        rounds = table.get("settings", settings)["rounds"]
        others = "" if rounds == settings["rounds"] else f" ({rounds} round{'s' * (rounds != 1)})"
        out += [f"### {table['title']}{others}", "", *_table(table), "", *map(_verdict, table["budgets"])]
        out += [""] if table["budgets"] else []
    return "\n".join(out)


def _table(table: dict[str, Any]) -> list[str]:
    better = "more" if table["higher_is_better"] else "less"
    lines = [f"| {better} is better | {table['unit']} | first is better | survives |", "|---|--:|--:|---|"]
    for i, row in enumerate(table["rows"]):
        if row.get("median") is None:
            lines.append(f"| {row['name']} | not run | | {row.get('missing', '')} |")
            continue
        notes = ", ".join(f"{name} {figure(value)}" for name, value in row["notes"].items())
        name = row["name"] + (f" ({notes})" if notes else "")
        ratio = (
            "" if i == 0 or row["first_is_better_by"] is None else f"{figure(row['first_is_better_by'])} x"
        )
        lines.append(f"| {name} | {figure(row['median'])} | {ratio} | {row['survives']} |")
    return lines


def _verdict(budget: dict[str, Any]) -> str:
    if budget["measured"] is None:
        return f"* Budget {budget['text']}: not measured."
    state = "met" if budget["met"] else "**missed**"
    return f"* Budget {budget['text']}: {figure(budget['measured'])}, {state}."


def main(arguments: list[str]) -> int:
    """Rewrite the page from one results file, by default the last by name."""
    source = Path(arguments[0]) if arguments else max(RESULTS.glob("*.json"))
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + render(json.loads(source.read_text("utf-8"))) + END + after, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Put the newest results into docs/performance.md, and draw its picture.

python benchmarks/document.py [benchmarks/results/<date>-<host>.json]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path[:] = [str(Path(__file__).resolve().parent.parent)] + [
        entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent
    ]

from benchmarks import picture
from benchmarks.report import figure

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
PICTURE = ROOT / "docs" / "images" / "performance.svg"

Facts = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A row of the table of what a user asks.

    Args:
        question: What is done.
        table: How the title of the table begins.
        peers: Keys of the rows it is compared with, and their names in the answer.
    """

    question: str
    table: str
    peers: Sequence[tuple[str, str]]


ANSWERS = (
    Answer(
        "Send one message of 100 bytes",
        "publish_sync: one",
        (("lmdb", "LMDB"), ("sqlite", "sqlite"), ("redis", "Redis"), ("persistqueue", "persist-queue")),
    ),
    Answer(
        "The same, on the disk before the next",
        "publish_sync, flushed",
        (("sqlite-full", "sqlite"), ("lmdb-sync", "LMDB")),
    ),
    Answer(
        "Put one job of 340 bytes",
        "jobs, put: ",
        (
            ("lmdb-queue", "lmdb-queue"),
            ("localqueue", "localqueue"),
            ("honker", "honker"),
            ("nobroker", "nobroker"),
            ("pulsar-lite", "pulsar-lite"),
        ),
    ),
    Answer(
        "Get one job and acknowledge it",
        "jobs, get: ",
        (
            ("lmdb-queue", "lmdb-queue"),
            ("localqueue", "localqueue"),
            ("honker", "honker"),
            ("nobroker", "nobroker"),
            ("pulsar-lite", "pulsar-lite"),
        ),
    ),
    Answer(
        "Send messages of 100 bytes in batches",
        "publish_async",
        (("lmdb", "LMDB"), ("sqlite", "sqlite"), ("redis", "Redis"), ("nats", "NATS")),
    ),
    Answer(
        "From process to process, each acknowledged",
        "e2e_exclusive",
        (("zmq", "pyzmq"), ("sqlite", "sqlite"), ("redis", "Redis"), ("nats", "NATS")),
    ),
    Answer(
        "The same, two producers and two consumers of one subscription",
        "e2e_shared",
        (("zmq", "pyzmq (1 to 1)"), ("redis", "Redis"), ("nats", "NATS")),
    ),
    Answer(
        "Wake a process that waits for a message, busy",
        "wakeup_latency, busy",
        (("zmq", "pyzmq"), ("redis", "Redis"), ("nats", "NATS")),
    ),
    Answer(
        "JSON from one process to another, one at a time: processor time of all processes",
        "realistic, Exclusive: JSON of 300 to 1,000 bytes, sent one at a time",
        (
            ("Redis Streams, consumer group 1 consumer, no key", "Redis"),
            ("NATS JetStream, pull consumer 1 consumer, no key", "NATS"),
            ("Pulsar, no flush 1 consumer, no key", "Pulsar"),
        ),
    ),
    Answer(
        "Read a topic as columns (Arrow)",
        "arrow_scan",
        (("parquet", "Parquet"),),
    ),
    Answer(
        "Open a topic of 10 million messages at its end",
        "open_large_topic",
        (("sqlite", "sqlite"), ("lmdb", "LMDB")),
    ),
)


def _begin(name: str) -> str:
    return f"<!-- {name} -->\n"


def _end(name: str) -> str:
    return f"<!-- end of {name} -->\n"


def blocks(facts: Facts) -> dict[str, str]:
    """What the results say, as Markdown, by the names of the blocks of the page."""
    tables = facts["tables"]
    realistic = [table for table in tables if table["workload"] == "realistic"]
    others = [table for table in tables if table["workload"] != "realistic"]
    return {
        "answers": "\n".join([*_answers(tables), *_busy(facts)]) + "\n",
        "realistic": "\n".join(line for table in realistic for line in _section(facts, table)),
        "machine": _machine(facts) + "\n",
        "figures": "\n".join(line for table in others for line in _section(facts, table)),
        "missed": "\n".join(_missed(tables)) + "\n",
    }


def page_with(text: str, facts: Facts) -> str:
    """The page with the blocks of these results.

    Raises:
        ValueError: the page has not both marks of a block.
    """
    for name, block in blocks(facts).items():
        before, begin, rest = text.partition(_begin(name))
        _, end, after = rest.partition(_end(name))
        if not begin or not end:
            raise ValueError(f"{PAGE} has no block {name!r}")
        text = before + begin + block + end + after
    return text


def _answers(tables: list[Facts]) -> list[str]:
    lines = ["| what | embeddedpulsar | so many times as fast as | what it survives |", "|---|--:|---|---|"]
    for answer in ANSWERS:
        table = next((table for table in tables if table["title"].startswith(answer.table)), None)
        if table is None or table["rows"][0].get("median") is None:
            continue
        ours = table["rows"][0]
        ratios = [
            f"{name} {figure(row['first_is_better_by'])} x"
            for key, name in answer.peers
            for row in table["rows"]
            if row["key"] == key and row.get("first_is_better_by") is not None
        ]
        survives = ours["survives"] or "(reads only)"
        measured = f"{figure(ours['median'])} {table['unit']}"
        lines.append(f"| {answer.question} | {measured} | {', '.join(ratios)} | {survives} |")
    return lines


def _busy(facts: Facts) -> list[str]:
    """Which of these tables were measured beside other programs; nothing if none was."""
    cores = facts["host"]["cores"]
    answered = tuple(answer.table for answer in ANSWERS)
    busy = [
        table
        for table in facts["tables"]
        if table.get("load") is not None and table["load"] >= cores and table["title"].startswith(answered)
    ]
    if not busy:
        return []
    names = sorted({table["workload"] for table in busy})
    load = max(table["load"] for table in busy)
    return [
        "",
        f"Measured beside other programs, at a load of up to {load:g} on {cores} cores: {', '.join(names)}. "
        "Their ratios are of interleaved rounds; a quiet machine does several times as much.",
    ]


def _machine(facts: Facts) -> str:
    host = facts["host"]
    versions = ", ".join(f"{name} {version}" for name, version in host["versions"].items())
    return (
        f"{host['processor']}, {host['cores']} cores, {host['system']}, {host['filesystem']}, "
        f"Python {host['python']}. {versions}."
    )


def _section(facts: Facts, table: Facts) -> list[str]:
    settings = table.get("settings", facts["settings"])
    rounds = settings["rounds"]
    said = [table["date"], f"{rounds} round{'s' * (rounds != 1)}", f"{settings['seconds']:g} s"]
    if table.get("load") is not None:
        said.append(f"load before the run {table['load']:g}")
    lines = [f"### {table['title']}", "", ", ".join(said) + ".", ""]
    if table.get("remark"):
        lines += [table["remark"], ""]
    lines += [*_table(table), "", *map(_verdict, table["budgets"])]
    return lines + [""] * bool(table["budgets"])


def _table(table: Facts) -> list[str]:
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


def _verdict(budget: Facts) -> str:
    if budget["measured"] is None:
        return f"* Budget {budget['text']}: not measured."
    state = "met" if budget["met"] else "**missed**"
    return f"* Budget {budget['text']}: {figure(budget['measured'])}, {state}."


def _missed(tables: list[Facts]) -> list[str]:
    """A line for each budget that its table missed."""
    lines = ["| table | budget | measured |", "|---|---|--:|"]
    for table in tables:
        title = table["title"].partition(":")[0]
        lines += [
            f"| {title} | {budget['text']} | {figure(budget['measured'])} |"
            for budget in table["budgets"]
            if budget["measured"] is not None and not budget["met"]
        ]
    return lines


def main(arguments: list[str]) -> int:
    """Rewrite the page and its picture from one results file, by default the last by name."""
    source = Path(arguments[0]) if arguments else max(RESULTS.glob("*.json"))
    facts = json.loads(source.read_text("utf-8"))
    PAGE.write_text(page_with(PAGE.read_text("utf-8"), facts), "utf-8")
    PICTURE.write_text(picture.draw(facts["tables"]), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

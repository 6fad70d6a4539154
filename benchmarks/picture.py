"""The picture of docs/performance.md: what a message costs here and elsewhere, as bars in SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from benchmarks.contest import MEMORY, POWER, PROCESS, TRANSIT
from benchmarks.report import figure

Facts = dict[str, Any]

WIDTH = 880
LEFT, BARS, RIGHT = 232, 430, 16
ROW, GAP = 22, 5
HEAD = 58
PANEL_HEAD, PANEL_GAP = 34, 18
OURS = "#1f6fb2"
COLOURS = {POWER: "#3f7d4e", PROCESS: "#8d99a6", MEMORY: "#e0c9a6", TRANSIT: "#e0c9a6"}
LATE = "#c3ccd4"
LEGEND = (
    (OURS, "embeddedpulsar"),
    (COLOURS[POWER], "survives a power loss"),
    (COLOURS[PROCESS], "survives kill -9 of any process"),
    (LATE, "power loss but for a while"),
    (COLOURS[MEMORY], "survives nothing"),
)


@dataclass(frozen=True)
class Panel:
    """Bars of one table: its title in the picture, and the rows with the names they get there."""

    title: str
    table: str
    rows: Sequence[tuple[str, str]]


PANELS = (
    Panel(
        "Send one message of 100 bytes at a time",
        "publish_sync: one",
        (
            ("embeddedpulsar", "send"),
            ("lmdb", "LMDB, sync=False"),
            ("sqlite", "sqlite3, synchronous=NORMAL"),
            ("redis", "Redis Streams"),
            ("nats", "NATS JetStream"),
            ("persistqueue-ack", "persist-queue, SQLite"),
        ),
    ),
    Panel(
        "The same, each on the disk before the next",
        "publish_sync, flushed",
        (
            ("embeddedpulsar-flush", 'send, durability="flush"'),
            ("sqlite-full", "sqlite3, synchronous=FULL"),
            ("lmdb-sync", "LMDB, sync=True"),
        ),
    ),
    Panel(
        "Put one job of 340 bytes at a time",
        "jobs, put: ",
        (
            ("embeddedpulsar", "send"),
            ("lmdb-queue", "lmdb-queue"),
            ("localqueue", "localqueue"),
            ("honker", "honker"),
            ("nobroker", "nobroker, fsync=False"),
            ("pulsar-lite", "pulsar-lite"),
        ),
    ),
    Panel(
        "Get one job and acknowledge it",
        "jobs, get: ",
        (
            ("embeddedpulsar", "receive, acknowledge (Shared)"),
            ("lmdb-queue", "lmdb-queue"),
            ("localqueue", "localqueue"),
            ("honker", "honker"),
            ("nobroker", "nobroker, fsync=False"),
            ("pulsar-lite", "pulsar-lite"),
        ),
    ),
    Panel(
        "From process to process, each acknowledged",
        "e2e_exclusive",
        (
            ("embeddedpulsar", "Exclusive"),
            ("zmq", "pyzmq PUSH/PULL"),
            ("mpqueue", "multiprocessing.Queue"),
            ("sqlite", "sqlite3, batches, polling"),
            ("redis", "Redis Streams"),
            ("nats", "NATS JetStream"),
        ),
    ),
)


def draw(tables: Sequence[Facts]) -> str:
    """The picture of these tables; a row or a table that was not measured is left out."""
    parts: list[str] = []
    top = HEAD
    for panel in PANELS:
        table = next((table for table in tables if table["title"].startswith(panel.table)), None)
        rows = _measured(panel, table)
        if rows:
            assert table is not None
            parts += _panel(panel, table["unit"], rows, top)
            top += PANEL_HEAD + len(rows) * (ROW + GAP) + PANEL_GAP
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
        ' font-family="Helvetica, Arial, sans-serif" font-size="13">',
        "<title>Messages a second, here and elsewhere</title>",
        f'<rect width="{WIDTH}" height="{top}" fill="#ffffff"/>',
        *_legend(),
    ]
    return "\n".join([*head, *parts, "</svg>", ""])


def _measured(panel: Panel, table: Facts | None) -> list[tuple[str, Facts]]:
    """The rows of a panel, with their names."""
    known = {row["key"]: row for row in table["rows"]} if table else {}
    return [
        (name, known[key])
        for key, name in panel.rows
        if key in known and known[key].get("median") is not None
    ]


def _panel(panel: Panel, unit: str, rows: list[tuple[str, Facts]], top: int) -> list[str]:
    longest = max(row["median"] for _, row in rows)
    lines = [
        f'<text x="16" y="{top + 20}" font-weight="bold" fill="#1b2733">{escape(panel.title)}</text>',
        f'<text x="{WIDTH - RIGHT}" y="{top + 20}" text-anchor="end" fill="#5b6773">{escape(unit)}</text>',
    ]
    for i, (name, row) in enumerate(rows):
        y = top + PANEL_HEAD + i * (ROW + GAP)
        width = max(2.0, BARS * row["median"] / longest)
        middle = y + ROW - 7
        times = row.get("first_is_better_by")
        said = figure(row["median"])
        if i and times is not None:
            said += f"  ·  {figure(times)} x"
        weight = "" if i else ' font-weight="bold"'
        lines += [
            f'<text x="{LEFT - 10}" y="{middle}" text-anchor="end" fill="#1b2733"{weight}>'
            f"{escape(name)}</text>",
            f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{ROW}" rx="2" fill="{_colour(i, row)}"/>',
            f'<text x="{LEFT + width + 8:.1f}" y="{middle}" fill="#1b2733"{weight}>{said}</text>',
        ]
    return lines


def _colour(i: int, row: Facts) -> str:
    return OURS if i == 0 else COLOURS.get(row["survives"], LATE)


def _legend() -> list[str]:
    lines = [
        '<text x="16" y="22" font-size="15" font-weight="bold" fill="#1b2733">More is better</text>',
        f'<text x="{WIDTH - RIGHT}" y="22" text-anchor="end" fill="#5b6773" font-size="12">'
        "n x: embeddedpulsar is n times as fast in the same rounds</text>",
    ]
    x = 16
    for colour, text in LEGEND:
        lines += [
            f'<rect x="{x}" y="34" width="12" height="12" rx="2" fill="{colour}"/>',
            f'<text x="{x + 18}" y="45" fill="#1b2733" font-size="12">{text}</text>',
        ]
        x += 38 + round(6.2 * len(text))
    return lines

"""``embeddedpulsar top`` and ``who``: what goes on in a store, and who is attached.

Verbs of ``embeddedpulsar topics`` that show what is in a topic: figures, positions, single messages.

What a user of ``embeddedpulsar top`` has set, and the keys that set it; and rates as lines of blocks.
"""

from __future__ import annotations

import itertools
import os
import re
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import click
from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from embeddedpulsar.admin.activity import (
    ActivityWatch,
    Attached,
    StoreActivity,
    TopicActivity,
    transaction_text,
)
from embeddedpulsar.cli.base import (
    MOMENT,
    MessagePrinter,
    Moment,
    OpenedStore,
    as_json,
    message_options,
    moment_text,
    pass_store,
    print_json,
    print_table,
    size,
    topic_argument,
)
from embeddedpulsar.cli.engine import SYSTEM_CLOCK, Event, on_termination
from embeddedpulsar.cli.terminal import ProgressLine, printable, raw_stream
from embeddedpulsar.cli.topic_commands import DEFAULT_NAMESPACE, topics
from embeddedpulsar.error_text import counted
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import NamedTuple

if TYPE_CHECKING:
    from embeddedpulsar.client.client import Client
    from embeddedpulsar.message import Message


R = TypeVar("R")

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_PLAIN: Final = "_.-=+*#@"
"""The same for a terminal that has no blocks."""
_KEPT: Final = 120
_LOOK_S: Final = 0.2
_SEQUENCES: Final = {
    "\x1b[A": "up", "\x1bOA": "up", "k": "up", "\x1b[B": "down", "\x1bOB": "down", "j": "down",
    "\x1b[5~": "page up", "\x1b[6~": "page down", " ": "p", "?": "h", "\x03": "q", "\x04": "q",
    "\x1b[H": "home", "\x1bOH": "home", "g": "home", "\x1b[F": "end", "\x1bOF": "end", "G": "end",
}  # fmt: skip
_KEY: Final = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Z])|.", re.DOTALL)
_HELP: Final = (
    ("s", "next order: backlog, in, out, oldest, size, name"),
    ("b i o a z n", "order by backlog, in, out, age, size, name"),
    ("r", "the other way round"),
    ("/", "topics whose name has a text; Enter ends it, Esc takes it away"),
    ("p, space", "stop and go on; rates are then those of the pause"),
    ("arrows", "topics that do not fit; also PgUp, PgDn, Home, End"),
    ("h, ?", "this help"),
    ("q, Esc, Ctrl-C", "quit"),
)
_ORDER_KEYS: Final = {"b": "backlog", "i": "in", "o": "out", "a": "oldest", "z": "size", "n": "name"}


def blocks(values: Sequence[float], width: int, levels: str = _BLOCKS) -> str:
    """The last values as blocks, whose height is their share of the largest; padded to the left.

    Example:
        >>> blocks([0, 1, 2, 4, 8], 6)
        ' ▁▂▃▅█'
    """
    shown = list(values)[-width:]
    largest = max(shown, default=0.0)
    top = len(levels) - 1
    text = "".join(levels[round(value / largest * top) if largest else 0] for value in shown)
    return text.rjust(width)


class Trends:
    """The rates of each topic, and of all together, at the last looks. Callers: one thread.

    Args:
        encoding: of the terminal.
    """

    def __init__(self, encoding: str) -> None:
        try:
            _BLOCKS.encode(encoding)
        except (UnicodeEncodeError, LookupError):
            self._levels = _PLAIN
        else:
            self._levels = _BLOCKS
        self._rates: dict[str, deque[float]] = {}

    def add(self, rates: dict[str, float]) -> None:
        """Add those of a look. A topic that is not among them is not kept."""
        rates = {**rates, "": sum(rates.values())}
        self._rates = {topic: self._rates.get(topic, deque(maxlen=_KEPT)) for topic in rates}
        for topic, rate in rates.items():
            self._rates[topic].append(rate)

    @property
    def total(self) -> float:
        """The rate of all topics together at the last look."""
        return self._rates[""][-1] if self._rates else 0.0

    def line(self, topic: str, width: int) -> str:
        """The rates of a topic, or with an empty name of all, as so many blocks."""
        return blocks(self._rates.get(topic, ()), width, self._levels)


class TopView:
    """What is shown, and how. Changed by keys alone. Callers: one thread.

    Args:
        orders: the names of orders, in which `s` goes through them.
        order: the first one.

    Attributes:
        pattern: a part of the names that are shown.
        is_typing: keys are text of the pattern.
        is_paused, is_helping, is_over: what they say.
        offset: how many rows are above the first that is shown.
    """

    def __init__(self, orders: Iterable[str], order: str) -> None:
        self._orders: Final = list(orders)
        self.order = order
        self.is_reversed = False
        self.pattern = ""
        self.is_typing = False
        self.is_paused = False
        self.is_helping = False
        self.is_over = False
        self.offset = 0
        self._page = 10

    def press(self, key: str) -> None:
        """Do what a key says; one without a meaning does nothing."""
        if self.is_typing:
            self._type(key)
            return
        key = _SEQUENCES.get(key, key)
        if self.is_helping and key in ("h", "q", "\x1b"):
            self.is_helping = False
        elif key in ("q", "\x1b"):
            self.is_over = True
        elif key == "h":
            self.is_helping = True
        elif key == "p":
            self.is_paused = not self.is_paused
        elif key == "/":
            self.is_typing, self.pattern = True, ""
        elif key == "r":
            self.is_reversed = not self.is_reversed
        elif key == "s":
            self.order = self._orders[(self._orders.index(self.order) + 1) % len(self._orders)]
        elif key in _ORDER_KEYS:
            self.order = _ORDER_KEYS[key]
        else:
            self._scroll(key)

    def _type(self, key: str) -> None:
        if key in ("\r", "\n"):
            self.is_typing = False
        elif key == "\x1b":
            self.is_typing, self.pattern = False, ""
        elif key in ("\x7f", "\x08"):
            self.pattern = self.pattern[:-1]
        elif key.isprintable():
            self.pattern += key
        self.offset = 0

    def _scroll(self, key: str) -> None:
        steps = {"up": -1, "down": 1, "page up": -self._page, "page down": self._page}
        if key in steps:
            self.offset = max(0, self.offset + steps[key])
        elif key == "home":
            self.offset = 0
        elif key == "end":
            self.offset = sys.maxsize

    def shown(
        self, rows: list[R], name: Callable[[R], str], orders: dict[str, Callable[[R], Any]], room: int
    ) -> list[R]:
        """The rows of the pattern, in order, as many as there is room for."""
        wanted = self.pattern.casefold()
        chosen = [row for row in rows if wanted in name(row).casefold()]
        chosen.sort(key=orders[self.order], reverse=self.is_reversed)
        self._page = max(1, room)
        self.offset = max(0, min(self.offset, len(chosen) - room))
        return chosen[self.offset : self.offset + room]

    def footer(self) -> Text:
        """The line of the keys, and of what is set."""
        if self.is_typing:
            return Text(f"/{printable(self.pattern)}_", style="bold")
        parts = [f"s order: {self.order}{' (reversed)' if self.is_reversed else ''}"]
        parts.append(f"/ filter: {printable(self.pattern)}" if self.pattern else "/ filter")
        parts += ["p go on" if self.is_paused else "p pause", "h help", "q quit"]
        line = Text("  ".join(parts), style="dim")
        return Text.assemble(("PAUSED  ", "bold yellow"), line) if self.is_paused else line

    @staticmethod
    def help() -> Text:
        """The keys, and what they do."""
        width = max(len(keys) for keys, _ in _HELP)
        return Text("\n".join(f"{keys.ljust(width)}  {what}" for keys, what in _HELP))


def keys_of(text: str) -> Iterator[str]:
    r"""The keys of what a terminal has sent: characters, and sequences of those that are none.

    Example:
        >>> list(keys_of("s\x1b[Aq"))
        ['s', '\x1b[A', 'q']
    """
    return iter(_KEY.findall(text))


class Keyboard:
    """The keys of a terminal, one by one and without an echo; none if the stream is no terminal. At the end
    of the ``with`` block the terminal is as it was, however the block ends.

    Args:
        stream: the standard input.
    """

    def __init__(self, stream: TextIO) -> None:
        try:
            self._fd = stream.fileno() if stream.isatty() else -1
        except (OSError, ValueError):  # a stream without a descriptor, or a closed one
            self._fd = -1
        self._before: Any = None

    def __enter__(self) -> Keyboard:
        if self._fd >= 0:
            self._before = termios.tcgetattr(self._fd)
            # Signals stay: Ctrl-C is an interrupt.
            tty.setcbreak(self._fd)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            # What was typed and not read is not for the shell.
            termios.tcsetattr(self._fd, termios.TCSAFLUSH, self._before)

    def wait(self, timeout_s: float, stop: Event, is_changed: Callable[[], bool]) -> list[str]:
        """Wait for keys until the time is over, ``stop`` is set, or something has changed."""
        end = SYSTEM_CLOCK.monotonic() + timeout_s
        while not stop.is_set() and not is_changed():
            remaining_s = min(_LOOK_S, end - SYSTEM_CLOCK.monotonic())
            if remaining_s <= 0:
                break
            if self._fd < 0:
                stop.wait(remaining_s)
            elif select.select([self._fd], [], [], remaining_s)[0]:
                data = os.read(self._fd, 1024)
                if not data:  # the terminal is gone
                    stop.set()
                return list(keys_of(data.decode("utf-8", "replace")))
        return []


_SHORT: Final = ("persistent://public/default/", "persistent://")
# Lines that the table does not have: the heading, the line above it, the keys below, empty ones, and that of
# the cursor.
_LINES_AROUND: Final = 7
_MOST_WAITS: Final = 5
_TREND: Final = "trend"
_WHY_OR_WHO: Final = "why, or attached"
_COLUMNS: Final = ("topic", "in/s", _TREND, "out/s", "backlog", "oldest", "size", "why", "attached")
_NARROW: Final = ("topic", "in/s", _TREND, "out/s", "backlog", "oldest", _WHY_OR_WHO)
_TEXTS: Final = ("topic", "why")
_STYLES: Final = {"why": "yellow", _WHY_OR_WHO: "yellow", _TREND: "cyan"}
_WIDE: Final = 100
_WIDE_TREND, _NARROW_TREND = 16, 10
_KEPT_WIDTH: Final = 60
# Columns that a name keeps however narrow the terminal is.
_LEAST: Final = 16
# Without a terminal no cell is cut.
_PLAIN_WIDTH: Final = 10_000


class TopicRow(NamedTuple):
    """A line of the table. `rate_out` counts acknowledgements of all subscriptions."""

    topic: TopicActivity
    rate_in: float
    rate_out: float
    age_ms: int


# Keys of the sort: numbers are negated, so that the largest is first, and names are not.
_SORTED: Final[dict[str, Callable[[TopicRow], Any]]] = {
    "backlog": lambda row: -row.topic.msg_backlog,
    "in": lambda row: -row.rate_in,
    "out": lambda row: -row.rate_out,
    "oldest": lambda row: -row.age_ms,
    "size": lambda row: -row.topic.storage_size,
    "name": lambda row: row.topic.topic,
}


@click.command()
@click.option("--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, metavar="SECONDS")
@click.option("--sort", "order", type=click.Choice(list(_SORTED)), default="backlog", show_default=True)
@click.option("-n", "--count", type=click.IntRange(min=1), help="Topics that are shown; default: what fits.")
@click.option("--once", is_flag=True, help="Look twice, SECONDS apart, print, and end.")
@as_json
@pass_store
def top(
    store: OpenedStore, interval: float, order: str, count: int | None, once: bool, is_json: bool
) -> None:
    """Show rates, backlogs and consumers of all topics, again and again until q or Ctrl-C; h shows the keys.

    IN is messages published a second, OUT acknowledged ones; OLDEST is the age of the oldest message that a
    subscription has not acknowledged, WHY what keeps a subscription from going on. --json prints once.
    """
    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    console = Console(file=raw_stream(sys.stdout), highlight=False, width=width)
    with store.admin() as admin:
        watch = admin.activity()
        progress = ProgressLine(sys.stderr)
        # A rate is the difference of two looks. The first one, which reads every topic, may take long, and
        # shows its progress.
        before = watch.look(progress.show_if_due)
        progress.end()
        # Where the output is no terminal it cannot be drawn over, and the table is printed once.
        if once or is_json or not console.is_terminal:
            # Two looks, so that there are rates; a single one has counters only.
            time.sleep(interval)
            now = watch.look()
            rows = sorted(_rows(before, now), key=_SORTED[order])[:count]
            if is_json:
                print_json(_as_json(now, rows))
            else:
                console.print(picture(store.root, now, rows, console.width))
            return
        _show_live(console, store.root, watch, before, TopView(_SORTED, order), interval, count)


def _show_live(
    console: Console,
    root: str,
    watch: ActivityWatch,
    before: StoreActivity,
    view: TopView,
    interval: float,
    count: int | None,
) -> None:
    """Draw the table at each look and key, until a key, a signal or Ctrl-C ends it."""
    stop, trends = Event(), Trends(console.encoding)
    now, rows, due = before, _rows(before, before), SYSTEM_CLOCK.monotonic() + interval
    # The other screen of the terminal, so the text before is there again at the end. Nothing is drawn by
    # itself: a message that arrives costs nothing here.
    with (
        on_termination(stop.set),
        Keyboard(sys.stdin) as keyboard,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while not view.is_over and not stop.is_set():
            size_now = console.size
            room = max(1, size_now.height - _LINES_AROUND - len(_waits(now, rows)))
            if view.is_helping:
                live.update(view.help(), refresh=True)
            else:
                shown = view.shown(rows, lambda row: short_name(row.topic.topic), _SORTED, room)
                table = picture(root, now, shown[:count], size_now.width, trends)
                live.update(Group(table, Text(), view.footer()), refresh=True)
            wait_s = due - SYSTEM_CLOCK.monotonic() if not view.is_paused else interval
            is_resized = partial(_has_other_size, console, size_now)
            for key in keyboard.wait(wait_s, stop, is_resized):
                view.press(key)
            if not view.is_paused and SYSTEM_CLOCK.monotonic() >= due:
                before, now = now, watch.look()
                rows, due = _rows(before, now), SYSTEM_CLOCK.monotonic() + interval
                trends.add({row.topic.topic: row.rate_in for row in rows})


def _has_other_size(console: Console, size_before: ConsoleDimensions) -> bool:
    return console.size != size_before


def _rows(before: StoreActivity, now: StoreActivity) -> list[TopicRow]:
    # At least a millisecond: the clock of the system may be set back.
    seconds = max(now.time_ms - before.time_ms, 1) / 1000
    earlier = {topic.topic: topic for topic in before.topics}
    rows = []
    for topic in now.topics:
        # A topic that is new since the last look counts from now on.
        old = earlier.get(topic.topic, topic)
        # The counters begin again when a topic is deleted and made: that is a rate of 0, and no negative one.
        rate_in = max(0, topic.msg_in_counter - old.msg_in_counter) / seconds
        rate_out = max(0, topic.acknowledged - old.acknowledged) / seconds
        oldest = topic.earliest_msg_publish_time_in_backlogs
        rows.append(TopicRow(topic, rate_in, rate_out, max(0, now.time_ms - oldest) if oldest else 0))
    return rows


def picture(
    root: str, now: StoreActivity, rows: list[TopicRow], width: int, trends: Trends | None = None
) -> Group:
    """The table and the line above it, in so many columns: names and what is attached give way. A narrow
    terminal has one column for why and what is attached, and no sizes."""
    head = Text.assemble(
        (printable(root), "bold"),
        f"  {counted(len(now.topics), 'topic')}, {counted(now.processes, 'process')}, ",
        f"{counted(sum(topic.msg_backlog for topic in now.topics), 'message')} of backlog",
        no_wrap=True,
        overflow="ellipsis",
    )
    heads = [head]
    if trends is not None:
        course = trends.line("", min(_KEPT_WIDTH, width // 2))
        heads.append(Text.assemble(f"{trends.total:,.0f} in/s  ", (course.lstrip(), "cyan")))
    is_narrow = width < _WIDE
    cells = [_cells(row, is_narrow, trends) for row in rows]
    columns = list(_NARROW if is_narrow else _COLUMNS)
    if trends is None:
        columns.remove(_TREND)
    table = Table(box=None, pad_edge=False, header_style="bold")
    # Columns take the width of their longest cell. Names and reasons are cut to a fifth of the terminal, and
    # the last one gets the rest, at least `_LEAST` columns where there is room for it.
    room = width
    for column in columns[:-1]:
        cell_width = max([len(column), *(len(line[column]) for line in cells)])
        is_text = column in _TEXTS
        cell_width = min(cell_width, max(_LEAST, width // 5)) if is_text else cell_width
        room -= cell_width + 1
        table.add_column(
            column,
            justify="left" if is_text else "right",
            style=_STYLES.get(column, ""),
            no_wrap=True,
            min_width=cell_width,
            max_width=cell_width,
        )
    table.add_column(columns[-1], no_wrap=True, style=_STYLES.get(columns[-1], ""))
    room = max(room - 1, 1) if is_narrow else max(room - len(columns), _LEAST)
    for line in cells:
        last = _cut(line[columns[-1]], room)
        table.add_row(*(Text(line[column]) for column in columns[:-1]), Text(last))
    # A topic that cannot be read is a line of its own, so that the others are shown all the same.
    unread = [
        Text(f"{short_name(topic.topic)} cannot be read: {topic.reason}", style="red") for topic in now.unread
    ]
    return Group(*heads, *unread, *_waits(now, rows), Text(), table)


def _cells(row: TopicRow, is_narrow: bool, trends: Trends | None) -> dict[str, str]:
    """The texts of a line, by column."""
    why, attached = printable(_why(row.topic)), printable(_attached(row.topic.attached))
    trend_width = _NARROW_TREND if is_narrow else _WIDE_TREND
    return {
        "topic": printable(short_name(row.topic.topic)),
        "in/s": f"{row.rate_in:,.0f}",
        _TREND: "" if trends is None else trends.line(row.topic.topic, trend_width),
        "out/s": f"{row.rate_out:,.0f}",
        "backlog": f"{row.topic.msg_backlog:,}",
        "oldest": age_text(row.age_ms),
        "size": size(row.topic.storage_size),
        "why": why,
        "attached": attached,
        _WHY_OR_WHO: why or attached,
    }


def _why(topic: TopicActivity) -> str:
    """What keeps a topic from going on: for all, a transaction; then for single subscriptions."""
    reasons = [f"{each.name}: {each.why}" for each in topic.subscriptions if each.why]
    if topic.held_by is not None:
        reasons.insert(0, f"transaction {topic.held_by.txn_id}")
    return "; ".join(reasons)


def _waits(now: StoreActivity, rows: list[TopicRow]) -> list[Text]:
    """Lines for the topics that a transaction holds up, which need more room than a column has."""
    held = [(row.topic.topic, row.topic.held_by) for row in rows if row.topic.held_by is not None]
    lines = [
        f"{short_name(topic)} waits for {transaction_text(held_by, now.time_ms)}"
        for topic, held_by in held[:_MOST_WAITS]
    ]
    if len(held) > _MOST_WAITS:
        lines.append(f"{len(held) - _MOST_WAITS:,} more topics wait for transactions")
    return [Text(printable(line), style="yellow") for line in lines]


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _attached(attached: tuple[Attached, ...]) -> str:
    """The consumers with their process, and how many producers."""
    producers = sum(attachment.kind == "producer" for attachment in attached)
    # Only consumers are named: they explain a backlog. A consumer of this machine is shown by its process,
    # one of which nothing is known by its name.
    shown = [
        f"{attachment.subscription}: {attachment.pid} {attachment.program}"
        if attachment.pid
        else f"{attachment.subscription}: {attachment.name}"
        for attachment in attached
        if attachment.kind == "consumer"
    ]
    first = [counted(producers, "producer")] if producers else []
    return ", ".join(first + shown)


def age_text(milliseconds: int) -> str:
    """An age, in the largest unit of which there are two."""
    # Two of a unit, so that an age is off by less than a half.
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        if milliseconds >= 2 * length:
            return f"{milliseconds // length} {unit}"
    return f"{milliseconds / 1000:,.1f} s" if milliseconds else ""


def short_name(name: str) -> str:
    """The name of a topic as it may be typed."""
    for prefix in _SHORT:
        name = name.removeprefix(prefix)
    return name


def _as_json(now: StoreActivity, rows: list[TopicRow]) -> dict[str, Any]:
    shown = now._replace(topics=tuple(row.topic for row in rows)).json()
    for topic, row in zip(shown["topics"], rows, strict=True):
        topic["msgRateIn"] = row.rate_in
        topic["msgRateOut"] = row.rate_out
    return shown


def _acknowledged(attachment: Attached, now_ms: int) -> str:
    """When a consumer last acknowledged; of one that has the oldest message, for how long it has not."""
    # Three cases: it holds the oldest message and has been silent since; it acknowledged at some time; it
    # never did.
    if attachment.held_since is not None:
        return f"nothing for {age_text(max(now_ms - attachment.held_since, 1))}"
    return (
        f"{age_text(max(now_ms - attachment.last_acked_timestamp, 1))} ago"
        if attachment.last_acked_timestamp
        else ""
    )


@click.command()
@as_json
@pass_store
def who(store: OpenedStore, is_json: bool) -> None:
    """Show every producer and consumer that is attached, with its process, what it holds, and when it last
    acknowledged."""
    progress = ProgressLine(sys.stderr)
    with store.admin() as admin:
        activity = admin.activity().look(progress.show_if_due)
    progress.end()
    for unread in activity.unread:
        click.echo(f"{short_name(unread.topic)} cannot be read: {unread.reason}", err=True)
    listed = [(topic.topic, attachment) for topic in activity.topics for attachment in topic.attached]
    # By process: what one program has open stands together.
    listed.sort(key=lambda pair: (pair[1].pid, pair[0], pair[1]))
    if is_json:
        print_json([{"topic": topic, **attachment._asdict()} for topic, attachment in listed])
        return
    columns = (
        "pid",
        "program",
        "kind",
        "topic",
        "subscription",
        "name",
        "held",
        "acknowledged",
        "oldest held",
    )
    now_ms = activity.time_ms
    print_table(
        columns,
        [
            (
                str(attachment.pid or "?"),
                attachment.program,
                attachment.kind,
                short_name(topic),
                attachment.subscription,
                attachment.name,
                f"{attachment.unacked_messages:,}" if attachment.unacked_messages else "",
                _acknowledged(attachment, now_ms),
                attachment.oldest_unacked_message_id or "",
            )
            for topic, attachment in listed
        ],
    )


def _position(context: click.Context, parameter: click.Parameter, value: str) -> MessageId:
    """A message id, as ``ledger:entry``."""
    ledger, _, entry = value.partition(":")
    # Partition and batch index are not asked for: the size is counted by entries.
    if not (ledger.isdigit() and entry.isdigit()):
        raise click.BadParameter(f"{value!r} is no message id; write ledger:entry", context, parameter)
    return MessageId(-1, int(ledger), int(entry), -1)


def _print_id(message_id: MessageId, is_json: bool) -> None:
    if is_json:
        print_json(
            {
                "ledgerId": message_id.ledger_id(),
                "entryId": message_id.entry_id(),
                "partitionIndex": message_id.partition(),
            }
        )
    else:
        click.echo(f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}")


@topics.command("list-partitioned-topics")
@click.argument("namespace", default=DEFAULT_NAMESPACE)
@as_json
@pass_store
def list_partitioned_topics(store: OpenedStore, namespace: str, is_json: bool) -> None:
    """List the partitioned topics of NAMESPACE (public/default)."""
    with store.admin() as admin:
        names = admin.topics().get_partitioned_topic_list(namespace)
    if is_json:
        print_json(names)
    else:
        print_table(("topic",), [(name,) for name in names])


@topics.command("get-partitioned-topic-metadata")
@topic_argument
@pass_store
def get_partitioned_topic_metadata(store: OpenedStore, topic: str) -> None:
    """Show the number of partitions of TOPIC, as JSON; 0 if it is not partitioned."""
    with store.admin() as admin:
        print_json(admin.topics().get_partitioned_topic_metadata(topic).json())


@topics.command("partitioned-stats")
@topic_argument
@click.option("--per-partition", is_flag=True, help="Also of each partition.")
@pass_store
def partitioned_stats(store: OpenedStore, topic: str, per_partition: bool) -> None:
    """Show the sums of the stats of all partitions of TOPIC, as JSON."""
    with store.admin() as admin:
        print_json(admin.topics().get_partitioned_stats(topic, per_partition).json())


@topics.command("stats-internal")
@topic_argument
@pass_store
def stats_internal(store: OpenedStore, topic: str) -> None:
    """Show the ledgers of TOPIC, and where its subscriptions are, as JSON."""
    with store.admin() as admin:
        print_json(admin.topics().get_internal_stats(topic).json())


@topics.command("analyze-backlog")
@topic_argument
@click.option("-s", "--subscription", required=True, help="Its name.")
@pass_store
def analyze_backlog(store: OpenedStore, topic: str, subscription: str) -> None:
    """Show how many entries and messages a subscription has not acknowledged, as JSON."""
    with store.admin() as admin:
        print_json(admin.topics().analyze_subscription_backlog(topic, subscription).json())


@topics.command("get-backlog-size")
@topic_argument
@click.option("-m", "--messageId", "position", callback=_position, required=True, help="As ledger:entry.")
@pass_store
def get_backlog_size(store: OpenedStore, topic: str, position: MessageId) -> None:
    """Show how many bytes are stored behind a message of TOPIC."""
    with store.admin() as admin:
        click.echo(admin.topics().get_backlog_size_by_message_id(topic, position))


@topics.command("last-message-id")
@topic_argument
@as_json
@pass_store
def last_message_id(store: OpenedStore, topic: str, is_json: bool) -> None:
    """Show the id of the last message of TOPIC, as ledger:entry:partition."""
    with store.admin() as admin:
        _print_id(admin.topics().get_last_message_id(topic), is_json)


@topics.command("get-message-id")
@topic_argument
@click.option("-t", "--time", "timestamp_ms", type=MOMENT, required=True)
@as_json
@pass_store
def get_message_id(store: OpenedStore, topic: str, timestamp_ms: int, is_json: bool) -> None:
    """Show the id of the first entry of TOPIC that was published then or later."""
    with store.admin() as admin:
        _print_id(admin.topics().get_message_id_by_timestamp(topic, timestamp_ms), is_json)


@topics.command("get-message-by-id")
@topic_argument
@click.option("-l", "--ledgerId", "ledger_id", type=click.IntRange(min=0), required=True)
@click.option("-e", "--entryId", "entry_id", type=click.IntRange(min=0), required=True)
@message_options
@pass_store
def get_message_by_id(
    store: OpenedStore, topic: str, ledger_id: int, entry_id: int, printer: MessagePrinter
) -> None:
    """Show the messages of an entry of TOPIC: one, or those of a batch."""
    with store.admin() as admin:
        for message in admin.topics().get_messages_by_id(topic, ledger_id, entry_id):
            printer.print(message)


@topics.command("examine-messages")
@topic_argument
@click.option(
    "-i",
    "--initialPosition",
    "position",
    type=Moment("earliest", "latest"),
    default="latest",
    show_default=True,
    help="From which end, or from which time on, is counted.",
)
@click.option("-m", "--messagePosition", "number", type=click.IntRange(min=1), default=1, show_default=True)
@message_options
@pass_store
def examine_messages(
    store: OpenedStore, topic: str, position: str | int, number: int, printer: MessagePrinter
) -> None:
    """Show one message of TOPIC, counted from an end or from a time on."""
    if isinstance(position, str):
        with store.admin() as admin:
            printer.print(admin.topics().examine_message(topic, position, number))
        return
    with store.client() as client:
        messages = messages_since(client, topic, position)
        message = next(itertools.islice(messages, number - 1, None), None)
        if message is None:
            raise click.ClickException(f"{topic} has no {number:,} messages since {moment_text(position)}")
        printer.print(message)


def messages_since(client: Client, topic: str, timestamp_ms: int) -> Iterator[Message[bytes]]:
    """The messages that were published then or later, up to the end of a topic."""
    with client.create_reader(topic, MessageId.earliest) as reader:
        reader.seek(timestamp_ms)
        while reader.has_message_available():
            yield reader.read_next()

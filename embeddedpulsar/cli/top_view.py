"""What a user of ``embeddedpulsar top`` has set, and the keys that set it; and rates as lines of blocks."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import tty
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TextIO, TypeVar

from rich.text import Text

from embeddedpulsar.cli.engine import SYSTEM_CLOCK, Event
from embeddedpulsar.cli.terminal import printable

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

"""`embeddedpulsar top` on a terminal: lines of blocks, keys, and the terminal afterwards."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from rich.console import Console

from embeddedpulsar import Admin, Client, MessageId
from embeddedpulsar.cli.look_commands import (
    _SORTED,
    Keyboard,
    TopicRow,
    TopView,
    Trends,
    _rows,
    blocks,
    keys_of,
    picture,
)
from embeddedpulsar.testing.trial_store import assert_clean

ROWS = ["orders", "payments", "emails", "Orders-eu"]


@pytest.fixture
def store(tmp_path: Path):
    """A store with topics of several sizes, one of them with a long name and two waiting subscriptions."""
    root = tmp_path / "store"
    with Client(root) as client, Admin(root) as admin:
        for topic, messages in (("orders", 5), ("payments", 3), ("e" * 90, 1)):
            admin.topics().create_subscription(topic, "a-subscription-with-a-long-name", MessageId.earliest)
            producer = client.create_producer(topic)
            for _ in range(messages):
                producer.send(b"x" * 10)
    yield root
    assert_clean(root)


def test_blocks():
    """The height is the share of the largest; what is older than the width is left out."""
    assert blocks([], 3) == "   " and blocks([0, 0], 3) == " ▁▁"
    assert blocks([9, 0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert blocks([1, 2], 2, "_#") == "_#"


def test_trends():
    """Of each topic, and of all; a topic that is gone is not kept; a terminal without blocks gets letters."""
    trends = Trends("utf-8")
    assert (trends.line("", 2), trends.total) == ("  ", 0.0)
    trends.add({"a": 1.0, "b": 0.0})
    trends.add({"a": 7.0, "c": 7.0})
    assert trends.line("a", 3) == " ▂█" and trends.line("b", 3) == "   " and trends.line("c", 3) == "  █"
    assert trends.total == 14.0
    plain = Trends("ascii")
    plain.add({"a": 1.0})
    assert plain.line("a", 2) == " @"


def pressed(keys: str) -> TopView:
    """A view after keys."""
    view = TopView(_SORTED, "backlog")
    for key in keys_of(keys):
        view.press(key)
    return view


def test_keys():
    """Each sets what the help says; unknown ones and unknown sequences do nothing."""
    view = pressed("x\x1b[24~")
    assert (view.order, view.pattern, view.is_paused, view.is_over) == ("backlog", "", False, False)
    assert pressed("s").order == "in" and pressed("ssssss").order == "backlog"
    assert [pressed(key).order for key in "bioazn"] == ["backlog", "in", "out", "oldest", "size", "name"]
    assert pressed("r").is_reversed and not pressed("rr").is_reversed
    assert pressed("p").is_paused and not pressed("p ").is_paused
    assert pressed("h").is_helping and not pressed("?q").is_helping and not pressed("hq").is_over
    assert pressed("q").is_over and pressed("\x1b").is_over
    assert "h help" in pressed("").footer().plain and "PAUSED" in pressed("p").footer().plain


def test_a_filter_is_typed():
    """Keys are its text until Enter or Esc; names are compared without regard to case."""
    view = pressed("/ordq\x7f")
    assert view.is_typing and view.footer().plain == "/ord_" and not view.is_over
    assert view.shown(ROWS, str, {"backlog": str}, 10) == ["Orders-eu", "orders"]
    view = pressed("/ord\r")
    assert not view.is_typing and "filter: ord" in view.footer().plain
    assert pressed("/ord\x1b").pattern == "" and not pressed("/ord\x1b").is_over


def test_topics_that_do_not_fit_are_scrolled_to():
    """By lines and by pages, never beyond an end."""
    names = [f"t{number:02}" for number in range(30)]

    def first(keys: str) -> str:
        view = TopView(["name"], "name")
        view.shown(names, str, {"name": str}, 8)
        for key in keys_of(keys):
            view.press(key)
        shown = view.shown(names, str, {"name": str}, 8)
        assert len(shown) == 8
        return shown[0]

    assert [first(keys) for keys in ("", "j", "jjk", "\x1b[B\x1b[A", "k")] == [
        "t00",
        "t01",
        "t01",
        "t00",
        "t00",
    ]
    assert [first(keys) for keys in ("\x1b[6~", "\x1b[6~\x1b[5~", "G", "Gg")] == ["t08", "t00", "t22", "t00"]


@pytest.mark.parametrize("width", [80, 99, 100, 132])
@pytest.mark.parametrize("with_trends", [False, True])
def test_the_table_fits(store: Path, width: int, with_trends: bool):
    """In a terminal of 80 columns, too: numbers are whole, names and reasons are cut."""
    with Admin(store) as admin:
        now = admin.activity().look()
    rows = [TopicRow(topic, 123_456, 65_432, 3 * 86_400_000) for topic in now.topics]
    trends = None
    if with_trends:
        trends = Trends("utf-8")
        trends.add({row.topic.topic: row.rate_in for row in rows})
    console = Console(file=io.StringIO(), width=width)
    console.print(picture("/srv/a/long/path/of/a/store" * 2, now, rows, width, trends))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in lines)
    assert len(lines) == len(rows) + 3 + with_trends
    assert all("123,456" in line and "65,432" in line and "3 d" in line for line in lines[-3:])
    assert any("█" in line for line in lines) == with_trends
    assert len(_rows(now, now)) == 3


def test_a_keyboard_without_a_terminal():
    """There are no keys, and nothing to put back."""
    with Keyboard(io.StringIO("q")) as keyboard:
        from embeddedpulsar.cli.engine import Event

        assert keyboard.wait(0.0, Event(), lambda: False) == []


@pytest.mark.parametrize("ended_by", ["q", "\x03", signal.SIGTERM, signal.SIGINT])
def test_the_terminal_is_as_it_was(store: Path, ended_by: str | int):
    """After q, Ctrl-C and SIGTERM: with its echo, lines and cursor, and the screen that was there before."""
    main, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    before = termios.tcgetattr(terminal)
    command = [sys.executable, "-m", "embeddedpulsar", "--store", str(store), "top", "--interval", "0.2"]
    top = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
        preexec_fn=lambda: _controlled_by(terminal), env={**os.environ, "TERM": "xterm-256color"},
    )  # fmt: skip
    try:
        shown = b""
        deadline = time.monotonic() + 60
        while b"q quit" not in shown and time.monotonic() < deadline:
            shown += os.read(main, 65536)
        assert not termios.tcgetattr(terminal)[3] & termios.ECHO
        if isinstance(ended_by, str):
            os.write(main, ended_by.encode())
        else:
            top.send_signal(ended_by)
        status = top.wait(30)
        os.set_blocking(main, False)
        while part := _available(main):
            shown += part
        assert status == (130 if ended_by in ("\x03", signal.SIGINT) else 0)
        assert termios.tcgetattr(terminal) == before
        assert shown.rindex(b"\x1b[?1049l") > shown.rindex(b"\x1b[?1049h")
        assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
        assert b"orders" in shown and b"Traceback" not in shown
    finally:
        top.kill()
        top.wait()
        os.close(main)
        os.close(terminal)


def _available(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""


def _controlled_by(terminal: int) -> None:
    import fcntl

    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

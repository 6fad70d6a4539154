"""What a terminal is shown, and what a pipe gets; streams, arguments and locales of all kinds."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition
from embeddedpulsar.cli.terminal import printable, printable_json
from embeddedpulsar.policy_values import OffloadPolicies
from embeddedpulsar.testing.trial_store import assert_clean

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\x7f\r\nforged line\t\u2066\u2028[red]x[/red]"
PROGRAM = [sys.executable, "-m", "embeddedpulsar"]
STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
"""Sequences that the program may send itself: styles, and those that draw a screen."""
PROGRESS = re.compile(r"(?:\r[^\r\n]+)*\r +\r")
"""What is written over in place and then removed: it shows after a second, on a busy machine."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory):
    """A store of hostile texts, wherever one may be."""
    root = tmp_path_factory.mktemp("terminal") / "store"
    with Client(root) as client:
        consumer = client.subscribe(
            "orders",
            HOSTILE,
            ConsumerType.Shared,
            initial_position=InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=1,
        )
        producer = client.create_producer("orders", producer_name=HOSTILE)
        letters = client.create_producer("orders-work-DLQ")
        for to in (producer, letters):
            to.send(HOSTILE.encode() + b"\xff\x80", partition_key=HOSTILE, properties={HOSTILE: HOSTILE})
        consumer.negative_acknowledge(consumer.receive(5000))
        assert consumer.receive(5000).redelivery_count() == 1
        consumer.close()
        client.subscribe("orders", "work", initial_position=InitialPosition.Earliest).close()
        client.subscribe("orders-work-DLQ", "x", initial_position=InitialPosition.Earliest).close()
    yield root
    assert_clean(root)


def on_terminal(*arguments: str, rows: int = 40, **environment: str) -> str:
    """What a terminal gets when the program runs in it."""
    main, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (rows, 200))
    options = {**os.environ, "TERM": "xterm-256color", **environment}
    child = subprocess.Popen(
        [*PROGRAM, *arguments], stdin=terminal, stdout=terminal, stderr=terminal, env=options
    )
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the last one closed it
        while select.select([main], [], [], 60)[0]:
            shown += os.read(main, 65536)
    os.close(main)
    child.wait(60)
    return shown.decode("utf-8").replace("\r\n", "\n")


LOOKS = [
    ("tail", "orders", "-v"),
    ("tail", "orders", "--json"),
    ("topics", "peek-messages", "orders", "-s", HOSTILE, "-v"),
    ("topics", "examine-messages", "orders", "-v"),
    ("topics", "stats", "orders"),
    ("topics", "stats", "orders", "--json"),
    ("topics", "why-kept", "orders"),
    ("subscriptions", "list", "orders"),
    ("dlq", "peek", "orders", "work", "-v"),
    ("dlq", "list", "orders", "work", "--json"),
    ("consume", "orders", "-s", "work", "-w", "0.2", "-v"),
    ("top", "--once", "--interval", "0.1"),
    ("who",),
    ("check",),
    ("topics", "stats", HOSTILE),
    ("topics", "peek-messages", "orders", "-s", HOSTILE + "?"),
    ("subscriptions", "delete", "orders", HOSTILE, "--dry-run"),
    (HOSTILE,),
    ("tail", f"--{HOSTILE}"),
]


@pytest.mark.parametrize("arguments", LOOKS, ids=lambda one: " ".join(one[:3]).encode().hex()[:30])
def test_a_terminal_gets_printable_characters(store: Path, arguments: tuple[str, ...]):
    """Results, tables, questions and errors: nothing but the program's own styles moves anything."""
    shown = STYLES.sub("", on_terminal("--store", str(store), *arguments, PYTHONUTF8="1"))
    shown = PROGRESS.sub("", shown)
    assert shown.strip()
    assert not [one for one in shown if not one.isprintable() and one != "\n"]
    assert "\nforged line" not in shown


def test_paths_begin_no_line(tmp_path: Path):
    """Names of files that somebody put into the store, and locations, are lines of their own nowhere."""
    root = tmp_path / "store"
    with Admin(root) as admin:
        admin.topics().create_non_partitioned_topic("orders")
        admin.topics().set_offload_policies("orders", OffloadPolicies(f"file://{tmp_path}/cold{HOSTILE}"))
    stranger = root / "topics" / HOSTILE.replace("/", "_")
    stranger.mkdir()
    for arguments in (
        ("check",),
        ("check", "--all"),
        ("repair", "--dry-run"),
        ("topics", "get-offload-policies", "orders"),
        ("backup", str(tmp_path / f"backup{stranger.name}")),
    ):
        shown = STYLES.sub("", on_terminal("--store", str(root), *arguments, PYTHONUTF8="1"))
        assert "forged line" in shown and "\nforged line" not in shown, arguments
        assert not [one for one in shown if not one.isprintable() and one != "\n"]
    stranger.rmdir()
    assert_clean(root)


def test_the_screen_of_top(store: Path):
    """The picture that is drawn again and again shows names, and none of their sequences."""
    main, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (30, 220))
    with Client(store) as client:
        consumer = client.subscribe("orders", HOSTILE, ConsumerType.Shared, consumer_name=HOSTILE)
        child = subprocess.Popen(
            [*PROGRAM, "--store", str(store), "top", "--interval", "0.1"],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "220"},  # xdist sets 80
        )
        os.close(terminal)
        shown = b""
        while b"owned" not in shown and len(shown) < 1 << 20 and select.select([main], [], [], 60)[0]:
            shown += os.read(main, 65536)
        child.send_signal(signal.SIGINT)
        child.wait(60)
        os.close(main)
        consumer.close()
    text = STYLES.sub("", shown.decode("utf-8", "replace"))
    assert "\\x1b]0;owned" in text
    assert not [one for one in text if not one.isprintable() and one not in "\r\n"]


def run(*arguments: str | bytes, typed: bytes = b"", **options: object) -> subprocess.CompletedProcess[bytes]:
    """Run the program with pipes."""
    return subprocess.run(
        [*PROGRAM, *arguments],
        input=typed,
        capture_output=True,
        timeout=60,
        check=False,
        **options,  # type: ignore[call-overload]
    )


def test_a_pipe_gets_the_bytes(store: Path):
    """Of payloads, styles included; names and properties as they are; nothing is shortened."""
    payload = HOSTILE.encode() + b"\xff\x80"
    assert run("--store", str(store), "tail", "orders").stdout == payload + b"\n"
    assert (
        run("--store", str(store), "topics", "peek-messages", "orders", "-s", HOSTILE).stdout
        == payload + b"\n"
    )
    verbose = run("--store", str(store), "tail", "orders", "-v").stdout
    assert f"key={HOSTILE}  {HOSTILE}={HOSTILE}".encode() in verbose and verbose.endswith(payload + b"\n")
    assert HOSTILE.encode() in run("--store", str(store), "subscriptions", "list", "orders").stdout


def test_the_redelivery_count_is_shown(store: Path):
    """Of messages that a consumer gave back, attached or not."""
    with Admin(store) as admin:
        assert [one.redelivery_count() for one in admin.topics().peek_messages("orders", HOSTILE, 2)] == [1]
    shown = run("--store", str(store), "topics", "peek-messages", "orders", "-s", HOSTILE, "-v").stdout
    assert b"redelivered 1 time" in shown
    listed = run("--store", str(store), "topics", "peek-messages", "orders", "-s", HOSTILE, "--json").stdout
    assert json.loads(listed)["redeliveryCount"] == 1


def test_messages_for_a_terminal():
    """Every character of the classes is escaped, and no other."""
    for code in [
        *range(0x20),
        *range(0x7F, 0xA0),
        0x202E,
        0x2066,
        0x2028,
        0x061C,
        0x200E,
        0xFEFF,
        0xE0001,
        0xD800,
    ]:
        assert printable(chr(code)).isascii() and printable(chr(code)).isprintable()
        assert json.loads(printable_json(json.dumps(chr(code), ensure_ascii=False))) == chr(code)
    for text in ("naïve 馬 שלום ہندوستان 👩‍👩‍👧 ½ \\ [b]", ""):
        assert printable(text) == printable_json(text) == text


# -- streams ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shut", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(store: Path, tmp_path: Path, shut: str):
    """No traceback; without a standard output a command that has something to say fails."""
    for command in ("topics list", "tail orders -v", "check"):
        shell = f'exec "$0" -m embeddedpulsar --store "$1" {command} {shut}'
        started = ["sh", "-c", shell, sys.executable, str(store)]
        done = subprocess.run(started, capture_output=True, timeout=60, check=False)
        assert b"Traceback" not in done.stderr
        assert done.returncode == (1 if ">&-" in shut.split() else 0), (command, done.stderr)
    shell = f'exec "$0" -m embeddedpulsar --store "$1" produce notes -m x {shut}'
    done = subprocess.run(["sh", "-c", shell, sys.executable, str(tmp_path / "new")], timeout=60, check=False)
    assert done.returncode == 0
    shell = 'exec "$0" -m embeddedpulsar --store "$1" produce notes <&-'
    done = subprocess.run(
        ["sh", "-c", shell, sys.executable, str(tmp_path / "new")],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and b"the standard input is closed" in done.stderr
    assert_clean(tmp_path / "new")


def test_a_reader_that_stops(tmp_path: Path):
    """The program ends without a word, and acknowledges nothing that was not written."""
    root = tmp_path / "store"
    with Client(root) as client:
        client.subscribe("lines", "s").close()
        with client.create_producer("lines") as producer:
            for number in range(3000):
                producer.send_async(b"%d " % number + b"x" * 200, None)
            producer.flush()
    for command in ("consume lines -s s -n 0 -w 1", "tail lines -n 3000 --json"):
        shell = f'"$0" -m embeddedpulsar --store "$1" {command} | head -1; echo ${{PIPESTATUS[0]}}'
        done = subprocess.run(
            ["bash", "-c", shell, sys.executable, str(root)], capture_output=True, timeout=60, check=False
        )
        assert done.stderr == b"" and done.stdout.splitlines()[1] == b"141"
    with Admin(root) as admin:
        left = admin.topics().peek_messages("lines", "s", 3000)
        assert len(left) > 2000
    assert_clean(root)


# -- arguments and locales -------------------------------------------------------------------------------

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}


@pytest.mark.parametrize("environment", [{}, ASCII, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}])
def test_bytes_of_arguments(tmp_path: Path, environment: dict[str, str]):
    """A payload is the bytes that were typed; a path, too; a name that is not UTF-8 is refused."""
    options = {"env": {**os.environ, **environment}}
    root = os.fsencode(tmp_path) + "/stöß".encode() + b"\xff"
    done = run(
        b"--store", root, "produce", "tür", b"-m", b"\xff\xfe", "-m", "für", "-k", "schlüssel", **options
    )
    assert done.returncode == 0 and b"created a store in " in done.stderr, done.stderr
    assert run(b"--store", root, "tail", "tür", **options).stdout == b"\xff\xfe\n" + "für\n".encode()
    found = [
        json.loads(line)
        for line in run(b"--store", root, "tail", "tür", "--json", **options).stdout.splitlines()
    ]
    assert [one["key"] for one in found] == ["schlüssel"] * 2 and found[1]["payload"] == "für"
    listed = run(b"--store", root, "topics", "list", **options)
    assert listed.returncode == 0 and b"public/default/t" in listed.stdout
    for arguments in ([b"tail", b"\xff"], [b"produce", "tür".encode(), b"-m", b"x", b"-k", b"\xff"]):
        done = run(b"--store", root, *arguments, **options)
        assert done.returncode != 0 and b"Traceback" not in done.stderr and done.stderr.count(b"\n") == 1


# -- produce and consume ---------------------------------------------------------------------------------


def test_consuming_a_topic_that_is_not_there(store: Path, tmp_path: Path):
    """A typing error makes no topic; ``--create`` does."""
    done = run("--store", str(store), "consume", "ordres", "-s", "s")
    assert (
        done.returncode == 1
        and b"there is no topic persistent://public/default/ordres; --create" in done.stderr
    )
    assert b"ordres" not in run("--store", str(store), "topics", "list").stdout
    new = tmp_path / "new"
    run("--store", str(new), "produce", "a", "-m", "x")
    assert run("--store", str(new), "consume", "b", "-s", "s", "--create", "-w", "0.01").returncode == 0
    assert b"public/default/b" in run("--store", str(new), "topics", "list").stdout
    done = run("--store", str(new), "produce", "a", "-m", "x")
    assert done.stderr == b"1 message published\n"
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "photo.jpg").write_bytes(b"")
    done = run("--store", str(tmp_path / "foreign"), "produce", "a", "-m", "x")
    assert done.returncode == 1 and b"is not a store" in done.stderr
    assert_clean(new)


def test_output_in_memory(store: Path, monkeypatch: pytest.MonkeyPatch):
    """A program that runs commands in its own process may take the output."""
    from embeddedpulsar.cli.main import main

    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert main(["--store", str(store), "tail", "orders"]) == 0
    assert sys.stdout.getvalue().endswith("\\xff\\x80\n")  # type: ignore[attr-defined]

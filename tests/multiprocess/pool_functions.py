"""Functions that tests submit to pools: workers import them from here."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from embeddedpulsar.futures import current_task, report_progress


class NotPlain:
    """An object that only pickle can hold."""

    def __init__(self, number: int) -> None:
        self.number = number


class Refused(Exception):
    """An exception whose constructor wants something else than it keeps."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def double(number: Any) -> Any:
    """Twice the number."""
    return number * 2


def slow_double(number: int) -> int:
    """The same, in some time."""
    time.sleep(0.005)
    return number * 2


def same(*args: Any, **kwargs: Any) -> Any:
    """What it is called with."""
    return [*args, kwargs]


def unplain(number: int) -> NotPlain:
    """What msgpack cannot hold."""
    return NotPlain(number)


def number_of(value: NotPlain) -> int:
    """What an object has."""
    return value.number


def fail(kind: str) -> None:
    """Raise an exception."""
    if kind == "value":
        raise ValueError("no tea", 7)
    if kind == "exit":
        raise SystemExit(3)
    raise Refused(1, 2)


def append(path: str, text: str) -> None:
    """Write a line at the end of a file, at once."""
    with Path(path).open("a") as file:
        file.write(f"{text}\n")


def record(path: str, text: str) -> str:
    """Note that it was called."""
    append(path, text)
    return text


def wait_for(path: str, record_at: str = "") -> str:
    """Run until a file exists, or its test is over."""
    if record_at:
        append(record_at, str(os.getpid()))
    while not Path(path).exists() and Path(path).parent.exists():
        time.sleep(0.01)
    return "waited"


def fail_until(path: str, attempt: int) -> int:
    """Fail in the attempts before one."""
    task = current_task()
    assert task is not None
    append(path, str(task.attempt))
    if task.attempt < attempt:
        raise OSError("the till is not there")
    return task.attempt


def die(path: str, times: int) -> int:
    """End the process the first times."""
    append(path, "x")
    count = len(Path(path).read_text().split())
    if count <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return count


def hang_in_first(path: str) -> str:
    """Never return in the first attempt."""
    task = current_task()
    assert task is not None
    append(path, str(task.attempt))
    while task.attempt == 1:
        time.sleep(1)
    return "in time"


def count_to(number: int, release: str = "") -> int:
    """Say how far it is."""
    for step in range(number):
        report_progress({"step": step + 1})
    if release:
        wait_for(release)
    return number


def pid(_: int = 0) -> int:
    """The process."""
    return os.getpid()


_started = ""


def begin(text: str) -> None:
    """What a worker does at its start."""
    global _started
    _started = text


def begun() -> str:
    """What `begin` was called with."""
    return _started

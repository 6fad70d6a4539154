"""Where the interpreter looks for signals: what the commit of an append and the locked sections rely on.

docs/concurrency.md#interrupts has the rule. Here a signal is pending before every instruction; the places
where its handler runs then are all places where this version of Python looks for one.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import inspect
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from embeddedpulsar import Client, Timeout
from embeddedpulsar._engine.format.entry import encode_single
from embeddedpulsar._engine.log.segment_writer import SegmentWriter
from embeddedpulsar._engine.platform import threads
from tests.ledger_site import PREFIX, LedgerSite
from tests.strikes import at_every_instruction, count_instructions

SIGNAL = signal.SIGUSR1


def _raise_in_c() -> Callable[..., None]:
    """A function in C that makes the signal pending, whatever else it is called with, and looks for none
    itself, as `signal.raise_signal` does."""
    raise_ = ctypes.PyDLL(None)["raise"]
    raise_.restype = None
    return functools.partial(raise_, ctypes.c_int(int(SIGNAL)))


@contextmanager
def always_pending(code: CodeType) -> Iterator[None]:
    """Make a signal pending before each instruction of ``code``."""
    raise_ = _raise_in_c()
    if sys.version_info >= (3, 12):
        raise_.func.argtypes = (ctypes.c_int, ctypes.py_object, ctypes.c_int)
        monitoring = sys.monitoring
        tool, event = 4, monitoring.events.INSTRUCTION
        monitoring.use_tool_id(tool, __name__)
        monitoring.register_callback(tool, event, raise_)
        monitoring.set_local_events(tool, code, event)
        try:
            yield
        finally:
            monitoring.set_local_events(tool, code, 0)
            monitoring.register_callback(tool, event, None)
            monitoring.free_tool_id(tool)
    else:
        raise_.func.argtypes = (ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.py_object)

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            if frame.f_code is not code:
                return None
            frame.f_trace_opcodes = True
            return raise_

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)


def handled_in(code: CodeType, action: Callable[[], object]) -> set[int]:
    """The offsets of the instructions of ``code`` after which signals were handled while ``action`` ran."""
    offsets: set[int] = set()

    def handle(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is code:
            offsets.add(frame.f_lasti)

    before = signal.signal(SIGNAL, handle)
    try:
        with always_pending(code):
            action()
    finally:
        signal.signal(SIGNAL, before)
    return offsets


def names_of(code: CodeType, offsets: set[int]) -> set[str]:
    """The instructions at these offsets, by the general name of each."""
    return {one.opname for one in dis.get_instructions(code) if one.offset in offsets}


class Slots:
    """An object with attributes in C."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = 0


def without_calls(slots: Slots, words: memoryview, log: bytearray, pair: tuple[int, int], flag: bool) -> Any:
    """What the commit of an append consists of, and more of what calls no function of Python."""
    first, second = pair
    if slots.value is not None and first < second:
        log[first:second] = b"ab"
        words[0] = first = first + (second >> 1)
    slots.value = (first, second, [first], {second: first}, {first})
    text = words.format if flag else None
    try:
        third = first if first > second else -second
    finally:
        slots.value = second
    del pair
    return text, third, not flag, words[0], slots.value, first in (1, 2)


def with_everything(count: int) -> int:
    """Jumps back and calls of each kind."""
    total = 0
    for number in range(count):
        total += len(str(number)) + max(number, 1, key=lambda one: -one)
    while total > 5:
        total -= int(*(2,))
    with suppress(ValueError):
        int("x")
    return total


def repeat(action: Callable[..., object], *arguments: Any) -> None:
    """Often enough for the interpreter to specialize what it runs."""
    for _ in range(50):
        action(*arguments)


def test_no_place_but_the_start_calls_and_jumps_back():
    """No attribute, item, slice, comparison, arithmetic, new tuple or block of ``try`` is such a place."""
    slots, words, log = Slots(), memoryview(bytearray(8)).cast("Q"), bytearray(8)
    code = without_calls.__code__
    offsets = handled_in(code, lambda: repeat(without_calls, slots, words, log, (1, 3), True))
    assert names_of(code, offsets) <= {"RESUME"}


def test_calls_and_jumps_back_are_such_places():
    """So the measurement sees places where there are some."""
    code = with_everything.__code__
    names = names_of(code, handled_in(code, lambda: repeat(with_everything, 20)))
    assert "CALL" in names
    # 3.11 has several instructions for jumps back.
    assert any(name.startswith(("JUMP_BACKWARD", "POP_JUMP_BACKWARD")) for name in names)
    kinds = ("RESUME", "CALL", "PRECALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")
    assert all(name.startswith(kinds) for name in names)


def test_text_of_numbers_is_such_a_place():
    """What makes the text of an object looks for signals itself, and an f-string makes it without a call."""

    def formatted(number: int) -> str:
        return f"{number}"

    code = formatted.__code__
    (name,) = names_of(code, handled_in(code, lambda: repeat(formatted, 5)))
    assert name.startswith("FORMAT")


def between(code: CodeType, first: str, last: str) -> set[int]:
    """Offsets of the instructions from the line that has ``first`` on, up to the line that has ``last``."""
    lines, begin = inspect.getsourcelines(code)
    (low,) = (begin + index for index, line in enumerate(lines) if first in line)
    (high,) = (begin + index for index, line in enumerate(lines) if last in line)
    return {
        one.offset
        for one in dis.get_instructions(code)
        if one.positions and one.positions.lineno and low < one.positions.lineno <= high
    }


def test_no_signal_between_the_check_of_an_append_and_its_commit(tmp_path: Path):
    """From the look at the state on, the frame, the slot, the tail and the new state are stored."""
    code = SegmentWriter.append.__code__
    region = between(code, "self._state is not state:  # a signal handler", "self._state = (tail, end")
    with LedgerSite(tmp_path) as site:
        ledger, entry = site.open(), encode_single(b"value", 7, PREFIX)
        offsets = handled_in(code, lambda: repeat(ledger.append, entry))
    assert len(offsets) > 5
    assert len(region) > 30
    assert not offsets & region


def test_no_signal_between_the_start_of_a_try_and_the_lock_in_it():
    """Nor between the last call of a section and its ``release``: the form of a locked section has no gap."""
    lock = threads.RLock()

    def section(log: list[int]) -> None:
        try:
            lock.acquire()
            log[0] += 1
        finally:
            lock.release()

    code = section.__code__
    log = [0]
    offsets = handled_in(code, lambda: repeat(section, log))
    calls = [one.offset for one in dis.get_instructions(code) if one.opname == "CALL"]
    assert names_of(code, offsets) <= {"RESUME", "CALL", "PRECALL"}
    assert len(calls) >= 2 and set(calls[:2]) <= offsets
    assert log == [50]


def test_strikes_are_as_dense_as_the_instructions():
    """A function without jumps is stopped before each of its instructions, in every version of Python."""

    def straight(a: int, b: int) -> int:
        c = a + b
        d = (a, c)
        return d[0]

    instructions = [one for one in dis.get_instructions(straight) if one.opname not in ("RESUME", "PRECALL")]
    counted = count_instructions(lambda: straight(1, 2)) - count_instructions(lambda: None)
    assert counted >= len(instructions)


def test_strikes_leave_no_exception_behind():
    """None is handled any more after one that struck an ``except`` clause at each of its instructions."""

    class Struck(Exception):
        """What the handler raises."""

    def strike() -> None:
        raise Struck

    with Client("memory://") as client, client.subscribe("orders", "billing") as consumer:

        def receive() -> None:
            assert sys.exception() is None
            with suppress(Struck, Timeout):
                consumer.receive(0)
                raise AssertionError

        # In `receive` itself, which handles the IndexError of an empty queue.
        assert at_every_instruction(receive, strike, most=60) == 60
        assert sys.exception() is None

"""Signal handlers at every instruction of a call, one instruction after the other."""

from __future__ import annotations

import dis
import faulthandler
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import embeddedpulsar
from embeddedpulsar._engine.platform import fork

_PACKAGE = embeddedpulsar.__path__[0]
_LONGEST_S = 60
_TOOL = 4
"""One of the numbers of `sys.monitoring` that are free for any use."""


def at_every_instruction(
    action: Callable[[], object], handler: Callable[[], object], *, most: int = 1 << 30, every: int = 1
) -> int:
    """Repeat ``action``, and call ``handler`` in the middle of it: at its first instruction, its second...

    A handler that waits for a lock of its own thread never returns: then the process ends with a traceback.

    Args:
        action: what is interrupted. Only instructions of the package count.
        handler: what a signal handler would do. It is not interrupted itself.
        most: so many instructions at most.
        every: strike at every so many-th instruction.

    Returns:
        How often ``handler`` was called: the number of instructions.
    """
    faulthandler.dump_traceback_later(_LONGEST_S, exit=True)
    try:
        for index in itertools.count(0, every):
            if index >= most or not strike(action, handler, index):
                return index // every
    finally:
        faulthandler.cancel_dump_traceback_later()
    raise AssertionError


def strike(action: Callable[[], object], handler: Callable[[], object], index: int, within: str = "") -> bool:
    """Call ``action``, and ``handler`` at the instruction of that index; whether there is such a one.

    Where no signal can be handled (see `_endings`), at the next instruction.

    Args:
        action, handler: as in `at_every_instruction`.
        index: counts the instructions of ``within``.
        within: a file of the package, or a folder; by default all of it.
    """
    left, counted = index, f"{_PACKAGE}/{within}"
    struck = False

    def visit(code: CodeType, offset: int) -> bool:
        nonlocal left, struck
        left -= 1
        if left >= 0 or offset in _endings(code):
            return True
        struck = True
        return False

    with _visiting(visit, handler, counted):
        next(_alone(action))
    # Whoever imports late in another thread would wait for ever.
    assert not fork.LATE_IMPORTS.held
    return struck


def _alone(action: Callable[[], object]) -> Iterator[object]:
    """Call ``action`` where the exception that is being handled is kept for this call alone.

    An exception that strikes at the end of an ``except`` clause, where no signal is handled, is raised behind
    the instructions that would take back the one before: it would stay the one that is being handled, for all
    that this thread does from then on. A generator has its own.
    """
    yield action()


def count_instructions(action: Callable[[], object]) -> int:
    """How many instructions of Python, of any file, a call takes."""
    count = 0

    def visit(code: CodeType, offset: int) -> bool:
        nonlocal count
        count += 1
        return True

    with _visiting(visit, lambda: None, ""):
        action()
    return count


@contextmanager
def _visiting(
    visit: Callable[[CodeType, int], bool], last: Callable[[], object], counted: str
) -> Iterator[None]:
    """Call ``visit`` before each instruction of this thread, in files whose names begin with ``counted``,
    until it returns False; then call ``last``, which the frame of that instruction calls in effect."""
    if sys.version_info >= (3, 12):
        return _monitored(visit, last, counted)
    return _traced(visit, last, counted)


def _traced(
    visit: Callable[[CodeType, int], bool], last: Callable[[], object], counted: str
) -> Iterator[None]:
    """By a trace function, which is told of instructions from a frame's first one on, up to Python 3.11."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(counted):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode" and not visit(frame.f_code, frame.f_lasti):
            sys.settrace(None)
            frame.f_trace = None
            last()
            return None
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def _monitored(
    visit: Callable[[CodeType, int], bool], last: Callable[[], object], counted: str
) -> Iterator[None]:
    """By `sys.monitoring`: from Python 3.12 on a trace function misses the instructions of frames that it
    asks for too late, or for the first time in its process."""
    monitoring = sys.monitoring
    thread = threading.get_ident()

    def see(code: CodeType, offset: int) -> object:
        if not code.co_filename.startswith(counted):
            return monitoring.DISABLE
        if threading.get_ident() == thread and not visit(code, offset):
            monitoring.set_events(_TOOL, 0)
            last()
        return None

    monitoring.use_tool_id(_TOOL, __name__)
    monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, see)
    monitoring.restart_events()
    monitoring.set_events(_TOOL, monitoring.events.INSTRUCTION)
    try:
        yield
    finally:
        monitoring.set_events(_TOOL, 0)
        monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, None)
        monitoring.free_tool_id(_TOOL)


@functools.cache
def _endings(code: CodeType) -> frozenset[int]:
    """Where a function returns a variable, and where a ``with`` that ended well calls ``__exit__``: the
    interpreter looks for signals after calls and jumps only. So neither comes between a body and its end.
    `tests/unit/platform/test_where_signals_are_handled.py` measures it."""
    endings = set()
    # Up to 3.11 a call has two instructions.
    instructions = [one for one in dis.get_instructions(code) if one.opname != "PRECALL"]
    for index, instruction in enumerate(instructions):
        before = instructions[index - 1] if index else instruction
        if instruction.opname == "RETURN_VALUE" and before.opname.startswith("LOAD_FAST"):
            endings |= {before.offset, instruction.offset}
        # ``__exit__(None, None, None)``, of which the first None is its own as far as CALL is concerned.
        given = instructions[max(index - 3, 0) : index]
        if instruction.opname == "CALL" and [one.argrepr for one in given] == ["None"] * 3:
            endings |= set(range(given[0].offset, instruction.offset + 1))
    return frozenset(endings)

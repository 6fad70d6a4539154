"""Signal handlers at every instruction of a call, one instruction after the other."""

from __future__ import annotations

import dis
import faulthandler
import functools
import itertools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import embeddedpulsar
from embeddedpulsar._engine.platform import fork

_PACKAGE = embeddedpulsar.__path__[0]
_LONGEST_S = 60


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

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left, struck
        if not frame.f_code.co_filename.startswith(counted):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            left -= 1
            if left < 0 and frame.f_lasti not in _endings(frame.f_code):
                sys.settrace(None)
                frame.f_trace = None
                struck = True
                handler()
                return None
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    # Whoever imports late in another thread would wait for ever.
    assert not fork.LATE_IMPORTS.held
    return struck


@functools.cache
def _endings(code: CodeType) -> frozenset[int]:
    """Where a function returns a variable, and where a ``with`` that ended well calls ``__exit__``: the
    interpreter looks for signals after calls and jumps only. So neither comes between a body and its end."""
    endings = set()
    instructions = list(dis.get_instructions(code))
    for index, instruction in enumerate(instructions):
        before = instructions[index - 1] if index else instruction
        if instruction.opname == "RETURN_VALUE" and before.opname == "LOAD_FAST":
            endings |= {before.offset, instruction.offset}
        # ``__exit__(None, None, None)``, of which the first None is its own as far as CALL is concerned.
        given = instructions[index - 4 : index - 1]
        if instruction.opname == "CALL" and [one.argrepr for one in given] == ["None"] * 3:
            endings |= {one.offset for one in instructions[index - 4 : index + 1]}
    return frozenset(endings)

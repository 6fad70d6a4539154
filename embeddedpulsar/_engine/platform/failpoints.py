"""Named places where a test can make the process die, raise or stop.

A numbered step of a write order is followed by ``failpoints.hit("roll:synced")``, on hot paths with
``if failpoints.ACTIVE:`` before it: one global read when no failpoint is set. Every module declares its names
when imported, so that tests can walk all.

Actions, in code or in ``EMBEDDEDPULSAR_FAILPOINTS="append:body_done=kill,nth=3; sync:before=raise"``:

* ``kill``: SIGKILL to this process; ``exit``: ``os._exit(86)``; ``off``: nothing;
* ``raise[:<builtin>]``: raise `InjectedFailure`, or the builtin exception named
  (``raise:KeyboardInterrupt``);
* ``pause:<path>``: show at ``path`` that the point is reached, and wait there until the test lets it go.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable

from embeddedpulsar._engine.platform.threads import system
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

ENVIRONMENT: Final = "EMBEDDEDPULSAR_FAILPOINTS"
EXIT_STATUS: Final = 86

ACTIVE: bool = False

Action = Callable[[], object]

_declared: dict[str, None] = {}
_armed: dict[str, _Armed] = {}
_mutex = system.allocate_lock()


class InjectedFailure(Exception):
    """Raised by a failpoint whose action is ``raise``. No code of ours catches it by name."""


class _Armed:
    """One failpoint that is set: what to do, and at which hit (1 = the next; 0 = at every hit)."""

    __slots__ = ("action", "left", "nth")

    def __init__(self, action: Action, nth: int) -> None:
        self.action = action
        self.nth = nth
        self.left = nth

    def is_due(self) -> bool:
        # The count decides which of several threads hits the failpoint. A lock of its own, held for
        # one subtraction.
        with _mutex:
            self.left -= 1
            return self.nth == 0 or self.left == 0


def declare(*names: str) -> None:
    """Make ``names`` known to `names`. Called once by the module that hits them, when imported."""
    _declared.update(dict.fromkeys(names))


def names() -> tuple[str, ...]:
    """Every name declared by the modules imported so far, in order of declaration."""
    return tuple(_declared)


def hit(name: str) -> None:
    """Run the action that is set for ``name``, if any."""
    # Looked up without the lock: tests set failpoints before the code under test runs.
    armed = _armed.get(name)
    if armed is not None and armed.is_due():
        armed.action()


def set(name: str, action: str | Action, *, nth: int = 1) -> None:
    """Set ``name``: ``action`` is one of the words above or a callable, done at the ``nth`` hit (0: each).

    >>> set("doc:step", "raise")
    >>> try:
    ...     hit("doc:step")
    ... except InjectedFailure as failure:
    ...     print(failure)
    doc:step
    >>> hit("doc:step")  # only the first hit
    >>> clear()
    """
    global ACTIVE
    _armed[name] = _Armed(_action(name, action) if isinstance(action, str) else action, nth)
    # Last, so that a thread that sees it finds the action.
    ACTIVE = True


def clear(name: str | None = None) -> None:
    """Unset ``name``, or all."""
    global ACTIVE
    if name is None:
        _armed.clear()
    else:
        _armed.pop(name, None)
    ACTIVE = bool(_armed)


def configure(text: str) -> None:
    """Set the failpoints that ``text`` (the syntax of the environment variable) names."""
    for item in text.split(";"):
        if not item.strip():
            continue
        name, _, rest = item.strip().partition("=")
        word, *options = (part.strip() for part in rest.split(","))
        nth = 1
        for option in options:
            key, _, value = option.partition("=")
            if key != "nth":
                raise ValueError(
                    f"unknown option {option!r} of the failpoint {name!r}; only nth=<n> is known"
                )
            nth = int(value)
        set(name.strip(), word, nth=nth)


def _action(name: str, word: str) -> Action:
    # SIGKILL leaves everything to the kernel, as a crash does. ``os._exit`` closes files and still
    # runs no handler, for platforms and tests in which a status is to be seen.
    kind, _, argument = word.partition(":")
    if kind == "kill":
        import signal  # its enumerations take as long as a large module, and only tests come here

        return lambda: os.kill(os.getpid(), signal.SIGKILL)
    if kind == "exit":
        return lambda: os._exit(EXIT_STATUS)
    if kind == "off":
        return lambda: None
    if kind == "raise":
        kind_of_error = getattr(builtins, argument) if argument else InjectedFailure
        return lambda: _raise(kind_of_error(name))
    if kind == "pause" and argument:
        return lambda: _pause(argument)
    raise ValueError(
        f"unknown action {word!r} of the failpoint {name!r}; use kill, exit, raise, pause:<path> or off"
    )


def _raise(error: BaseException) -> None:
    raise error


def _pause(path: str) -> None:
    # Both are FIFOs that the test made: opening one waits for the other side, so no polling and no
    # sleep is needed.
    with open(f"{path}.reached", "wb", buffering=0) as reached:
        reached.write(b"!")
    with open(f"{path}.go", "rb", buffering=0) as go:
        go.read(1)


configure(os.environ.get(ENVIRONMENT, ""))

"""The standard streams of the program: what a terminal is shown, and what a pipe gets.

A terminal acts on what it is sent: an escape sequence in a payload, a name or an error moves the cursor, sets
the title or answers as if the user had typed. So on a terminal every character that is not printable is
escaped, wherever it comes from. A pipe or a file gets the bytes as they are.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import IO, Any, Final, TextIO, cast

from embeddedpulsar.cli.engine import SYSTEM_CLOCK

BROKEN_PIPE: Final = 141
"""The status of a program that SIGPIPE ended: 128 and the number of the signal."""
_JOINERS: Final = "\u200c\u200d"
"""Invisible, and part of words and emoji; they move nothing."""
_ERRORS: Final = "embeddedpulsar-original-bytes"
_ESCAPED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, keep: str = "") -> str:
    r"""Escape what a terminal acts on, and what changes how the rest is read: control characters (C0, DEL,
    C1), marks of direction, invisible and unassigned characters, separators of lines, and bytes that are no
    UTF-8.

    Args:
        text: any text.
        keep: characters that stay.

    Example:
        >>> print(printable("a\x1b[2Jb\u202ec\nd", keep="\n"))
        a\x1b[2Jb\u202ec
        d
        >>> printable("žluťoučký kůň 馬 👩‍👩‍👧"), printable(os.fsdecode(b"\xff"))
        ('žluťoučký kůň 馬 👩‍👩‍👧', '\\xff')
    """
    # Most texts are, and this test is one call.
    if text.isprintable():
        return text
    stays = keep + _JOINERS
    return "".join(
        [
            character if character.isprintable() or character in stays else _escaped(character)
            for character in text
        ]
    )


def printable_json(text: str) -> str:
    r"""`printable` of a JSON text, which stays JSON. Line ends stay: in a value they are escaped already.

    Example:
        >>> print(printable_json('{"a": "\x9b\U000e0001"}'))
        {"a": "\u009b\udb40\udc01"}
    """
    if text.isprintable():
        return text
    return "".join(
        [
            character
            if character.isprintable() or character in "\n\u200c\u200d"
            else _json_escaped(character)
            for character in text
        ]
    )


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8; see `os.fsdecode`
        return f"\\x{code - 0xDC00:02x}"
    short = _ESCAPED.get(character)
    return short or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def _json_escaped(character: str) -> str:
    # JSON writes a character outside of the basic plane as two surrogates.
    data = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(data[at : at + 2], 'big'):04x}" for at in range(0, len(data), 2))


def is_terminal(stream: IO[Any] | None = None) -> bool:
    """Whether a stream, by default the standard output, shows a terminal what is written to it."""
    stream = sys.stdout if stream is None else stream
    return stream.isatty()


def line_text(value: object) -> str:
    """A value in a line of the output: as it is, or in one line for a terminal.

    A terminal keeps the line ends that a command writes, so a path or a name with one would begin a line.
    """
    return printable(str(value)) if is_terminal() else str(value)


class GuardedStream:
    """A standard stream without a way around its `write`: click would use the bytes behind one that is ASCII.

    Attributes:
        raw: the stream itself, for what draws on the terminal and escapes what it draws.
    """

    def __init__(self, raw: TextIO) -> None:
        self.raw: Final = raw
        self._is_terminal: Final = raw.isatty()

    def write(self, text: str) -> int:
        """Write a text. A terminal gets only what it may show: line ends stay, everything else is escaped."""
        # Line ends stay here, because the commands write them; values are escaped with theirs before
        # (`printable`).
        self.raw.write(printable(text, keep="\n") if self._is_terminal else text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write texts, one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        # click looks for the buffer of a stream and writes bytes to it, past the escaping.
        if name == "buffer":
            raise AttributeError("texts are written here; `write_bytes` writes bytes")
        return getattr(self.raw, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)


class _ClosedStream(io.TextIOBase):
    """The standard output of a process that was started without one."""

    def write(self, text: str) -> int:
        # An empty write succeeds: `flush` and `print("", end="")` are no output.
        if text:
            raise OSError(errno.EBADF, "the standard output is closed")
        return 0

    def isatty(self) -> bool:
        return False

    @property
    def buffer(self) -> _ClosedStream:
        return self


def raw_stream(stream: TextIO) -> TextIO:
    """The stream behind a `GuardedStream`."""
    return stream.raw if isinstance(stream, GuardedStream) else stream


_QUIET_S: Final = 1.0


class ProgressLine:
    """Writes progress to a stream, once a second, starting after the first second.

    On a terminal it is one line, removed at the end; elsewhere there is a line every ten seconds.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = raw_stream(stream)
        self._is_terminal = stream.isatty()
        # Nothing in the first second: most commands end before it.
        self._next = SYSTEM_CLOCK.monotonic() + _QUIET_S
        self._width = 0

    @property
    def is_due(self) -> bool:
        """Whether it is time for `show`."""
        return SYSTEM_CLOCK.monotonic() >= self._next

    def show_if_due(self, progress: object) -> None:
        """`show` what a call reports of its progress, if it is time."""
        if self.is_due:
            self.show(str(progress))

    def show(self, text: str) -> None:
        """Write a text."""
        if self._is_terminal:
            self._next = SYSTEM_CLOCK.monotonic() + _QUIET_S
            text = printable(text)
            # The line is overwritten in place. It is padded to the length of the one before, of which the end
            # would stay.
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._next = SYSTEM_CLOCK.monotonic() + 10 * _QUIET_S
            self._stream.write(text + "\n")
        self._stream.flush()

    def end(self) -> None:
        """Remove the line."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0


def write_bytes(data: bytes) -> None:
    """Write bytes and a line end to the standard output: as they are, or escaped for a terminal."""
    out = sys.stdout
    if is_terminal(out):
        out.write(printable(data.decode("utf-8", "surrogateescape")) + "\n")
        return
    buffer = getattr(raw_stream(out), "buffer", None)
    if buffer is None:  # a text in memory
        out.write(data.decode("utf-8", "backslashreplace") + "\n")
        return
    # The text layer has a buffer of its own: what was printed before comes first.
    out.flush()
    buffer.write(data + b"\n")


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Have the standard streams write what they can, for the length of a command.

    A terminal is escaped; what an encoding does not have is escaped instead of raising; bytes of arguments
    that are no UTF-8 come out as the same bytes; and a stream that the process was started without reads as
    empty, takes errors silently, and raises ``OSError`` for output.
    """
    # Tests and programs call `main` several times, so everything is put back.
    before = sys.stdin, sys.stdout, sys.stderr
    handlers = [(output, output.errors) for output in before[1:] if isinstance(output, io.TextIOWrapper)]
    try:
        if sys.stdin is None:
            sys.stdin = io.TextIOWrapper(io.BytesIO())
        sys.stdout = _prepared(sys.stdout, _ClosedStream())
        sys.stderr = _prepared(sys.stderr, io.StringIO())
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        for stream, errors in handlers:
            with contextlib.suppress(OSError, ValueError):  # what it has left cannot be written
                stream.reconfigure(errors=errors)


def _prepared(stream: TextIO | None, substitute: io.TextIOBase) -> TextIO:
    if stream is None:
        return cast("TextIO", substitute)
    if not isinstance(stream, io.TextIOWrapper):
        return stream  # of a test
    # What the encoding does not have goes through `_original_bytes`, instead of raising in the middle of a
    # table.
    stream.reconfigure(errors=_ERRORS)
    return cast("TextIO", GuardedStream(stream))


def _original_bytes(error: UnicodeError) -> tuple[str | bytes, int]:
    """Bytes that were decoded with ``surrogateescape`` as they were, and everything else escaped."""
    if not isinstance(error, UnicodeEncodeError):  # a stream that is also read
        return codecs.replace_errors(error)
    replacement = b""
    for character in error.object[error.start : error.end]:
        code = ord(character)
        is_byte = 0xDC80 <= code <= 0xDCFF
        replacement += bytes([code - 0xDC00]) if is_byte else _escaped(character).encode("ascii")
    return replacement, error.end


codecs.register_error(_ERRORS, _original_bytes)


def end_after_broken_pipe() -> None:
    """Have the end of the process write nothing to a pipe without a reader."""
    for stream in (sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if stream is not None:
                # The interpreter flushes these streams when it ends, and would print an error for the closed
                # pipe. With the null device in place of the pipe it succeeds.
                try:
                    stream.flush()
                except BrokenPipeError:
                    nothing = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(nothing, stream.fileno())
                    os.close(nothing)


def decoded_arguments(arguments: list[str]) -> list[str]:
    """The arguments of the process as UTF-8, whatever the locale says; other bytes as ``surrogateescape``."""
    # Python decodes arguments by the locale, and terminals send UTF-8 whatever it says.
    return [os.fsencode(argument).decode("utf-8", "surrogateescape") for argument in arguments]


def argument_bytes(argument: str) -> bytes:
    """The bytes of an argument, as they were typed."""
    return argument.encode("utf-8", "surrogateescape")


def argument_path(argument: str) -> str:
    """The path that an argument is, in the encoding of the file system, which in some locales is not that of
    `decoded_arguments`."""
    return os.fsdecode(argument_bytes(argument))

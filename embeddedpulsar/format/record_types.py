"""Record types: those a journal writes for itself, and those of its owner (docs/format/journal.md).

BASE is the first record of every generation that starts from a snapshot. It tells recovery whether the
generation before went on after the snapshot was taken (then this one was never switched to), and how far
to replay that one when the snapshot is damaged. END is the last record of a journal whose owner was
removed. The owner's record types are added to its `RecordTypes`, each by the module that defines it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion
from embeddedpulsar.records import NamedTuple

# Record types; the owner of a journal numbers its own from 1. Persistent values, never renumber.
BASE: Final = 0
END: Final = 0xFFFF

Buffer = bytes | bytearray | memoryview

BASE_BODY: Final = struct.Struct(
    "<"
    "I"  # 0  generation that is continued
    "I"  # 4  crc of its last record, or its chain seed
    "Q"  # 8  end offset of it when the snapshot was taken
)


class JournalBase(NamedTuple):
    """Where in the generation before the snapshot was taken."""

    generation: int
    crc: int
    end: int


def encode_base(base: JournalBase) -> bytes:
    """Payload of the record.

    Example:
        >>> decode_base(encode_base(JournalBase(3, 7, 64)))
        JournalBase(generation=3, crc=7, end=64)
    """
    return BASE_BODY.pack(*base)


def decode_base(payload: bytes) -> JournalBase:
    """The base of a payload."""
    if len(payload) != BASE_BODY.size:
        raise CorruptionError(reason=f"a base record of {len(payload)} bytes instead of {BASE_BODY.size}")
    return JournalBase(*BASE_BODY.unpack(payload))


class RecordTypes:
    """A registry. Filled while modules are imported, only read afterwards.

    Args:
        owner: what has such a journal, for error texts.

    Attributes:
        handlers: how the state machine of the owner follows a command, by the class of the command.

    >>> from typing import NamedTuple
    >>> Turn = NamedTuple("Turn", [("degrees", int)])
    >>> records = RecordTypes("table")
    >>> records.add_fixed(1, Turn, struct.Struct("<q"))
    >>> records.decode(*records.encode(Turn(-90)))
    Turn(degrees=-90)
    """

    __slots__ = ("_decoders", "_encoders", "_owner", "handlers")

    def __init__(self, owner: str) -> None:
        self._owner: Final = owner
        self._encoders: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {}
        self._decoders: Final[dict[int, Callable[[Buffer], Any]]] = {}
        self.handlers: Final[dict[type, Callable[..., Any]]] = {}

    def add(
        self,
        kind: int,
        command: type,
        encode: Callable[[Any], bytes],
        decode: Callable[[Buffer], Any],
        handler: Callable[..., Any] | None = None,
    ) -> None:
        """Add a record type.

        Args:
            kind: its number, stored in every record.
            command: the class of its commands.
            encode: the payload of a command; `ValueError` for a field out of range.
            decode: the command of a payload; `CorruptionError` for a payload that is none.
            handler: follows a command; may also be put into `handlers` later, by a higher layer.

        Raises:
            ValueError: the number is taken, or belongs to the journal itself.
        """
        if kind in (BASE, END) or kind in self._decoders:
            raise ValueError(f"{kind} is not the number of a new command of a {self._owner}")
        self._encoders[command] = (kind, encode)
        self._decoders[kind] = decode
        if handler is not None:
            self.handlers[command] = handler

    def add_fixed(self, kind: int, command: type, body: struct.Struct) -> None:
        """Add a record type whose payload has the fields of the command in their order, and no others."""

        def decode(payload: Buffer) -> Any:
            return command(*unpack(body, payload, self._owner))

        self.add(kind, command, lambda fields: body.pack(*fields), decode)

    def remove(self, command: type) -> None:
        """Take a record type away, for tests that added one."""
        kind, _ = self._encoders.pop(command)
        del self._decoders[kind]
        self.handlers.pop(command, None)

    def encode(self, command: Any) -> tuple[int, bytes]:
        """Record type and payload of a command.

        Raises:
            ValueError, struct.error: a field is out of its range.
        """
        kind, encode = self._encoders[type(command)]
        return kind, encode(command)

    def decode(self, kind: int, payload: Buffer) -> Any:
        """The command of a record.

        Raises:
            UnsupportedFormatVersion: a command of a newer release: the record itself is intact.
            CorruptionError: its fields do not fit the payload.
        """
        decoder = self._decoders.get(kind)
        if decoder is None:
            self.require_known(kind)
            raise CorruptionError(reason=f"record {kind} of the journal itself in the place of a command")
        return decoder(payload)

    def require_known(self, kind: int) -> None:
        """Raise if a record is of no type of this release.

        Raises:
            UnsupportedFormatVersion: a newer release wrote it.
        """
        if kind not in self._decoders and kind not in (BASE, END):
            known = f"this release reads types up to {max(self._decoders, default=0)}"
            raise UnsupportedFormatVersion(
                reason=f"it has a {self._owner} command of type {kind}; {known}",
                remedy="upgrade embeddedpulsar",
            )


def unpack(body: struct.Struct, payload: Buffer, owner: str) -> tuple[Any, ...]:
    """The fields that a payload begins with."""
    if len(payload) < body.size:
        reason = f"{owner} command of {len(payload)} bytes, at least {body.size} expected"
        raise CorruptionError(reason=reason)
    return body.unpack_from(payload, 0)

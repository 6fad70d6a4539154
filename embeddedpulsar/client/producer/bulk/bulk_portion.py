"""The messages of one entry of a column, before and after encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import ClassVar, Protocol

    from embeddedpulsar.format.entry import EncodedEntry, ProducerPrefix

    class Portion(Protocol):
        """The messages of one entry, before it is encoded.

        Attributes:
            explicit_ids: the first, last and highest explicit sequence id, or None for automatic ids.
            numbers: the indexes of the values in the column.
            partition: their partition; 0 without partitions.
            is_copied: whether encoding copies the values, before any compression.
        """

        partition: int
        is_copied: ClassVar[bool]

        @property
        def count(self) -> int: ...
        @property
        def explicit_ids(self) -> tuple[int, int, int] | None: ...
        @property
        def numbers(self) -> Sequence[int]: ...
        def encode(self, first: int, prefix: ProducerPrefix, codec: int) -> EncodedEntry: ...
        def part(self, start: int, stop: int) -> Portion: ...


class Encoded(NamedTuple):
    """A portion, encoded for one producer with its first automatic sequence id."""

    portion: Portion
    prefix: ProducerPrefix
    first: int
    entry: EncodedEntry


def encode(portion: Portion, prefix: ProducerPrefix, first: int, codec: int) -> Encoded:
    """Encode messages with the sequence ids from ``first`` on, unless they have explicit ids."""
    return Encoded(portion, prefix, first, portion.encode(first, prefix, codec))

"""The messages of one entry of a whole column, before and after they are encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import ClassVar, Protocol

    from embeddedpulsar.format.entry import EncodedEntry, ProducerPrefix

    class Portion(Protocol):
        """The messages of one entry, before it is encoded.

        Attributes:
            explicit_ids: first, last and highest of explicit ones, or None for the next automatic ones.
            numbers: which of the values these are.
            partition: where they go; 0 where there are no partitions.
            is_copied: encoding copies the values, before any codec.
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
    """A portion, encoded for one producer under its first automatic sequence id."""

    portion: Portion
    prefix: ProducerPrefix
    first: int
    entry: EncodedEntry


def encode(portion: Portion, prefix: ProducerPrefix, first: int, codec: int) -> Encoded:
    """Encode messages under the sequence ids from ``first`` on, unless they have their own."""
    return Encoded(portion, prefix, first, portion.encode(first, prefix, codec))

"""Splitting of messages over ``maxMessageSize`` into several entries."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.format.chunk import LARGEST_MESSAGE, MOST_CHUNKS, RUN, Chunk
from embeddedpulsar._engine.format.compression import compress
from embeddedpulsar._engine.format.entry import EncodedEntry, EntryContent, ProducerPrefix, encode
from embeddedpulsar._engine.format.frame import METADATA_SIZE
from embeddedpulsar.client.common.message_options import NO_OPTIONS, Options, make_content, transposed
from embeddedpulsar.client.producer.encode_ahead import AHEAD, WORTH_A_THREAD, EncodeAhead
from embeddedpulsar.client.producer.pending_entry import PendingEntry
from embeddedpulsar.exceptions import MessageTooBig, PulsarException

if TYPE_CHECKING:
    from embeddedpulsar.client.producer.producer_config import ProducerConfig

_SLACK: Final = 16  # padding of two columns

Encode = Callable[[EntryContent], EncodedEntry]


class Chunks:
    """The entries of one message that is being appended as several.

    Invariants: the last entry names the others, and the message exists only once it is stored. The publisher
    appends `parts` in order, adds each to `earlier`, and appends the result of `finish`.

    Args:
        is_pure: whether two threads may call ``encode`` at once.

    Attributes:
        earlier: the entries appended so far.
    """

    __slots__ = ("_content", "_encode", "_is_pure", "_packed", "_plan", "earlier")

    def __init__(
        self, plan: _Plan, packed: bytes, content: EntryContent, encode: Encode, *, is_pure: bool
    ) -> None:
        self.earlier: list[tuple[int, int]] = []
        self._plan = plan
        self._packed: bytes | None = packed
        self._content = content
        self._encode = encode
        self._is_pure = is_pure

    @property
    def length(self) -> int:
        return self._plan.chunk.length

    def parts(self) -> Generator[EncodedEntry, None, None]:
        """Yield the entries that are not appended yet, except the last: views of the payload, not copies.

        A caller that stops before the end closes the iterator. Large entries are encoded ahead once the first
        is appended. Before that, another producer may have exclusive access to the topic, and entries encoded
        now would be encoded again.
        """
        view = memoryview(self._packed or b"")
        cuts = islice(enumerate(self._plan.cuts()), len(self.earlier), None)
        ahead = EncodeAhead[EncodedEntry]()
        try:
            for number, (start, end) in islice(cuts, 1):
                yield self._part(number, view[start:end])
            waiting = 0
            for number, (start, end) in cuts:
                is_large = self._is_pure and end - start >= WORTH_A_THREAD
                ahead.add(partial(self._part, number, view[start:end]), is_large=is_large)
                waiting += 1
                if waiting > AHEAD:
                    waiting -= 1
                    yield ahead.take()
            for _ in range(waiting):
                yield ahead.take()
        finally:
            ahead.close()

    def _part(self, number: int, payload: memoryview) -> EncodedEntry:
        content = self._content
        part = EntryContent(
            [payload],  # type: ignore[list-item]  # the encoder accepts a memoryview like bytes
            content.first_sequence_id,
            False,
            keys=content.keys,
            ordering_keys=content.ordering_keys,
            chunks=[self._plan.chunk._replace(number=number).fields()],
        )
        # No message: it belongs to the last entry. The keys of the message are not repeated, but their hash.
        return self._encode(part)._replace(count=0)

    def finish(self) -> EncodedEntry:
        """Return the last entry, once all others are appended."""
        plan, content = self._plan, self._content
        view = memoryview(self._packed or b"")
        content.values = [view[plan.last_start :]]  # type: ignore[list-item]
        content.chunks = [plan.chunk._replace(earlier=tuple(self.earlier)).fields()]
        return self._encode(content)

    def let_go(self) -> None:
        self._packed = None
        self._content.values = []


class _Plan:
    """The positions at which a payload is split.

    Attributes:
        chunk: the metadata that all parts share, as in the last one.
        last_start: start of the last part.
    """

    def __init__(self, chunk: Chunk, last_start: int) -> None:
        self.chunk = chunk
        self.last_start = last_start

    def cuts(self) -> Iterator[tuple[int, int]]:
        """Yield start and end of all parts but the last; they have equal size."""
        number = self.chunk.total - 1
        for at in range(number):
            yield self.last_start * at // number, self.last_start * (at + 1) // number


class Chunker:
    """Plans the entries of large messages for one producer. Stateless; used under the producer's lock.

    The payload is first compressed as a whole, then split. Besides the message and its compressed form,
    splitting needs no memory, because entries refer to parts of the payload.

    Args:
        codec: of `_engine.format.compression`; not used if it does not make the payload smaller.
        max_size: most bytes of an entry's metadata and columns.
        seal: encrypts an entry, given the highest sequence id of its messages; None for plain text.
        max_part: most bytes of payload in one part; default is as many as an entry has room for.
    """

    def __init__(
        self,
        prefix: ProducerPrefix,
        codec: int,
        max_size: int,
        seal: Callable[[EncodedEntry, int], EncodedEntry] | None = None,
        max_part: int = LARGEST_MESSAGE,
    ) -> None:
        self._prefix: Final = prefix
        self._seal: Final = seal
        self._codec: Final = codec
        self._max_part: Final = max_part
        self.limit_to(max_size)

    def limit_to(self, max_size: int) -> None:
        """Make smaller or larger entries from now on. Any thread."""
        self._max_size = max_size
        self.largest = min(max_size - self._prefix.metadata_length - _SLACK, self._max_part)
        """Bytes of payload that always fit into one part, if there is nothing else."""

    def pending_entry(self, value: bytes, options: Options | None, sequence_id: int) -> PendingEntry:
        """Return the entries of one message. `MessageTooBig` is stored in ``error`` of the result."""
        content = make_content([b""], transposed([options or NO_OPTIONS]), [sequence_id], False)
        packed, codec = self._packed(value)
        try:
            plan = self._plan(content, len(packed), codec, len(value), sequence_id)
        except PulsarException as error:
            return PendingEntry(None, 1, sequence_id, sequence_id, None, False, error)
        out = PendingEntry(None, 1, sequence_id, sequence_id, None, False)
        is_pure = self._seal is None  # a cipher counts its messages
        out.chunks = Chunks(plan, packed, content, self._encode, is_pure=is_pure)
        return out

    def _packed(self, value: bytes) -> tuple[bytes, int]:
        if self._codec and len(value) <= LARGEST_MESSAGE:
            packed = compress(self._codec, value)
            if len(packed) < len(value):
                return packed, self._codec
        return value, 0

    def _plan(self, content: EntryContent, size: int, codec: int, length: int, sequence_id: int) -> _Plan:
        if length > LARGEST_MESSAGE:
            raise MessageTooBig(
                f"the message has {length} bytes, and chunked messages have at most {LARGEST_MESSAGE}"
            )
        uuid = f"{self._prefix.name}-{sequence_id}"
        # Measured with the largest numbers, which need the most bytes.
        largest = Chunk(uuid, MOST_CHUNKS - 2, MOST_CHUNKS, size, (), codec, length)
        part = EntryContent(
            [b""],
            sequence_id,
            False,
            keys=content.keys,
            ordering_keys=content.ordering_keys,
            chunks=[largest.fields()],
        )
        room = self._room(part)
        content.chunks = [largest._replace(number=MOST_CHUNKS - 1).fields()]
        last_room = self._room(content)
        room = min(room, self._max_part)
        total = max(-(-size // max(room, 1)), 1)
        if size > last_room:
            # The last part lists the positions of the others, so each further part reduces its room.
            total = max(total, 1 + -(-(size - last_room) // max(room - RUN.size, 1)))
        last_room -= RUN.size * (total - 1)
        if room <= 0 or last_room <= 0 or size - (total - 1) * room > last_room or total > MOST_CHUNKS:
            limit = self._max_size - METADATA_SIZE
            raise MessageTooBig(
                f"the message of {length} bytes cannot be cut into entries of {limit}: its properties, "
                "or the positions of its parts, leave no room; send less, or raise maxMessageSize"
            )
        last_size = max(size - (total - 1) * room, 1) if total > 1 else size
        return _Plan(Chunk(uuid, total - 1, total, size, (), codec, length), size - last_size)

    def _room(self, content: EntryContent) -> int:
        """Bytes of payload that fit beside everything else."""
        content.values = [b""]
        return self._max_size - self._encode(content).size - _SLACK

    def _encode(self, content: EntryContent) -> EncodedEntry:
        encoded = encode(content, self._prefix)
        return encoded if self._seal is None else self._seal(encoded, content.first_sequence_id)


def part_limit(config: ProducerConfig) -> int:
    """Most bytes of payload in one part of a message, if the producer set a limit."""
    return config.chunk_max_size if config.chunking and config.chunk_max_size > 0 else LARGEST_MESSAGE

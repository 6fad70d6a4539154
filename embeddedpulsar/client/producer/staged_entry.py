"""Entries whose columns were laid out elsewhere, published with sequence ids that the caller chose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from zlib import crc32

from embeddedpulsar._engine.format.entry import EncodedEntry, ProducerPrefix, encode_columns
from embeddedpulsar._engine.format.frame import CODEC_ENCRYPTED, FLAG_ENCRYPTED
from embeddedpulsar.client.producer.bulk_publisher import BulkPublisher
from embeddedpulsar.client.producer.producer import open_producer
from embeddedpulsar.client.producer.producer_session import ProducerConfig
from embeddedpulsar.crypto import CryptoKeyReader, Encryption
from embeddedpulsar.exceptions import MessageTooBig
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.schema.schema import BYTES

if TYPE_CHECKING:
    from typing import Any, ClassVar

    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.client.producer.publisher import Publisher

__all__ = [
    "StagedEntry",
    "end_of_log",
    "entry_terms",
    "producer_of_sealed",
    "publish_entries",
    "stored_since",
]


class StagedEntry:
    """The messages of one entry, as columns that are stored as they are. A `Portion` of `BulkPublisher`.
    With the flag of an encrypted entry, what is stored is not columns but the whole entry.

    Attributes:
        count: messages.
        numbers: which of all published messages these are.
        partition: the number of the producer that publishes it.
    """

    is_copied: ClassVar[bool] = False

    __slots__ = ("_columns", "_first", "_flags", "_key_hash", "_schema", "count", "numbers", "partition")

    def __init__(
        self,
        partition: int,
        columns: list[Any],
        count: int,
        flags: int,
        key_hash: int,
        first: int | None = None,
        schema_version: int = -1,
    ) -> None:
        self.count = count
        self.partition = partition
        self.numbers: Sequence[int] = range(count)
        self._columns = columns
        self._flags = flags
        self._key_hash = key_hash
        self._first = first
        self._schema = schema_version

    @property
    def explicit_ids(self) -> tuple[int, int, int] | None:
        """First, last and highest sequence id; None for automatic ids."""
        if self._first is None:
            return None
        last = self._first + self.count - 1
        return self._first, last, last

    def encode(self, first: int, prefix: ProducerPrefix, codec: int) -> EncodedEntry:
        """The entry; ``first`` is its first automatic sequence id. Uncompressed bytes are not copied."""
        if self._flags & FLAG_ENCRYPTED:
            (part,) = self._columns
            return EncodedEntry(
                [part],
                len(part),
                crc32(part),
                self.count,
                prefix.metadata_length,
                CODEC_ENCRYPTED,
                self._flags,
                self._key_hash,
            )
        if self._first is not None:
            first = self._first
        return encode_columns(
            self._columns,
            self.count,
            self._flags,
            first,
            self._key_hash,
            prefix,
            codec,
            self._schema if self._schema >= 0 else prefix.schema_version,
        )

    def part(self, start: int, stop: int) -> StagedEntry:
        """Refuse to be divided.

        Raises:
            MessageTooBig: always.
        """
        raise MessageTooBig(
            f"an entry of {self.count} messages was staged when maxMessageSize was larger; raise it"
        )


def publish_entries(producers: Sequence[Producer[Any]], entries: Iterable[StagedEntry], codec: int) -> int:
    """Store entries by the producers that their ``partition`` names, and wait for their durability.

    Returns:
        How many messages were stored.

    Raises:
        Exception: any error of an append, or of ``entries``; what came before it is stored.
    """

    def publisher_of(number: int) -> Publisher:
        return producers[number]._publisher.of_partition(0)

    def numbered() -> Iterator[StagedEntry]:
        done = 0
        for entry in entries:
            entry.numbers = range(done, done + entry.count)
            done += entry.count
            yield entry

    return len(BulkPublisher(publisher_of, codec).publish(numbered()))


def producer_of_sealed(core: ClientContext, topic: str, name: str | None = None) -> Producer[bytes]:
    """A producer of entries that are encrypted already, also where encryption is required."""
    config = ProducerConfig(topic, BYTES, name, encryption=Encryption((), CryptoKeyReader("", "")))
    return core.in_time(open_producer, core, config)


def entry_terms(producer: Producer[Any]) -> tuple[ProducerPrefix, int]:
    """What entries of the producer have in common, and the most bytes that one may have."""
    publisher = producer._publisher.of_partition(0)
    return publisher.prefix, publisher.max_size


def end_of_log(producer: Producer[Any]) -> int:
    """The tail word of the producer's topic: where the log ends now."""
    return int(producer._publisher.of_partition(0).session.ledger.tail)


def stored_since(producer: Producer[Any], floor_word: int) -> int:
    """The highest sequence id stored under the producer's name behind a tail word; -1 for none."""
    session = producer._publisher.of_partition(0).session
    return session.highest_stored(producer.producer_name(), session.ledger.tail, floor_word)

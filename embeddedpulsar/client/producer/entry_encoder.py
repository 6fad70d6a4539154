"""Encoding of messages into entries, and the plan of messages that are stored as several.

Hot: `EntryEncoder.encode` runs once per batch.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby

from embeddedpulsar._engine.format.compression import compress
from embeddedpulsar._engine.format.entry import (
    NO_EXTRAS,
    EncodedEntry,
    EntryContent,
    Extras,
    ProducerPrefix,
    encode,
    encode_keyed,
    encode_plain,
    fields_with_extras,
    pack_extras,
)
from embeddedpulsar._engine.format.entry_decoder import (
    LARGEST_MESSAGE,
    MOST_CHUNKS,
    RUN,
    TRANSACTION,
    Chunk,
)
from embeddedpulsar._engine.format.frame import (
    CODEC_ENCRYPTED,
    FLAG_BATCHED,
    FLAG_TRANSACTION,
    FLAG_TXN,
    MAX_FRAME_SIZE,
    METADATA_SIZE,
)
from embeddedpulsar.client.arguments import KEY, NO_OPTIONS, SEQUENCE_ID, Options, make_content, transposed
from embeddedpulsar.client.producer.pending_entry import (
    CALLBACK,
    FIRST_OPTION,
    KEYED_LENGTH,
    SHUT,
    VALUE,
    BatchContainer,
    ChunkPlan,
    Chunks,
    DeferredBatch,
    Item,
    PendingEntry,
    SendCallback,
    fate_of,
    is_unbatchable,
    part_of,
    payload_of,
)
from embeddedpulsar.exceptions import AlreadyClosed, MessageTooBig, PulsarException
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Final

    from embeddedpulsar.client.producer.producer_session import ProducerConfig, ProducerSession
    from embeddedpulsar.client.transaction import TopicPart
    from embeddedpulsar.crypto import EntryCipher

_SLACK: Final = 16  # padding of two columns


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

    def with_prefix(self, prefix: ProducerPrefix) -> Chunker:
        """One for entries with another prefix."""
        return Chunker(prefix, self._codec, self._max_size, self._seal, self._max_part)

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

    def _plan(self, content: EntryContent, size: int, codec: int, length: int, sequence_id: int) -> ChunkPlan:
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
        return ChunkPlan(Chunk(uuid, total - 1, total, size, (), codec, length), size - last_size)

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


_GROUP_ENTRIES: Final = 64
_GROUP_BYTES: Final = 1 << 20
"""Entries that one hold of the topic's lock stores: so many, or about so many bytes."""
_KEY: Final = FIRST_OPTION + KEY  # the ordering key follows it
_ID: Final = FIRST_OPTION + SEQUENCE_ID
_TUPLES: Final = {tuple}
_KEYED: Final = {KEYED_LENGTH}
_FULL: Final = {FIRST_OPTION + len(NO_OPTIONS)}
_MISSING: Final = {length: NO_OPTIONS[length - FIRST_OPTION :] for length in (FIRST_OPTION, *_KEYED, *_FULL)}
"""What an item of a length has not."""
_entry: Final = partial(tuple.__new__, EncodedEntry)


class EntryEncoder:
    """Encodes messages into entries, groups them by key if required, and encrypts the entries if required.

    Used under the producer's lock. With ``counts_bytes``, an entry notes the payload bytes that count against
    the client's memory limit. After the checks of a send, only the size of an entry and its encryption
    can fail; that error is stored in the entry. An entry that cannot be encrypted is not stored, so plain
    text is never stored.
    """

    __slots__ = (
        "_chunker",
        "_cipher",
        "_codec",
        "_counts_bytes",
        "_is_in_transaction",
        "_key_based",
        "_max_size",
        "_prefix",
    )

    def __init__(
        self,
        prefix: ProducerPrefix,
        codec: int,
        key_based: bool,
        max_size: int,
        chunker: Chunker | None = None,
        cipher: EntryCipher | None = None,
        counts_bytes: bool = False,
    ) -> None:
        self._chunker = chunker
        self._counts_bytes = counts_bytes
        self._cipher = cipher
        self._prefix = prefix
        self._codec = codec
        self._key_based = key_based
        self._max_size = max_size
        self._is_in_transaction = prefix.transaction is not None

    def of(self, part: TopicPart) -> EntryEncoder:
        """The encoder of entries of a transaction: as this one, but for the id in them."""
        encoder: EntryEncoder | None = part.encoder
        if encoder is None or encoder._max_size != self._max_size or encoder._cipher is not self._cipher:
            prefix = self.prefix_of(part)
            chunker = self._chunker and self._chunker.with_prefix(prefix)
            encoder = part.encoder = EntryEncoder(
                prefix,
                self._codec,
                self._key_based,
                self._max_size,
                chunker,
                self._cipher,
                self._counts_bytes,
            )
        return encoder

    def prefix_of(self, part: TopicPart) -> ProducerPrefix:
        """What entries of a transaction have in common."""
        return self._prefix.in_transaction(part.txn_id)

    def encode(self, items: list[Any], mixed: bool, first: int) -> tuple[list[PendingEntry], int]:
        """Encode one batch: one entry, or with key-based batching one per key, by first sequence id.

        Args:
            items: payloads, and tuples if ``mixed``.
            mixed: whether to look for tuples; encoding detects a wrong False.
            first: the next automatic sequence id.

        Returns:
            The entries, and the next automatic id.
        """
        if not mixed:
            try:
                return self._encode_plain(items, first, None)
            except TypeError:
                return self.encode(items, True, first)  # a tuple was added while the hint was being reset
        whole = items
        if set(map(type, items)) != _TUPLES:
            whole = [item if item.__class__ is tuple else (item, None) for item in items]
        lengths = set(map(len, whole))
        if lengths == _KEYED and not self._key_based:
            following = first + len(whole)
            return [self._encode_columns(transposed(whole), range(first, following))], following
        if max(lengths) > FIRST_OPTION:
            rows = whole
            if lengths != _FULL:
                rows = [item + _MISSING[len(item)] for item in whole]
            if self._key_based:
                return self._encode_by_key(rows, [row[_ID] for row in rows], first)
            columns = transposed(rows)
            if any(columns[_ID]):
                ids, following = _assign(columns[_ID], first)
                return [self._encode_columns(columns, ids)], following
            following = first + len(rows)
            return [self._encode_columns(columns, range(first, following))], following
        values, callbacks = map(list, zip(*whole, strict=True))
        has_any = callbacks.count(None) < len(callbacks)
        return self._encode_plain(values, first, callbacks if has_any else None)

    def limit_to(self, max_size: int) -> None:
        """Refuse, or split, what is larger from now on. Any thread."""
        self._max_size = max_size
        if self._chunker is not None:
            self._chunker.limit_to(max_size)

    def _encode_plain(
        self, values: list[bytes], first: int, callbacks: list[SendCallback | None] | None
    ) -> tuple[list[PendingEntry], int]:
        if self._codec:
            encoded = encode(EntryContent(values, first), self._prefix, self._codec)
        else:
            encoded = encode_plain(values, first, self._prefix)
        following = first + len(values)
        out = PendingEntry(encoded, len(values), first, following - 1, callbacks, True)
        if self._cipher is not None or encoded.size > self._max_size:
            self.finish(out)
        return [out], following

    def _encode_by_key(
        self, rows: list[Item], explicit: list[int], first: int
    ) -> tuple[list[PendingEntry], int]:
        """Encode one entry per key, in the order of their first messages."""
        pending_entry = []
        for members in _grouped(rows, any(explicit)):
            if len(members) == 1 and not self._codec:
                row = members[0]
                out = self._encode_lone(row, row[_ID] or first)
                first += not row[_ID]
            else:
                ids, first = _assign([row[_ID] for row in members], first)
                out = self._encode_members(members, ids)
            pending_entry.append(out)
        return pending_entry, first

    def _encode_lone(self, row: Item, sequence_id: int) -> PendingEntry:
        """Encode the only message of its key: an entry as of a message sent alone, but a batch."""
        value, callback, properties, key, ordering_key, _, event_time, deliver_at, is_null = row
        extras = _extras(properties, key, MAX_FRAME_SIZE, ordering_key, event_time, deliver_at, is_null)
        if extras is None or self._is_in_transaction:
            return self._encode_columns(transposed([row]), [sequence_id])
        columns, flags, key_hash = extras
        encoded = _entry(
            fields_with_extras(value, (columns, flags | FLAG_BATCHED, key_hash), sequence_id, self._prefix)
        )
        callbacks = None if callback is None else [callback]
        out = PendingEntry(encoded, 1, sequence_id, sequence_id, callbacks, True)
        return out if self._cipher is None and encoded[1] <= self._max_size else self.finish(out)

    def _encode_members(self, members: list[Item], ids: list[int]) -> PendingEntry:
        key = members[0][_KEY]
        if (
            self._codec
            or self._is_in_transaction
            or not key
            or any(row[FIRST_OPTION:] != (None, key, None, row[_ID], 0, 0, False) for row in members)
        ):
            return self._encode_columns(transposed(members), ids)
        values, callbacks = [row[VALUE] for row in members], [row[CALLBACK] for row in members]
        encoded = encode_keyed(values, key, ids, self._prefix, True)
        return self.finish(PendingEntry(encoded, len(ids), ids[0], ids[-1], _if_any(callbacks), True))

    def _encode_columns(self, columns: list[list[Any]], ids: Sequence[int]) -> PendingEntry:
        """Encode one entry. Consecutive ids are given as a range, which needs no column and no search."""
        values, callbacks = columns[:FIRST_OPTION]
        content = make_content(values, columns[FIRST_OPTION:], ids, True)
        encoded = encode(content, self._prefix, self._codec)
        has_any = callbacks.count(None) < len(callbacks)
        out = PendingEntry(encoded, len(values), ids[0], ids[-1], callbacks if has_any else None, True)
        if ids.__class__ is not range:
            out.highest = max(ids)
        return out if self._cipher is None and encoded.size <= self._max_size else self.finish(out)

    def encode_singles(self, singles: list[Any], first: int) -> tuple[int, list[PendingEntry], int]:
        """Encode the next messages that become entries of their own.

        Args:
            singles: the messages, the next one first.
            first: the next automatic sequence id.

        Returns:
            How many messages were encoded, their entries, and the next automatic id.
        """
        entries: list[PendingEntry] = []
        size = 0
        if singles[0].__class__ is DeferredBatch:
            return self._encode_deferred(singles[0], first)
        for item in singles[:_GROUP_ENTRIES]:
            payload = payload_of(item)
            size += len(payload)
            if entries and size > _GROUP_BYTES:
                break
            out, first = self.encode_single_item(item, first)
            if self._counts_bytes:
                out.reserved = len(payload)
            entries.append(out)
        return len(entries), entries, first

    def encode_batches(
        self, batch: BatchContainer, first: int, least: int
    ) -> tuple[int, list[PendingEntry], int]:
        """Encode the next batches, while at least ``least`` messages are left. As `encode_singles`.

        An entry that is too large has a message that was added without the lock before its bytes were
        counted: the container is closed to such messages, and the batch is cut again, by size.
        """
        items, taken, size = batch.items, 0, 0
        entries: list[PendingEntry] = []
        while len(items) - taken >= least and len(entries) < _GROUP_ENTRIES and size < _GROUP_BYTES:
            count = batch.cut(taken)
            if not count:
                break
            # Copied, not removed: the queue replaces all messages by their entries in one step. The hint is
            # cleared before they are encoded, so a tuple that is added meanwhile sets it again.
            members = items[taken : taken + count]
            mixed, batch.mixed = batch.mixed, taken + count < len(items)
            part = part_of(members[0]) if batch.has_parts else None
            if batch.has_unbatchable and is_unbatchable(members[0]):
                out, following = self.encode_single_item(members[0], first)
                encoded = [out]
            elif part is not None:
                encoded, following = self._encode_in(part, members, first)
            else:
                encoded, following = self.encode(members, mixed, first)
            added, has_failed = 0, False
            for out in encoded:
                has_failed = has_failed or out.error is not None
                added += 0 if out.encoded is None else out.encoded.size
            # Encoded once more if no lock was needed for it: with sizes added up, `cut` ends the batch before
            # the large message. An entry that fails then, too, is a single message that is too large.
            if has_failed and batch.share != SHUT:
                batch.share = SHUT
                continue
            first = following
            if self._counts_bytes:
                encoded[-1].reserved = sum(len(payload_of(item)) for item in members)
            entries += encoded
            size += added
            taken += count
        return taken, entries, first

    def _encode_in(self, part: TopicPart, items: list[Item], first: int) -> tuple[list[PendingEntry], int]:
        """`encode` of items that are of one transaction."""
        encoder = self.of(part)
        try:
            values, callbacks = [value for value, _, _ in items], [callback for _, callback, _ in items]
        except ValueError:  # one has options
            entries, following = encoder.encode([item[:-1] for item in items], True, first)
        else:
            entries, following = encoder._encode_plain(values, first, _if_any(callbacks))
        for out in entries:
            out.part = part
        return entries, following

    def _encode_deferred(self, deferred: DeferredBatch, first: int) -> tuple[int, list[PendingEntry], int]:
        """`encode_singles` of messages whose transaction has begun, or could not begin."""
        deferred.shut()
        items, part, entries = deferred.items, deferred.part, list[PendingEntry]()
        if part is None:
            error = deferred.error or AlreadyClosed("the transaction did not begin")
            entries += [fate_of(item, error) for item in items]
            deferred.taken = len(entries)
        else:
            deferred.taken = 0
            while deferred.taken < len(items):
                batch = deferred.remainder() if deferred.taken else deferred
                count, more, first = self.of(part).encode_batches(batch, first, 1)
                deferred.taken += count
                entries += more
        for out in entries:
            out.part = part or deferred  # type: ignore[assignment]
        return 1, entries, first

    def encode_single_item(self, item: Any, first: int) -> tuple[PendingEntry, int]:
        """Encode a queued message as an entry of its own; also return the next automatic id."""
        part = part_of(item)
        if part is not None:
            out, following = self.of(part).encode_single_item(item[:-1], first)
            out.part = part
            return out, following
        if item.__class__ is not tuple:
            return self.encode_one(item, None, first), first + 1
        options: Any = item[FIRST_OPTION:] or None
        if len(item) == KEYED_LENGTH:
            options += _MISSING[KEYED_LENGTH]
        sequence_id = options[SEQUENCE_ID] if options is not None else 0
        out = self.encode_one(item[VALUE], options, sequence_id or first)
        if item[CALLBACK] is not None:
            out.callbacks = [item[CALLBACK]]
        return out, first if sequence_id else first + 1

    def encode_one(self, value: bytes, options: Options | None, sequence_id: int) -> PendingEntry:
        chunker = self._chunker
        if chunker is not None and len(value) > chunker.largest:
            return chunker.pending_entry(value, options, sequence_id)
        out = PendingEntry(None, 1, sequence_id, sequence_id, None, False)
        transaction = self._prefix.transaction
        if len(value) > self._max_size and not self._codec:
            out.error = too_big("message", len(value) + METADATA_SIZE, self._max_size)
            return out
        extras: Extras | None = NO_EXTRAS
        if options is not None:
            properties, key, ordering_key, _, event_time, deliver_at, is_null = options
            extras = _extras(properties, key, self._max_size, ordering_key, event_time, deliver_at, is_null)
        if extras is not None and transaction is not None:
            columns, flags, key_hash = extras
            columns += TRANSACTION.pack(*transaction)  # behind all that a message may have here
            extras = columns, flags | FLAG_TRANSACTION | FLAG_TXN, key_hash
        if extras is None or self._codec:
            content = make_content([value], transposed([options or NO_OPTIONS]), [sequence_id], False)
            encoded = encode(content, self._prefix, self._codec)
        else:
            encoded = _entry(fields_with_extras(value, extras, sequence_id, self._prefix))
        out.encoded = encoded
        if self._cipher is None and encoded.size <= self._max_size:
            return out
        self.finish(out)
        if chunker is not None and isinstance(out.error, MessageTooBig):
            # Its key or properties are large, or the ciphertext alone exceeds the limit.
            return chunker.pending_entry(value, options, sequence_id)
        return out

    def finish(self, out: PendingEntry) -> PendingEntry:
        """Check the size of an entry, and encrypt it, unless it is encrypted or has an error."""
        encoded = out.encoded
        if encoded is None or out.error is not None:
            return out
        if self._cipher is not None and encoded.codec != CODEC_ENCRYPTED and encoded.size <= self._max_size:
            out.encoded = None
            try:
                out.encoded = encoded = self._cipher.seal(encoded, out.highest)
            except PulsarException as error:
                out.error = error
                return out
        if encoded.size > self._max_size:
            out.error = too_big("batch" if out.batched else "message", encoded.size, self._max_size)
        return out


def make_encoder(prefix: ProducerPrefix, config: ProducerConfig, session: ProducerSession) -> EntryEncoder:
    """Return the encoder of a producer.

    Raises:
        CryptoError: a public key cannot be read.
    """
    encryption = config.encryption
    limit, max_part = session.max_message_size, part_limit(config)
    cipher = None
    if encryption is not None and encryption.names:
        from embeddedpulsar.crypto import EntryCipher

        topic = session.topic_name

        def on_stale(error: Exception) -> None:
            # Called by the thread that holds the producer's lock.
            session.call_later(
                0.0,
                lambda: session.log.warning(
                    "The data key of %s on %s could not be exchanged, and serves on: %s",
                    prefix.name,
                    topic,
                    error,
                    producer=prefix.name,
                    topic=topic,
                ),
            )

        cipher = EntryCipher(topic, encryption.names, encryption.reader, session.monotonic, on_stale)
    seal = None if cipher is None else cipher.seal
    chunker = Chunker(prefix, config.compression, limit, seal, max_part) if config.chunking else None
    counts_bytes = session.memory is not None
    return EntryEncoder(prefix, config.compression, config.key_based, limit, chunker, cipher, counts_bytes)


def too_big(what: str, size: int, limit: int) -> MessageTooBig:
    """Return the error for a message or batch over ``maxMessageSize``, which excludes fixed metadata."""
    return MessageTooBig(
        f"the {what} has {size - METADATA_SIZE} bytes with its metadata and maxMessageSize is "
        f"{limit - METADATA_SIZE}; "
        "send less at once, or raise maxMessageSize of the topic or in broker.conf"
    )


def _extras(
    properties: dict[str, str] | bytes | None,
    key: str | None,
    room: int,
    ordering_key: str | None,
    event_time: int,
    deliver_at: int,
    is_null: bool,
) -> Extras | None:
    """`pack_extras` of a message that waited for its batch: its properties may be packed."""
    if isinstance(properties, bytes):
        return pack_extras(None, key, room, ordering_key, event_time, deliver_at, is_null, properties)
    return pack_extras(properties, key, room, ordering_key, event_time, deliver_at, is_null)


def _if_any(callbacks: list[SendCallback | None]) -> list[SendCallback | None] | None:
    """Return the callbacks, or None if all are None. (A callable may be false, as a list subclass.)"""
    return None if callbacks.count(None) == len(callbacks) else callbacks


def _grouped(rows: list[Item], is_order_given: bool) -> Iterable[list[Item]]:
    """Return the messages of each entry; an entry holds one key.

    Deduplication drops an id below one already stored. So automatic ids are assigned in the order of storing;
    if the application gave ids, only neighbours share an entry.
    """
    if is_order_given:
        return [list(members) for _, members in groupby(rows, _key_of)]
    groups: dict[str, list[Item]] = {}
    for row in rows:
        key = row[_KEY + 1] or row[_KEY] or ""
        if key in groups:
            groups[key].append(row)
        else:
            groups[key] = [row]
    return groups.values()


def _key_of(row: Item) -> str:
    return row[_KEY + 1] or row[_KEY] or ""


def _assign(explicit: list[int], following: int) -> tuple[list[int], int]:
    """Assign sequence ids in the order of sending; explicit ids do not advance the automatic ones.

    >>> _assign([0, 9, 0], 3)
    ([3, 9, 4], 5)
    """
    if not any(explicit):
        after = following + len(explicit)
        return list(range(following, after)), after
    ids = []
    for sequence_id in explicit:
        if sequence_id:
            ids.append(sequence_id)
        else:
            ids.append(following)
            following += 1
    return ids, following

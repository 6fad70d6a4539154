"""Publishing of whole columns, entry by entry. Hot: benchmarks measure `send_many` and `send_arrow`.

Columns of Python values, checked and cut into entries, with few steps per message.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, islice, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, overload

from embeddedpulsar._engine.format.entry import (
    EncodedEntry,
    EntryContent,
    ProducerPrefix,
    encode,
    encode_plain,
)
from embeddedpulsar._engine.format.frame import FLAG_TXN
from embeddedpulsar._engine.platform.timing import is_within_another_call
from embeddedpulsar.client import client_threads
from embeddedpulsar.client.arguments import INT64_MAX
from embeddedpulsar.client.producer.entry_encoder import too_big
from embeddedpulsar.client.producer.partitioned_publisher import TURN, BulkRouting
from embeddedpulsar.client.producer.pending_entry import AHEAD, WORTH_A_THREAD, EncodeAhead, PendingEntry
from embeddedpulsar.exceptions import Interrupted, MessageTooBig, NotAllowedError
from embeddedpulsar.message_id import MessageId, make
from embeddedpulsar.records import NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.producer.producer_session import BulkLimits
    from embeddedpulsar.client.producer.publisher import Publisher
    from embeddedpulsar.client.transaction import TopicPart, Transaction


class SentMessages(Sequence[MessageId]):
    """The messages that `Producer.send_many` or `send_arrow` stored: ids in the order of the values.

    It takes about 30 bytes per entry, independent of the number of messages; an id is created on access, in
    about 1 us. With regrouped messages (key-based batching, partitions) it takes 8 more bytes per message.

    Immutable once it is returned. As ``stored`` of an exception it contains the messages stored before:
    message ``i`` is the value `numbers()[i]`.

    Example:
        >>> from embeddedpulsar import Client
        >>> with Client("memory://") as client:
        ...     sent = client.create_producer("orders").send_many([b"one", b"two"])
        >>> len(sent), sent[1].batch_index(), sent.entries() == 1
        (2, 1, True)
    """

    __slots__ = ("_ends", "_entries", "_ledgers", "_numbers", "_partitions", "_ranks")

    def __init__(self) -> None:
        self._partitions = array("q")
        self._ledgers = array("q")
        self._entries = array("q")
        self._ends = array("q")  # number of messages up to and including the entry
        self._numbers: array[int] | None = None  # of values, in the order of storing; None if unchanged
        self._ranks: list[int] | None = None

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> MessageId: ...
    @overload
    def __getitem__(self, index: slice) -> list[MessageId]: ...

    def __getitem__(self, index: int | slice) -> MessageId | list[MessageId]:
        size = len(self)
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(size))]
        if index < 0:
            index += size
        if not 0 <= index < size:
            raise IndexError(f"message {index} of {size}")
        rank = index if self._numbers is None else self._in_order(self._numbers)[index]
        return self._at(bisect_right(self._ends, rank), rank)

    def __iter__(self) -> Iterator[MessageId]:
        if self._numbers is not None:
            for rank in self._in_order(self._numbers):
                yield self._at(bisect_right(self._ends, rank), rank)
            return
        start = 0
        for at, end in enumerate(self._ends):
            for rank in range(start, end):
                yield self._at(at, rank)
            start = end

    def entries(self) -> int:
        """Return the number of entries that were stored."""
        return len(self._ends)

    def numbers(self) -> Sequence[int]:
        """Return the indexes of the stored values, ascending: all, unless an error ended the call."""
        if self._numbers is None:
            return range(len(self))
        return sorted(self._numbers[: len(self)])

    def add(self, partition: int, ledger: int, entry: int, numbers: Sequence[int]) -> None:
        """Add an entry with the indexes of its values. Called by the publisher.

        After an interrupt within this method, the publisher calls it again.
        """
        noted, size = len(self._ends), len(self)
        del self._partitions[noted:], self._ledgers[noted:], self._entries[noted:]
        if self._numbers is None and not (isinstance(numbers, range) and numbers.start == size):
            self._numbers = array("q", range(size))
        if self._numbers is not None:
            del self._numbers[size:]
            self._numbers.extend(numbers)
        self._ranks = None
        self._partitions.append(partition)
        self._ledgers.append(ledger)
        self._entries.append(entry)
        self._ends.append(size + len(numbers))

    def ends_with(self, ledger: int, entry: int) -> bool:
        """Return whether that entry was the last one added."""
        return bool(self._ends) and (self._ledgers[-1], self._entries[-1]) == (ledger, entry)

    def _at(self, at: int, rank: int) -> MessageId:
        ledger, partition, end = self._ledgers[at], self._partitions[at], self._ends[at]
        start = self._ends[at - 1] if at else 0
        if ledger < 0:  # a duplicate, which was not stored again
            return make(ledger, self._entries[at], -1, partition, 0)
        return make(ledger, self._entries[at], rank - start, partition, end - start)

    def _in_order(self, numbers: array[int]) -> list[int]:
        """Return the position of each value in the order of storing."""
        ranks = self._ranks
        if ranks is None:
            ranks = self._ranks = sorted(range(len(self)), key=numbers.__getitem__)
        return ranks

    def __repr__(self) -> str:
        return f"<SentMessages {len(self)} in {self.entries()} entries>"


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


def encode_portion(portion: Portion, prefix: ProducerPrefix, first: int, codec: int) -> Encoded:
    """Encode messages with the sequence ids from ``first`` on, unless they have explicit ids."""
    return Encoded(portion, prefix, first, portion.encode(first, prefix, codec))


class BulkPublisher:
    """One call of `send_many` or `send_arrow`.

    Entries are encoded without the publisher's lock, with the sequence ids they get if no other thread
    sends meanwhile; the lock is held for the append alone. If another thread did send, they are encoded again
    under the lock, which costs a checksum. So ids keep the order of the log, and a call of several seconds
    delays other senders by at most one entry.

    Invariants: an entry is stored completely or not at all, and the entries of a topic in order. If an error
    ends the call, `sent` contains exactly the stored messages. At level "flush" there is one flush, at the
    end.

    Args:
        publisher_of: returns the publisher of a partition; called with 0 without partitions.
        codec: compresses entries.
        txn: the transaction of all of them; None for none. Its commit waits for the disk.
    """

    def __init__(
        self, publisher_of: Callable[[int], Publisher], codec: int, txn: Transaction | None = None
    ) -> None:
        self.sent = SentMessages()
        self._publisher_of = publisher_of
        self._codec = codec
        self._txn = txn
        self._prefixes: dict[Publisher, tuple[ProducerPrefix, ProducerPrefix]] = {}
        self._ahead = EncodeAhead[Encoded]()
        self._waiting: deque[Portion] = deque()  # portions that are not stored yet
        self._is_large = False  # whether the last entry was large
        self._is_shared = False  # whether both threads encoded the last portion
        self._failure: Exception | None = None  # the error behind the portions in `_waiting`
        self._publishers: dict[int, Publisher] = {}
        self._end_words: dict[int, int] = {}
        self._current: tuple[PendingEntry, Portion] | None = None

    def publish(self, portions: Iterable[Portion]) -> SentMessages:
        """Store entries after everything sent before, and wait until they have the producer's durability.

        Raises:
            Exception: any error of an append or of ``portions``; its ``stored`` is `sent`.
        """
        try:
            self._store_all(iter(portions))
            for partition, end_word in self._end_words.items():
                self._publishers[partition].session.ledger.wait_durable(end_word)
        except BaseException as error:
            self._find_outcome()
            if self._txn is not None:
                self._txn._failed(error)
            is_bare = isinstance(error, KeyboardInterrupt) and not isinstance(error, Interrupted)
            if is_bare and not is_within_another_call():
                interrupted = Interrupted("the call was interrupted between two entries, or in one")
                raise self._noted(interrupted) from error
            self._noted(error)
            raise
        finally:
            self._ahead.close()
        return self.sent

    def _publisher(self, partition: int) -> Publisher:
        publisher = self._publishers.get(partition)
        if publisher is None:
            publisher = self._publisher_of(partition)
            publisher.flush_all()  # messages that were sent before
            self._publishers[partition] = publisher
        return publisher

    def _prefix(self, publisher: Publisher) -> ProducerPrefix:
        """What the entries of this call and of a producer have in common, until it attaches again."""
        own = publisher.prefix
        if self._txn is None:
            return own
        of, prefix = self._prefixes.get(publisher, (None, own))
        if of is not own:
            prefix = publisher.queue.encoder.prefix_of(self._txn._part_of(publisher))
            self._prefixes[publisher] = own, prefix
        return prefix

    def _encode(self, portion: Portion) -> Encoded:
        publisher = self._publisher(portion.partition)
        return encode_portion(portion, self._prefix(publisher), publisher.queue.ids.following, self._codec)

    def _store_all(self, portions: Iterator[Portion]) -> None:
        self._fetch(portions, 1)
        while self._waiting:
            encoded = self._ahead.pop(helps=self._is_shared)
            self._is_large = encoded.entry.size >= WORTH_A_THREAD
            if self._is_large:  # the next entries are encoded while this one is stored
                self._fetch(portions, 1 + AHEAD if self._is_shared else 2)
            self._store(encoded)
            self._waiting.popleft()
            self._fetch(portions, 1 + AHEAD if self._is_large and self._is_shared else 1)
        if self._failure is not None:
            raise self._failure

    def _fetch(self, portions: Iterator[Portion], wanted: int) -> None:
        """Start encoding the next portions. An error is raised when all portions before it are stored."""
        while len(self._waiting) < wanted and self._failure is None:
            try:
                portion = next(portions, None)
                if portion is None:
                    return
                self._begin(portion)
            except Exception as error:  # noqa: BLE001 - raised when its turn comes
                self._failure = error

    def _begin(self, portion: Portion) -> None:
        publisher = self._publisher(portion.partition)
        before = [other for other in self._waiting if other.partition == portion.partition]
        # The ids continue after the last stored message, not after the previous portion: if another thread
        # has sent a message, the waiting portions are encoded again, and these ids are right from the start.
        first = publisher.queue.ids.following + sum(
            other.count for other in before if other.explicit_ids is None
        )
        work = partial(encode_portion, portion, self._prefix(publisher), first, self._codec)
        # One thread makes the copies, one portion ahead, so that it reuses memory just freed. New pages for
        # every entry would cost as much as the checksum.
        self._is_shared = self._codec != 0 or not portion.is_copied
        self._ahead.add(work, is_large=self._is_large)
        self._waiting.append(portion)

    def _store(self, encoded: Encoded) -> None:
        portion, prefix, first, entry = encoded
        publisher = self._publisher(portion.partition)
        if entry.size > publisher.max_size:
            self._store_parts(portion, entry.size, publisher.max_size)
            return
        ids, count = portion.explicit_ids, portion.count
        queue = publisher.queue
        try:
            queue.lock.acquire()
            client_threads.checks(publisher.check_open)()
            queue.make_way()  # for messages of other threads, which have lower ids
            if self._prefix(publisher) is not prefix or (ids is None and queue.ids.following != first):
                _, prefix, first, entry = self._encode(portion)
            low, high, highest = ids or (first, first + count - 1, first + count - 1)
            out = PendingEntry(entry, count, low, high, None, True)
            out.highest = highest
            if self._txn is not None:
                out.part = self._part(publisher, entry)
            queue.encoder.finish(out)
            fits = count == 1 or not isinstance(out.error, MessageTooBig)
            if fits:
                if ids is None:
                    queue.ids.following = first + count
                out.attempted = True
                out.began = publisher.session.monotonic()
                self._current = out, portion
                queue.append_entry(out)
                if out.error is not None:
                    self._current = None
                    publisher.meter.failed(count)
                    raise out.error
                self._record_stored(out, portion)
        finally:
            queue.lock.release()
        if not fits:  # because encryption made it larger
            self._store_parts(portion, entry.size, publisher.max_size)

    def _store_parts(self, portion: Portion, size: int, limit: int) -> None:
        count = portion.count
        if count == 1:
            raise too_big(f"value {portion.numbers[0]}", size, limit)
        self._store(self._encode(portion.part(0, count // 2)))
        self._store(self._encode(portion.part(count // 2, count)))

    def _part(self, publisher: Publisher, entry: EncodedEntry) -> TopicPart:
        assert self._txn is not None
        if not entry.flags & FLAG_TXN:
            raise NotAllowedError(
                "an entry that was encrypted elsewhere cannot be sent in a transaction: its id is none of it"
            )
        return self._txn._part_of(publisher)

    def _record_stored(self, out: PendingEntry, portion: Portion) -> None:
        partition = portion.partition
        self.sent.add(self._publishers[partition].partition, out.ledger, out.entry, portion.numbers)
        if out.end_word:
            self._end_words[partition] = out.end_word
        self._current = None

    def _find_outcome(self) -> None:
        if self._current is None:
            return
        out, portion = self._current
        queue = self._publishers[portion.partition].queue
        try:
            queue.lock.acquire()
            if queue.log.was_stored(out) and not self.sent.ends_with(out.ledger, out.entry):
                queue.ids.last = out.last
                self._record_stored(out, portion)
        finally:
            queue.lock.release()

    def _noted(self, error: BaseException) -> BaseException:
        error.stored = self.sent  # type: ignore[attr-defined]
        if self.sent:
            error.add_note(
                f"{len(self.sent)} messages were stored before; the error's `stored` has their ids"
            )
        return error


V = TypeVar("V")
WINDOW: Final = 1 << 16
"""Messages processed together: an iterable is read in such portions, and keys are grouped within them."""
_NONE: Final = type(None)


class OptionColumns(NamedTuple):
    """The options of messages: an iterable for each option, or None."""

    keys: Iterable[str | None] | None
    ordering_keys: Iterable[str | None] | None
    properties: Iterable[dict[str, str] | None] | None
    event_times: Iterable[int | None] | None
    sequence_ids: Iterable[int] | None


class Rows:
    """The messages of one entry or of one portion: a list for each column, or None.

    Attributes:
        sequence_ids: explicit ones, or None.
        numbers: the indexes of the values.
        partition: their partition; 0 without partitions.
    """

    is_copied = True

    __slots__ = (
        "event_times",
        "keys",
        "nulls",
        "numbers",
        "ordering_keys",
        "partition",
        "properties",
        "sequence_ids",
        "values",
    )

    def __init__(
        self,
        numbers: Sequence[int],
        values: list[bytes],
        nulls: list[bool] | None = None,
        keys: list[str | None] | None = None,
        ordering_keys: list[str | None] | None = None,
        properties: list[dict[str, str] | None] | None = None,
        event_times: list[int] | None = None,
        sequence_ids: list[int] | None = None,
    ) -> None:
        self.numbers = numbers
        self.values = values
        self.nulls = nulls
        self.keys = keys
        self.ordering_keys = ordering_keys
        self.properties = properties
        self.event_times = event_times
        self.sequence_ids = sequence_ids
        self.partition = 0

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def explicit_ids(self) -> tuple[int, int, int] | None:
        """The first, last and highest sequence id if they are explicit."""
        ids = self.sequence_ids
        return None if ids is None else (ids[0], ids[-1], max(ids))

    def encode(self, first: int, prefix: ProducerPrefix, codec: int) -> EncodedEntry:
        """Return the entry; ``first`` is its first automatic sequence id."""
        options = self._columns()[2:]
        if not codec and options.count(None) == len(options):
            return encode_plain(self.values, first, prefix)
        content = EntryContent(
            self.values,
            first,
            keys=self.keys,
            ordering_keys=self.ordering_keys,
            properties=self.properties,
            event_times=self.event_times,
            null_values=self.nulls,
            sequence_ids=self.sequence_ids,
        )
        return encode(content, prefix, codec)

    def part(self, start: int, stop: int) -> Rows:
        rows = self._with([None if column is None else column[start:stop] for column in self._columns()])
        rows.partition = self.partition
        return rows

    def sticky_keys(self) -> list[str]:
        none: list[str | None] = [None] * self.count
        pairs = zip(self.ordering_keys or none, self.keys or none, strict=True)
        return [ordering_key or key or "" for ordering_key, key in pairs]

    def grouped(self, marks: Sequence[Hashable]) -> list[tuple[Any, Rows]]:
        """Group the messages by marks, in the order of first appearance; the order within a group is kept."""
        codes = {mark: code for code, mark in enumerate(dict.fromkeys(marks))}
        if len(codes) == 1:
            return [(marks[0], self)]
        coded = list(map(codes.__getitem__, marks))
        order = sorted(range(self.count), key=coded.__getitem__)  # stable
        pick = itemgetter(*order)
        rows = self._with([None if column is None else list(pick(column)) for column in self._columns()])
        ends = accumulate(Counter(coded).values(), initial=0)
        return [
            (mark, rows.part(start, end)) for mark, (start, end) in zip(codes, pairwise(ends), strict=True)
        ]

    def partitions(self, routing: BulkRouting) -> list[int]:
        if not routing.is_custom:
            keys = self.keys or [None] * self.count
            distinct = list(dict.fromkeys(keys))
            return list(map(dict(zip(distinct, routing.of_keys(distinct), strict=True)).__getitem__, keys))
        columns = self._columns()[1:]
        given: list[list[Any]] = [[None] * self.count if column is None else column for column in columns]
        return [routing.choose(*row) for row in zip(*given, strict=True)]

    def _with(self, columns: list[Any]) -> Rows:
        return Rows(*columns)

    def _columns(self) -> list[Any]:
        return [
            self.numbers,
            self.values,
            self.nulls,
            self.keys,
            self.ordering_keys,
            self.properties,
            self.event_times,
            self.sequence_ids,
        ]


def entries_of(
    contents: Iterable[Any],
    options: OptionColumns,
    encode_value: Callable[[Any], bytes] | None,
    limits: BulkLimits,
    routing: BulkRouting | None = None,
    common: dict[str, str] | None = None,
) -> Iterator[Rows]:
    """Cut columns into entries.

    Args:
        contents: the values, None for a null value.
        options: the other columns, each of the same length.
        encode_value: the schema's encoding; None if the values are payloads.
        limits: of an entry.
        routing: chooses partitions; None without partitions.
        common: properties of all messages.

    Raises:
        ValueError: an option of a wrong type or value, or columns of different lengths.
        TypeError: a value that the schema rejects.
    """
    _check_lengths(contents, options)
    for window in _windows(contents, options, encode_value):
        if common:
            own = window.properties or [None] * window.count
            window.properties = [common if each is None else {**common, **each} for each in own]
        routed = [(0, window)] if routing is None else window.grouped(window.partitions(routing))
        for partition, rows in routed:
            # An entry has messages of one partition, and with `KeyBased` of one key.
            groups = rows.grouped(rows.sticky_keys()) if limits.key_based else [("", rows)]
            for _, group in groups:
                start = 0
                for stop in _cuts(group.values, limits):
                    entry = group.part(start, stop)
                    # Without a key, whole entries go to the partitions in turn, as batches of `send` do.
                    entry.partition = routing.next_partition() if routing and partition == TURN else partition
                    yield entry
                    start = stop


def _cuts(values: list[bytes], limits: BulkLimits) -> Iterator[int]:
    """Yield the index after the last message of each entry."""
    sizes = list(accumulate(map(len, values), initial=0))
    at, count = 0, len(values)
    while at < count:
        stop = bisect_right(sizes, sizes[at] + limits.payload, at + 1, min(at + limits.messages, count) + 1)
        at = max(stop - 1, at + 1)
        yield at


def _check_lengths(contents: Iterable[Any], options: OptionColumns) -> None:
    """Check lengths that are known before anything is stored."""
    if not isinstance(contents, Sequence):
        return
    for name, column in zip(_NAMES, options, strict=True):
        if isinstance(column, Sequence) and len(column) != len(contents):
            raise ValueError(f"{name} has {len(column)} elements for {len(contents)} values")


_NAMES: Final = ("partition_keys", "ordering_keys", "properties", "event_timestamps", "sequence_ids")


def _windows(
    contents: Iterable[Any], options: OptionColumns, encode_value: Callable[[Any], bytes] | None
) -> Iterator[Rows]:
    values = iter(contents)
    columns = [None if column is None else iter(column) for column in options]
    base = 0
    while window := list(islice(values, WINDOW)):
        payloads, nulls = _payloads(window, encode_value)
        parts = []
        for name, column, check in zip(_NAMES, columns, _CHECKS, strict=True):
            part = None if column is None else list(islice(column, len(window)))
            if part is not None and len(part) != len(window):
                raise ValueError(f"{name} ends after {base + len(part)} elements, and there are more values")
            parts.append(None if part is None else check(part, name, base))
        yield Rows(range(base, base + len(window)), payloads, nulls, *parts)
        base += len(window)
    for name, column in zip(_NAMES, columns, strict=True):
        if column is not None and next(column, _NAMES) is not _NAMES:
            raise ValueError(f"{name} has more than {base} elements, and there are {base} values")


def _payloads(
    window: list[Any], encode_value: Callable[[Any], bytes] | None
) -> tuple[list[bytes], list[bool] | None]:
    # Three cases, the quickest first: all are bytes, and the list itself serves; bytes and None; and values
    # that are encoded one by one, whose schema may return anything.
    kinds = set(map(type, window))
    if encode_value is None and kinds == {bytes}:
        return window, None
    nulls = [value is None for value in window] if _NONE in kinds else None
    if encode_value is None and kinds <= {bytes, _NONE}:
        return [value or b"" for value in window], nulls
    encode_value = encode_value or _as_bytes
    payloads = [b"" if value is None else encode_value(value) for value in window]
    for payload in payloads:
        if payload.__class__ is not bytes:
            raise TypeError(f"the schema encoded a value to {type(payload).__name__}, not to bytes")
    return payloads, nulls


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return bytes(value)
    raise TypeError(f"a value is {type(value).__name__}, not bytes; encode it, or give the producer a schema")


def _texts(column: list[Any], name: str, base: int) -> list[str | None] | None:
    _check_kinds(column, name, base, {str, _NONE})
    if "" in column:  # not set, as in `Producer.send`
        column = [text or None for text in column]
    return None if column.count(None) == len(column) else column


def _maps(column: list[Any], name: str, base: int) -> list[dict[str, str] | None] | None:
    _check_kinds(column, name, base, {dict, _NONE})
    if not any(column):
        return None
    for number, fields in enumerate(column, base):
        if fields:
            for text in (*fields, *fields.values()):
                if not isinstance(text, str):
                    raise ValueError(f"{name}[{number}] holds {text!r}, which is not a str")
    return column


def _times(column: list[Any], name: str, base: int) -> list[int] | None:
    _check_kinds(column, name, base, {int, _NONE})
    column = [time or 0 for time in column] if None in column else column
    _check_numbers(column, name)
    return column if any(column) else None


def _ids(column: list[Any], name: str, base: int) -> list[int]:
    _check_kinds(column, name, base, {int})
    _check_numbers(column, name)
    return column


def _check_kinds(column: list[Any], name: str, base: int, kinds: set[type[Any]]) -> None:
    if set(map(type, column)) <= kinds:
        return
    for number, value in enumerate(column, base):
        if type(value) not in kinds:
            wanted = " or ".join(sorted("None" if kind is _NONE else kind.__name__ for kind in kinds))
            raise ValueError(f"{name}[{number}] is {type(value).__name__}, not {wanted}")


def _check_numbers(column: list[int], name: str) -> None:
    if min(column) < 0 or max(column) > INT64_MAX:
        raise ValueError(f"{name} must be between 0 and {INT64_MAX}, not {min(column)} to {max(column)}")


_CHECKS: Final[tuple[Callable[[list[Any], str, int], Any], ...]] = (_texts, _texts, _maps, _times, _ids)

"""Messages on their way to the log: the batch in which they wait, the entry that is made of them, and the
results for their senders.

Hot: `Producer.send_async` works on the fields of `BatchContainer`.

The queue that they are in: its states, and the ages of the messages in it. A state says which hot paths are
open, the table of `TRANSITIONS` what an event makes of it, and `SendDeadline` when the oldest message fails.

`EncodeAhead` encodes the next entries on a second thread while the current one is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum, auto
from functools import partial
from itertools import islice, repeat
from operator import is_, itemgetter

from embeddedpulsar._engine.format.entry import EncodedEntry, EntryContent
from embeddedpulsar._engine.platform import threads, timing
from embeddedpulsar._engine.platform.access import named
from embeddedpulsar._engine.platform.timing import is_within_another_call
from embeddedpulsar.client.arguments import DELIVER_AT, NO_OPTIONS
from embeddedpulsar.exceptions import AlreadyClosed, Interrupted, LockTimeout, PulsarException, result_of
from embeddedpulsar.message_id import MessageId, make
from embeddedpulsar.records import TYPE_CHECKING, Generic, TypeVar
from embeddedpulsar.results import Result

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from queue import SimpleQueue
    from typing import Any, Final, NoReturn, TypeAlias

    from embeddedpulsar._engine.format.entry_decoder import Chunk
    from embeddedpulsar.client.arguments import Options
    from embeddedpulsar.client.client_threads import ClientLog
    from embeddedpulsar.client.transaction import TopicPart, Transaction

R = TypeVar("R")

WORTH_A_THREAD: Final = 256 << 10
"""Bytes of an entry from which on the next ones are encoded ahead: passing one to a thread takes 0.05 ms."""
AHEAD: Final = 2
"""Large entries that are encoded while one is stored. With one, each thread often waits for the other."""


class _Job(Generic[R]):
    """One entry to be encoded by the first free thread; `done` is None if `pop` encodes it."""

    __slots__ = ("done", "encode")

    def __init__(self, encode: Callable[[], R], done: SimpleQueue[R | BaseException] | None) -> None:
        self.encode = encode
        self.done = done

    def run(self) -> None:
        assert self.done is not None
        try:
            self.done.put(self.encode())
        except BaseException as error:
            self.done.put(error)  # for `pop`
            if not isinstance(error, Exception):
                raise  # Ctrl-C ends the thread that encodes, because `pop` may never ask for this entry


class EncodeAhead(Generic[R]):
    """Entries, encoded by two threads and taken in order.

    Checksums, codecs and writes release the interpreter, so large entries are checksummed while one is
    copied into the file. The second thread lives as long as the call and runs no code of the application. If
    the next entry is not ready, `pop` may encode the one after it instead of sleeping, because waking a
    thread for every entry costs more than half a checksum.
    Only one thread may call the methods. Jobs must not depend on each other.
    """

    __slots__ = ("_has_queue", "_jobs", "_todo")

    def __init__(self) -> None:
        self._jobs: deque[_Job[R]] = deque()
        self._has_queue = False
        self._todo: SimpleQueue[_Job[R] | None]

    def add(self, encode: Callable[[], R], *, is_large: bool) -> None:
        """Add an entry after the others.

        Args:
            encode: returns the entry; called once, on either thread.
            is_large: whether to use the second thread; otherwise `pop` encodes it.
        """
        if not is_large or not self._has_thread():
            self._jobs.append(_Job(encode, None))
            return
        from embeddedpulsar._engine.platform.threads import SimpleQueue

        job = _Job(encode, SimpleQueue())
        self._jobs.append(job)
        self._todo.put(job)

    def _has_thread(self) -> bool:
        if not self._has_queue:
            from embeddedpulsar._engine.platform.threads import SimpleQueue

            self._todo = SimpleQueue()
            self._has_queue = (
                True  # before the start: after a Ctrl-C right behind it, `close` still ends the thread
            )
            try:
                threads.start_daemon(self._run, "encode")
            except RuntimeError:
                self._has_queue = False
                return False  # no thread can start, or the interpreter is ending: `pop` encodes all entries
        return True

    def pop(self, *, helps: bool = True) -> R:
        """Return the first entry, or raise the exception of its encoding.

        Args:
            helps: whether to encode other entries while it is not ready.
        """
        job = self._jobs.popleft()
        if job.done is None:
            return job.encode()
        while helps and job.done.empty():
            other = self._unclaimed()
            if other is None:
                break
            other.run()
        done = job.done.get()
        if isinstance(done, BaseException):
            raise done
        return done

    def _unclaimed(self) -> _Job[R] | None:
        from queue import Empty

        try:
            return self._todo.get_nowait()
        except Empty:
            return None

    def close(self) -> None:
        """Ask the thread to end. It may still encode one entry, and refers to nothing else."""
        self._jobs.clear()
        if self._has_queue:
            while self._unclaimed() is not None:
                pass
            self._todo.put(None)

    def _run(self) -> None:
        while (job := self._todo.get()) is not None:
            job.run()
            job = None


Item: TypeAlias = "tuple[Any, ...]"
"""(payload, callback), or (payload, callback, properties, key), or (payload, callback, *options)."""
VALUE, CALLBACK = 0, 1
FIRST_OPTION = 2
KEYED_LENGTH = 4
"""Of an item with properties and a key alone: the other options have most columns and are rare."""
PLAIN_PART_LENGTH: Final = 3
"""Of an item of a transaction without options: (payload, callback, part)."""
FULL_PART_LENGTH: Final = FIRST_OPTION + len(NO_OPTIONS) + 1
"""With options: (payload, callback, *options, part)."""
_NO_MORE: Final = NO_OPTIONS[KEYED_LENGTH - FIRST_OPTION :]


def part_of(item: Any) -> TopicPart | None:
    """The transaction of an item, as its producer takes part in it; None for one without.

    Example:
        >>> part_of((b"a", None)), part_of((b"a", None, "a part"))
        (None, 'a part')
    """
    if item.__class__ is tuple and (len(item) == PLAIN_PART_LENGTH or len(item) == FULL_PART_LENGTH):
        part: TopicPart = item[-1]
        return part
    return None


def is_unbatchable(item: Any) -> bool:
    """Whether an item is a message with a delivery time, which must not delay other messages."""
    return item.__class__ is tuple and len(item) > KEYED_LENGTH and bool(item[FIRST_OPTION + DELIVER_AT])


def item_of(
    value: bytes, callback: SendCallback | None, options: Options | None, part: TopicPart | None = None
) -> bytes | Item:
    """The item of a message for a batch, as short as its options allow.

    The longest item of a batch decides how many columns all of them have.

    Example:
        >>> item_of(b"a", None, (None, "k", None, 0, 0, 0, False))
        (b'a', None, None, 'k')
    """
    if part is not None:
        return (value, callback, part) if options is None else (value, callback, *options, part)
    if options is None:
        return value if callback is None else (value, callback)
    if options[KEYED_LENGTH - FIRST_OPTION :] == _NO_MORE:
        options = options[: KEYED_LENGTH - FIRST_OPTION]  # type: ignore[assignment]
    return (value, callback, *options)


def payload_of(item: Any) -> bytes:
    """The payload of an item; empty for a group that is already encoded."""
    if item.__class__ is tuple:
        return item[0]  # type: ignore[no-any-return]
    return b"" if item.__class__ is list else item


def callback_of(item: Any) -> SendCallback | None:
    """The callback of an item; None if it has none."""
    return item[CALLBACK] if item.__class__ is tuple else None


SHUT: Final = -1
"""In place of a limit, which no payload is within, or of a journal word, which no topic has."""
_PLAIN: Final = {bytes}
_TUPLES: Final = {tuple}
_value_of: Final = itemgetter(VALUE)
_last_of: Final = itemgetter(-1)
_BEGIN_S: Final = 0.05
"""Seconds for which callers that do not wait try to begin a transaction."""
_FEW: Final = 16
"""If fewer messages of a size fit into a batch, each of them is measured."""


class BatchContainer:
    """A list of messages, and what triggers that it becomes a batch: number, bytes, and age.

    Senders append to `items` without a lock (one atomic call). The thread that flushes holds the producer's
    lock and removes messages from the front. An item is the payload alone, or a tuple (payload, callback,
    options).

    The container measures its messages only now and then, under the producer's lock. Each time it allots
    the rest of ``max_bytes`` to as many messages of at most `share` bytes as fit: so many may be appended
    without the lock and without accounting, before the sender of the last one has them measured (`is_full`).
    The sender of a larger message takes the lock, too. `share` follows the sizes that were seen, and becomes
    smaller with the room left. So the limits are exact for one sender, and most messages cost no accounting.
    If several threads add large messages at once, each message is measured (`State.COUNTING`) until the
    container is flushed.

    Invariants: `items` is the same list throughout. A list at its front is a group of encoded entries that
    could not be stored yet; the next flush begins with it.

    Attributes:
        share: largest payload a sender may append without the lock; set by the queue.
        limit: its value while that is allowed; -1 if the options of the producer do not allow it.
        trigger: number of items at which the sender must call `on_full`.
        armed: whether the publish-delay timer runs.
        mixed: whether some item may be a tuple; a hint only, because encoding detects tuples.
        counted: number of items whose bytes are counted.
        has_unbatchable: whether some item may be a message with a delivery time, which is a batch by itself;
            never reset, because senders set it without the lock.
        has_parts: whether some item may be one of a transaction; a batch is of one, or of none. Likewise.
        partition: of the topic; 0 without partitions.
        start_timer: starts the publish-delay timer.
        on_full: called by the sender that reached `trigger`.
    """

    __slots__ = (
        "_bytes",
        "_fair",
        "_usual",
        "armed",
        "counted",
        "has_parts",
        "has_unbatchable",
        "items",
        "limit",
        "max_bytes",
        "max_messages",
        "mixed",
        "on_full",
        "partition",
        "share",
        "start_timer",
        "trigger",
    )

    start_timer: Callable[[], object]
    on_full: Callable[[], object]

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.items: list[Any] = []
        self.trigger = self.max_messages = max_messages
        self.max_bytes = max_bytes
        # All messages of at most the fair share fit, whatever their number.
        self._fair = self._usual = self.share = self.limit = max_bytes // max_messages
        self.armed = self.mixed = self.has_unbatchable = self.has_parts = False
        self.partition = 0
        self.counted = 0
        self._bytes = 0

    def has_room(self, size: int) -> bool:
        """Whether a message of ``size`` bytes fits into the batch. Call under the producer's lock."""
        self._count_up()
        return not self.items or self._bytes + size <= self.max_bytes

    def add(self, item: bytes | Item, size: int) -> bool:
        """Append a message, and return whether the container is full. Call under the producer's lock."""
        if item.__class__ is tuple:
            self.mixed = True
        self.items.append(item)
        if self._usual < size <= self.max_bytes // _FEW:
            self._usual = size + (size >> 3)
        return self.is_full()

    def is_full(self) -> bool:
        """Measure the messages, and allot the room that is left. Call under the producer's lock."""
        self._count_up()
        left, room = self.max_messages - len(self.items), self.max_bytes - self._bytes
        if left <= 0 or room <= 0:
            return True
        limit = min(self._usual, max(room // 2, room // left))
        self.trigger = len(self.items) + (min(left, room // limit) if limit else left)
        if self.limit != SHUT:
            self.limit = limit
            if self.share != SHUT:
                self.share = limit
        return False

    def add_unbatchable(self, item: Item) -> None:
        """Append a message that needs its own entry and must be stored after the messages before it."""
        self.has_unbatchable = self.mixed = True
        self.items.append(item)

    def cut(self, start: int) -> int:
        """Return how many of the messages from index ``start`` on form the next batch."""
        items = self.items
        count = min(self.max_messages, len(items) - start)
        if self.has_unbatchable:
            for index in range(count):
                if is_unbatchable(items[start + index]):
                    count = max(index, 1)
                    break
        if self.has_parts and count > 1:
            count = _of_one_part(items, start, count)
        if not self.counted and self.share == self._fair:
            return count  # no message is larger than the fair share
        self._count_up()
        if count == len(items) and self._bytes <= self.max_bytes:
            return count
        total = 0
        for index in range(count):
            size = len(payload_of(items[start + index]))
            if index and total + size > self.max_bytes:
                return index
            total += size
        return count

    def begin_next(self) -> None:
        """Measure what is left after messages left from the front. Call under the producer's lock."""
        if 2 * self._bytes < self.counted * self._usual:
            self._usual = max(self._usual >> 1, self._fair)  # larger messages have become rare
        self.counted = self._bytes = 0
        if self.items:
            self.is_full()
        elif self.limit != SHUT:
            self.trigger = self.max_bytes // self._usual if self._usual > self._fair else self.max_messages
            self.limit = self._usual
            if self.share != SHUT:
                self.share = self._usual

    def _count_up(self) -> None:
        new = self.items[self.counted :]
        if not new:
            return
        types = set(map(type, new))
        payloads = new if types == _PLAIN else map(_value_of if types == _TUPLES else payload_of, new)
        self._bytes += sum(map(len, payloads))
        self.counted += len(new)


def _of_one_part(items: list[Any], start: int, count: int) -> int:
    """How many of ``count`` items are of the transaction of the first, or of none, as that."""
    part = part_of(items[start])
    if part is None:
        for index in range(1, count):
            if part_of(items[start + index]) is not None:
                return index
        return count
    rows = items[start : start + count]
    try:
        is_whole = all(map(is_, map(_last_of, rows), repeat(part)))  # nearly always
    except IndexError:  # an empty payload without a transaction
        is_whole = False
    if is_whole:
        return count
    for index in range(1, count):
        item = rows[index]
        if item.__class__ is not tuple or item[-1] is not part:
            return index
    return count


def shut_batch(partition: int) -> BatchContainer:
    """Return the batch of a partition that is not attached. It accepts no message."""
    batch = BatchContainer(1, 0)
    batch.share = batch.limit = SHUT
    batch.partition = partition
    return batch


class DeferredBatch(BatchContainer):
    """The messages of a transaction that has stored nothing so far: one batch, of one producer.

    Role: a transaction that is nothing but this is committed by one append, without an id (decision 0334).
    It is the first of `SendQueue.singles`, so later messages stay behind it. Whatever stores the queue, such
    as the publish delay, begins the transaction and makes entries of it; a commit makes one like any other.
    Invariants: as for `BatchContainer`. What encodes it first sets `trigger` to 0: a sender whose message
    came too late sees that behind its append, and sends it once more (`Publisher.fill_deferred`).

    Attributes:
        has_callbacks: whether a message may have one: then another thread may wait for it.
        out: the entry, once a commit has made it; it is in the queue, or stored, or has failed.
        part: of the transaction, once that has begun; None before, and if that failed with `error`.
        publisher: of the producer.
        taken: so many messages are in entries.
        transaction: of the messages.
    """

    is_deferred = True
    __slots__ = ("error", "has_callbacks", "out", "part", "publisher", "taken", "transaction")

    def __init__(self, transaction: Transaction, publisher: Any, batch: BatchContainer) -> None:
        # As that of the base class, and of an empty batch of the producer.
        self.items = []
        self.max_messages, self.max_bytes, self.trigger = batch.max_messages, batch.max_bytes, batch.trigger
        self._fair, self._usual = batch._fair, batch._usual
        self.share = self.limit = batch.limit
        self.mixed = self.has_unbatchable = self.has_parts = False
        self.counted = self._bytes = self.taken = 0
        self.transaction, self.publisher = transaction, publisher
        self.has_callbacks = False
        self.out: PendingEntry | None = None
        self.part: TopicPart | None = None
        self.error: BaseException | None = None

    def begin(self, timeout_s: float) -> bool:
        """Begin the transaction, as something is about to be stored in it. Under the producer's lock.

        Returns:
            Whether it is known what becomes of the messages; False if another process stays in a lock.

        Raises:
            LockTimeout: likewise, if ``timeout_s`` is not 0.
        """
        if self.part is None and self.error is None:
            try:
                self.part = timing.within(timeout_s or _BEGIN_S, self.transaction._part_of, self.publisher)
            except LockTimeout:
                if timeout_s:
                    raise
                return False
            except (PulsarException, OSError) as error:
                self.error = named(error)
        return True

    def shut(self) -> None:
        """Accept no more messages: they are about to be encoded."""
        self.share = SHUT
        self.trigger = 0

    def drain(self) -> list[Item]:
        """Its messages, as items of the transaction, which take its place in the queue."""
        self.shut()
        self.taken = len(self.items)
        return [(payload_of(item), callback_of(item), self) for item in self.items[: self.taken]]

    def remainder(self) -> DeferredBatch:
        """The messages that are in no entry, apart."""
        rest = DeferredBatch(self.transaction, self.publisher, self)
        rest.items, rest.mixed = self.items[self.taken :], True
        return rest

    def check_open(self) -> None:
        """Refuse the entry of a commit if it must not be stored any more. Under the producer's lock."""
        self.transaction._engine.check_appendable()

    def note_stored(self, ledger: int, entry: int, end_word: int) -> None:
        """The entry that a commit made is stored: that is the decision."""
        self.transaction._engine.note_appended()

    def fail(self, error: BaseException) -> None:
        """Note that messages were not stored: a commit becomes an abort."""
        self.transaction._engine.fail(error)


SendCallback = Callable[[Result, MessageId], object]


class ErrorTaker:
    """A callback of a send that receives the exception, where an application's callback gets its `Result`.

    Recognized by its class and not by a method, because an application's callable may have any method.
    """

    __slots__ = ()

    def __call__(self, result: Result, message_id: MessageId) -> None:
        """Called when the message is stored."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__()")

    def failed(self, error: BaseException, message_id: MessageId) -> None:
        """Called when the message is not stored; the id contains its partition only."""
        raise NotImplementedError(f"{type(self).__name__} does not define failed()")


class PlainWaiter:
    """Takes the place of the callback for a synchronous send of a batching producer."""

    __slots__ = ("index", "pending_entry")

    def __init__(self) -> None:
        self.pending_entry: PendingEntry | None = None
        self.index = -1

    def __call__(self, result: object, message_id: object) -> None:
        """Never called: the callback thread sets the fields instead."""


class PendingEntry:
    """An entry between its encoding and the last callback of its messages.

    Invariants: `callbacks` has one item per message, or is None if no message has a callback. The publishing
    thread sets exactly one of `error` and (`ledger`, `entry`) before it passes the object on; afterwards only
    the callback thread uses it.

    Attributes:
        first: sequence id of the first message; together with the producer's name it identifies the entry.
        last: sequence id of the last message.
        chunks: the entries of a message that is stored as several; `encoded` is the last of them, and None
            until the others are appended. None for other messages.
        began: when it was encoded, in seconds, until it is stored; 0.0 if that is not measured.
        highest: largest sequence id of all messages.
        is_duplicate: whether it was stored before, in another entry.
        attempted: whether an append was begun; after an interrupt its outcome may be unknown.
        end_word: the tail to wait for if the producer's level requires a flush; 0 for none.
        reserved: bytes counted against the client's memory limit until the entry is stored or has failed.
        part: of which transaction it is, as its producer takes part in it; None for none.
    """

    __slots__ = (
        "attempted",
        "batched",
        "began",
        "callbacks",
        "chunks",
        "count",
        "encoded",
        "end_word",
        "entry",
        "error",
        "first",
        "highest",
        "is_duplicate",
        "last",
        "ledger",
        "part",
        "reserved",
    )

    def __init__(
        self,
        encoded: EncodedEntry | None,
        count: int,
        first: int,
        last: int,
        callbacks: list[SendCallback | None] | None,
        batched: bool,
        error: BaseException | None = None,
    ) -> None:
        self.encoded = encoded
        self.count = count
        self.first = first
        self.last = self.highest = last
        self.is_duplicate = False
        self.callbacks = callbacks
        self.batched = batched
        self.error = error
        self.attempted = False
        self.chunks: Chunks | None = None
        self.began = 0.0
        self.ledger = self.entry = -1
        self.end_word = 0
        self.reserved = 0
        self.part: TopicPart | None = None

    @property
    def is_stored(self) -> bool:
        return self.entry >= 0 or self.is_duplicate

    def message_id(self, index: int, partition: int) -> MessageId:
        """Return the id of message ``index``; -1 for the only one of an entry that is not a batch.

        The id of a duplicate has no position. That of a chunked message includes that of its first entry.
        """
        if self.is_duplicate:
            return make(-1, -1, -1, partition, 0)
        message_id = make(self.ledger, self.entry, index, partition, self.count if index >= 0 else 0)
        if self.chunks is not None and self.chunks.earlier:
            message_id._first_chunk = make(*self.chunks.earlier[0], -1, partition, 0)
        return message_id

    def let_go(self) -> None:
        """Release the payload of a chunked message that is stored or has failed."""
        if self.chunks is not None:
            self.chunks.let_go()
        if self.encoded is not None:
            self.encoded = self.encoded._replace(parts=[])

    def call_back(self, partition: int, log: ClientLog) -> None:
        """Call the callbacks, in the order of the messages. An exception of a callback is logged."""
        callbacks, self.callbacks = self.callbacks, None
        if callbacks is None:
            return
        error = self.error
        batched = self.batched and error is None
        for index, callback in enumerate(callbacks):
            if callback is None:
                continue
            try:
                message_id = self.message_id(index if batched else -1, partition)
                if error is None:
                    callback(Result.Ok, message_id)
                else:
                    tell_failure(callback, error, message_id)
            except BaseException:
                log.exception("A send callback failed: %r", callback)


def tell_failure(callback: SendCallback, error: BaseException, message_id: MessageId) -> None:
    """Report to a callback that its message was not stored, in the form that the callback expects."""
    if isinstance(callback, ErrorTaker):
        callback.failed(error, message_id)
    else:
        callback(result_of(error), message_id)


def tell_sender(error: BaseException) -> NoReturn:
    """Raise the error of an append in the form that the sender expects."""
    told: BaseException = error
    try:
        if isinstance(error, KeyboardInterrupt) and not is_within_another_call():
            raise Interrupted(
                "the send was interrupted; it is not known if the message was stored"
            ) from error
        if isinstance(error, OSError):
            told = named(error)
        if told is not error:
            raise told from error
        raise error
    finally:
        # The error refers to this frame. If the frame referred to the error, the segments that the frames
        # below hold would stay open until the garbage collector runs.
        del error, told


def unanswered(is_closed: bool) -> PulsarException:
    """Return the error for a sender that cannot wait until its message is stored."""
    if is_closed:
        return AlreadyClosed("the producer was closed while it sent")
    return PulsarException(
        "a signal handler or finalizer sent a message while its own thread was storing others of this "
        "producer: the others are stored first, and the message after them; use send_async there"
    )


def fate_of(item: Any, error: BaseException) -> PendingEntry:
    """Return a failed entry for a message that was not encoded."""
    callback = callback_of(item)
    out = PendingEntry(None, 1, -1, -1, None if callback is None else [callback], False, error)
    out.part = part_of(item)
    return out


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
        self, plan: ChunkPlan, packed: bytes, content: EntryContent, encode: Encode, *, is_pure: bool
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
                    yield ahead.pop()
            for _ in range(waiting):
                yield ahead.pop()
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


class ChunkPlan:
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


_MARKS = 100
"""Fractions of the timeout to which the age is known."""


class State(IntEnum):
    """What the next message of a producer has to observe."""

    OPEN = auto()
    """Nothing."""
    SAMPLED = auto()
    """The time of the next messages that are sent one by one is measured."""
    QUEUED = auto()
    """Messages or encoded entries are queued, which must be stored first."""
    COUNTING = auto()
    """The batch has large messages, so the bytes of each further one count."""
    HELD_UP = auto()
    """The topic is locked, or belongs to the parent of a forked child: everything is queued."""
    CLOSED = auto()
    """The producer is closed."""


class Event(IntEnum):
    """What changes the state."""

    SAMPLE = auto()
    QUEUE = auto()
    COUNT = auto()
    HOLD_UP = auto()
    STORED = auto()
    """Nothing is queued that must be stored first. The caller checks the queue again afterwards."""
    CLOSE = auto()


def _row(sample: State, queue: State, count: State, hold_up: State, stored: State) -> dict[Event, State]:
    return dict(zip(Event, (sample, queue, count, hold_up, stored, State.CLOSED), strict=True))


_S: Final = State
TRANSITIONS: Final = {
    #                    SAMPLE       QUEUE        COUNT        HOLD_UP     STORED
    _S.OPEN: _row(_S.SAMPLED, _S.QUEUED, _S.COUNTING, _S.HELD_UP, _S.OPEN),
    _S.SAMPLED: _row(_S.SAMPLED, _S.QUEUED, _S.COUNTING, _S.HELD_UP, _S.OPEN),
    _S.QUEUED: _row(_S.QUEUED, _S.QUEUED, _S.COUNTING, _S.HELD_UP, _S.OPEN),
    _S.COUNTING: _row(_S.COUNTING, _S.COUNTING, _S.COUNTING, _S.HELD_UP, _S.OPEN),
    _S.HELD_UP: _row(_S.HELD_UP, _S.HELD_UP, _S.HELD_UP, _S.HELD_UP, _S.OPEN),
    _S.CLOSED: _row(_S.CLOSED, _S.CLOSED, _S.CLOSED, _S.CLOSED, _S.CLOSED),
}
"""The state after each event. A state that closes more stays until `Event.STORED`."""

PATHS: Final = {
    _S.OPEN: (True, True),
    _S.SAMPLED: (False, True),
    _S.QUEUED: (False, True),
    _S.COUNTING: (False, False),
    _S.HELD_UP: (False, False),
    _S.CLOSED: (False, False),
}
"""Whether a message may be appended at once, and whether it may join the batch without the lock."""


class SendDeadline:
    """The ages of queued messages, kept as marks: a mark is a number of messages and a time.

    Determines when the send timeout of the oldest message is over, without a time in every message.
    Times are those of the caller's clock, in seconds. Empty while no message is queued, which is usual.
    A message between two marks counts as old as the later mark, so no message fails too early, and each
    fails at most a hundredth of the timeout too late.

    >>> deadline = SendDeadline(30.0)
    >>> deadline.record(2, 100.0); deadline.record(3, 110.0)
    >>> deadline.at
    130.0
    >>> deadline.passed(2); deadline.at
    140.0
    >>> deadline.clear(); deadline.at is None
    True
    """

    __slots__ = ("_grain", "_out", "_timeout_s", "marks")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._grain = timeout_s / _MARKS
        self.marks: list[tuple[int, float]] = []  # few; a deque would take 0.7 KiB when empty
        self._out = 0

    def record(self, waiting: int, now: float) -> None:
        """Record that ``waiting`` messages are queued, the last of them since ``now``."""
        marks = self.marks
        if not self._timeout_s:
            return
        if not marks:
            marks.append((self._out, now))
        elif now - marks[-1][1] >= self._grain:
            marks.append((self._out + waiting - 1, now))

    def passed(self, count: int) -> None:
        """Record that the oldest ``count`` messages have left the queue."""
        self._out += count
        marks = self.marks
        while len(marks) > 1 and marks[1][0] <= self._out:
            del marks[0]

    def clear(self) -> None:
        """Record that the queue is empty."""
        self.marks.clear()

    @property
    def at(self) -> float | None:
        """The time at which the oldest message fails; None for never."""
        marks = self.marks
        if not marks:
            return None
        exact = marks[0][0] >= self._out
        return marks[0][1] + self._timeout_s + (0.0 if exact else self._grain)

"""Messages of a topic as a page shows them: by id, time, key or text, from either end, decoded by schema.

Nothing is consumed, and no topic is created. Each call reads a bounded number of messages, in a bounded
time.
"""

from __future__ import annotations

import base64
import bisect
import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.enums import ConsumerCryptoFailureAction
from embeddedpulsar.exceptions import PulsarException, Timeout
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.policy_values import json_form
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema import AutoConsumeSchema
from embeddedpulsar.server.engine import timing

if TYPE_CHECKING:
    from embeddedpulsar.client.client import Client
    from embeddedpulsar.message import Message
    from embeddedpulsar.server.served import Served

# A call returns what it found until then, and from where to go on.
SECONDS: Final = 1.5
_MOST_READ: Final = 200_000
# Entries that are read at a time towards the beginning of a topic.
_LEAST_STEP: Final = 64
_MOST_STEP: Final = 8192
_WAIT_MS: Final = 200
# Of a payload in a list of messages; the message by itself is shown in full up to the second.
PREVIEW: Final = 2048
WHOLE: Final = 1 << 20
# Of what came since the last look, so many are searched for those that a page follows.
_FILTERED: Final = 500
_HEX_ROW: Final = 16

_AUTO: Final = AutoConsumeSchema()


class Query(NamedTuple):
    """Which messages of a topic or partition.

    Attributes:
        topic: its name.
        start: an id; None for the end in ``backward`` and the beginning otherwise.
        is_inclusive: whether the message of that id belongs to them.
        is_backward: whether the newest come first.
        limit: how many at most.
        key: only those with this key; None for all.
        text: only those that contain it, in payload, key or a property; empty for all.
        is_compacted: only the newest of each key, up to where the topic was compacted.
    """

    topic: str
    start: MessageId | None = None
    is_inclusive: bool = True
    is_backward: bool = True
    limit: int = 50
    key: str | None = None
    text: str = ""
    is_compacted: bool = False


class Page(NamedTuple):
    """Messages, in the order in which they are shown.

    Attributes:
        messages: those that were found.
        next: where the search goes on behind them, exclusive; None at its end.
        read: how many were read.
        is_whole: whether the search came to its end, or to as many messages as were wanted.
    """

    messages: list[Message[bytes]]
    next: MessageId | None
    read: int
    is_whole: bool


class Start(NamedTuple):
    """Where a search begins: at an id, or None for an end. The message of the id belongs to it, or not."""

    message_id: MessageId | None
    is_inclusive: bool = True


class Positions:
    """The entries of a log as one row of numbers, which follow each other across its ledgers."""

    def __init__(self, ledgers: list[tuple[int, int]]) -> None:
        """``ledgers``: the id and the number of entries of each, the oldest first."""
        self._ids: Final = [ledger for ledger, entries in ledgers if entries]
        self._sizes: Final = [entries for _, entries in ledgers if entries]
        self._ends: Final = list(accumulate(self._sizes))
        self.end: Final = self._ends[-1] if self._ends else 0

    def number(self, ledger: int, entry: int) -> int:
        """The number of an entry, or of the first one behind it.

        Example:
            >>> positions = Positions([(3, 10), (7, 5)])
            >>> [positions.number(*entry) for entry in ((3, 9), (3, 99), (5, 0), (7, 2))]
            [9, 10, 10, 12]
        """
        at = bisect.bisect_left(self._ids, ledger)
        if at == len(self._ids):
            return self.end
        begin = self._ends[at] - self._sizes[at]
        return begin if self._ids[at] != ledger else begin + min(max(entry, 0), self._sizes[at])

    def id_of(self, number: int) -> MessageId:
        """The id of the entry with a number below `end`.

        Example:
            >>> Positions([(3, 10), (7, 5)]).id_of(11)
            (7,1,-1,-1)
        """
        at = bisect.bisect_right(self._ends, number)
        begin = self._ends[at] - self._sizes[at]
        return MessageId(-1, self._ids[at], number - begin, -1)


def parse_id(text: str) -> MessageId:
    """An id of ``ledger:entry`` or ``ledger:entry:index``; also in the form of ``str(MessageId)``.

    Raises:
        ValueError: the text is none.

    Example:
        >>> parse_id("3:4"), parse_id("(3,4,-1,2)"), parse_id("3:4:1")
        ((3,4,-1,-1), (3,4,-1,2), (3,4,-1,1))
    """
    numbers = [int(number) for number in re.findall(r"-?\d+", text)]
    if len(numbers) == 4:
        ledger, entry, _, index = numbers
    elif len(numbers) in (2, 3):
        ledger, entry, index = (*numbers, -1)[:3]
    else:
        raise ValueError(f"an id is LEDGER:ENTRY or LEDGER:ENTRY:INDEX, not {text!r}")
    return MessageId(-1, ledger, entry, index)


def id_text(message_id: MessageId) -> str:
    """An id as pages show and take it.

    Example:
        >>> id_text(MessageId(-1, 3, 4, -1)), id_text(MessageId(-1, 3, 4, 0))
        ('3:4', '3:4:0')
    """
    index = f":{message_id.batch_index()}" if message_id.batch_index() >= 0 else ""
    return f"{message_id.ledger_id()}:{message_id.entry_id()}{index}"


def positions_of(served: Served, topic: str) -> Positions:
    """The entries of a topic or partition.

    Raises:
        TopicNotFound: there is none.
    """
    ledgers = served.admin.topics().get_internal_stats(topic).ledgers
    return Positions([(ledger.ledger_id, ledger.entries) for ledger in ledgers])


class _Search:
    """One search: what it may still read, and what it is for."""

    def __init__(self, client: Client, query: Query, seconds: float) -> None:
        self.read = 0
        self._client: Final = client
        self._query: Final = query
        self._end: Final = timing.SYSTEM_CLOCK.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether as much was read as one call may."""
        return self.read >= _MOST_READ or timing.SYSTEM_CLOCK.monotonic() >= self._end

    def messages(self, start: MessageId, is_inclusive: bool) -> Iterator[Message[bytes]]:
        """The messages from an id on, matching or not."""
        with self._client.create_reader(
            self._query.topic,
            start,
            start_message_id_inclusive=is_inclusive,
            receiver_queue_size=min(max(self._query.limit, _LEAST_STEP), 1000),
            is_read_compacted=self._query.is_compacted,
            # What is encrypted is shown as it is stored.
            crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
        ) as reader:
            while reader.has_message_available():
                try:
                    yield reader.read_next(_WAIT_MS)
                except Timeout:
                    return  # an open transaction holds the rest back
                self.read += 1

    def is_wanted(self, message: Message[bytes]) -> bool:
        """Whether a message has the key and the text that are looked for."""
        query = self._query
        if query.key is not None and message.partition_key() != query.key:
            return False
        if not query.text:
            return True
        texts = (message.partition_key(), *message.properties(), *message.properties().values())
        # Payloads that are written by a schema are searched as they are shown.
        return (
            query.text.encode() in message.data()
            or any(query.text in text for text in texts)
            or (message.schema_version() != "" and query.text in value_of(message, WHOLE)["text"])
        )


def find_messages(served: Served, query: Query, seconds: float = SECONDS) -> Page:
    """Search a topic that is not partitioned, or a partition, for so long at most.

    Raises:
        TopicNotFound: there is no such topic.

    Example:
        >>> from embeddedpulsar import Client
        >>> from embeddedpulsar.server.served import Served
        >>> with Client("./data") as client, Served(client) as served:
        ...     producer = client.create_producer("belts")
        ...     _ = [producer.send(b"%d" % number, partition_key="even") for number in range(0, 10, 2)]
        ...     page = find_messages(served, Query("belts", limit=2))
        ...     [message.data() for message in page.messages], id_text(page.next)
        ([b'8', b'6'], '1:3')
    """
    positions = positions_of(served, query.topic)
    search = _Search(served.client, query, seconds)
    if not positions.end:
        return Page([], None, 0, True)
    return _backward(search, query, positions) if query.is_backward else _forward(search, query)


def find_in_partitions(
    served: Served, query: Query, starts: Mapping[str, Start]
) -> tuple[Page, dict[str, Start]]:
    """Search partitions together, in the order of the publish times.

    Args:
        served: the store.
        query: what is searched; its topic and start count for nothing.
        starts: where to begin in each partition, by its full name.

    Returns:
        The page, without a `Page.next`, and where the next one begins in the partitions that have more.
    """
    pages = {}
    for log, start in starts.items():
        one_query = query._replace(topic=log, start=start.message_id, is_inclusive=start.is_inclusive)
        pages[log] = find_messages(served, one_query, SECONDS / len(starts))
    messages = [message for page in pages.values() for message in page.messages]
    # Stable in both directions: what has the same time stays in the order of its partition.
    messages.sort(key=lambda message: message.publish_timestamp(), reverse=query.is_backward)
    shown = messages[: query.limit]
    following: dict[str, Start] = {}
    for log, page in pages.items():
        own = [message for message in shown if message.topic_name() == log]
        if len(own) < len(page.messages):
            following[log] = Start(own[-1].message_id(), False) if own else starts[log]
        elif page.next is not None:
            following[log] = Start(page.next, False)
    is_whole = all(page.is_whole for page in pages.values())
    return Page(shown, None, sum(page.read for page in pages.values()), is_whole), following


def starts_text(starts: Mapping[str, Start]) -> str:
    """Where a search goes on in partitions, as text; `parse_starts` reads it.

    Example:
        >>> text = starts_text({"persistent://a/b/c-partition-2": Start(MessageId(-1, 3, 4, -1), False)})
        >>> text, parse_starts("persistent://a/b/c", text)
        ('2@3:4!', {'persistent://a/b/c-partition-2': Start(message_id=(3,4,-1,-1), is_inclusive=False)})
    """
    return ";".join(
        f"{log.rpartition('-')[2]}@{'' if start.message_id is None else id_text(start.message_id)}"
        f"{'' if start.is_inclusive else '!'}"
        for log, start in starts.items()
    )


def parse_starts(topic: str, text: str) -> dict[str, Start]:
    """See `starts_text`.

    Raises:
        ValueError: the text is none.
    """
    starts = {}
    for part in text.split(";"):
        number, separator, place = part.partition("@")
        if not separator or not (number.isascii() and number.isdigit()):
            raise ValueError(f"{text!r} says nothing of where a search goes on")
        bare = place.removesuffix("!")
        starts[f"{topic}-partition-{number}"] = Start(parse_id(bare) if bare else None, bare == place)
    return starts


def _forward(search: _Search, query: Query) -> Page:
    start = MessageId.earliest if query.start is None else query.start
    messages: list[Message[bytes]] = []
    last: MessageId | None = None
    for message in search.messages(start, query.is_inclusive):
        last = message.message_id()
        if search.is_wanted(message):
            messages.append(message)
        if len(messages) >= query.limit:
            return Page(messages, last, search.read, True)
        if search.is_over:
            return Page(messages, last, search.read, False)
    return Page(messages, None, search.read, True)


def _backward(search: _Search, query: Query, positions: Positions) -> Page:
    # A log is read forward alone. So windows of entries are read, the last first, each in front of the one
    # before it; a window of batches has more messages than entries, and its last ones count.
    start = query.start
    end = positions.end if start is None else positions.number(start.ledger_id(), start.entry_id()) + 1
    end, step = min(end, positions.end), max(_LEAST_STEP, min(query.limit, _MOST_STEP))
    bound = None if start is None else (*_order(start), 0 if query.is_inclusive else -1)
    messages: list[Message[bytes]] = []
    while end > 0:
        begin = max(end - step, 0)
        window: deque[Message[bytes]] = deque(maxlen=query.limit - len(messages))
        is_cut = False
        behind = positions.id_of(end) if end < positions.end else None
        for message in search.messages(positions.id_of(begin), True):
            position = _order(message.message_id())
            if behind is not None and position[:2] >= _order(behind)[:2]:
                break
            if bound is not None and not _is_before(position, bound):
                break
            if search.is_wanted(message):
                is_cut = is_cut or len(window) == window.maxlen
                window.append(message)
        messages += reversed(window)
        end, step = begin, min(4 * step, _MOST_STEP)
        if len(messages) >= query.limit:
            has_more = is_cut or begin > 0
            return Page(messages, messages[-1].message_id() if has_more else None, search.read, True)
        if search.is_over and begin > 0:
            return Page(messages, positions.id_of(begin), search.read, False)
    return Page(messages, None, search.read, True)


def _order(message_id: MessageId) -> tuple[int, int, int]:
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


def _is_before(position: tuple[int, int, int], limit: tuple[int, int, int, int]) -> bool:
    """Whether a message is in front of the one where a search towards the beginning starts, or is it."""
    if position[:2] != limit[:2]:
        return position[:2] < limit[:2]
    # The id of an entry stands for all messages of its batch.
    if limit[2] < 0:
        return limit[3] == 0
    return position[2] <= limit[2] + limit[3]


def newest(
    served: Served, topic: str, count: int, after: MessageId | None, key: str | None = None, text: str = ""
) -> tuple[list[Message[bytes]], MessageId]:
    """The last messages of a topic behind an id, the oldest of them first, and where the next call goes on.

    So a page that follows a topic costs the same at any rate: what does not fit is left out.
    """
    last = served.admin.topics().get_last_message_id(topic)
    if after is not None and _order(last)[:2] <= _order(after)[:2]:
        return [], after
    # With a filter the first call would search all of the topic, and each call what came since the last.
    limit = _FILTERED if key is not None or text else count
    page = find_messages(served, Query(topic, limit=limit))
    search = _Search(served.client, Query(topic, key=key, text=text), SECONDS)
    shown = [
        message
        for message in reversed(page.messages)
        if after is None or _order(message.message_id())[:2] > _order(after)[:2]
    ]
    return [message for message in shown if search.is_wanted(message)][-count:], last


def message_form(message: Message[bytes], most: int = PREVIEW) -> dict[str, Any]:
    """A message as JSON. Its ``value`` has a ``kind`` and a ``text`` of at most so many characters."""
    message_id = message.message_id()
    data = message.data()
    return {
        "id": id_text(message_id),
        "topic": message.topic_name(),
        "partition": message_id.partition(),
        "publishTime": message.publish_timestamp(),
        "eventTime": message.event_timestamp(),
        "key": message.partition_key(),
        "orderingKey": message.ordering_key(),
        "producer": message.producer_name(),
        "sequenceId": message.sequence_id(),
        "redeliveries": message.redelivery_count(),
        "properties": message.properties(),
        "size": len(data),
        "value": value_of(message, most),
    }


def value_of(message: Message[bytes], most: int) -> dict[str, Any]:
    """The payload of a message as text: decoded by the schema of its writer, as UTF-8, or in hexadecimal.

    Returns:
        ``kind``: ``null``, ``encrypted``, ``json``, ``text`` or ``hex``. ``text``, of at most ``most``
        characters, and whether it ``isCut``. ``schema``: the type of the schema, empty without one.
        ``error``: why the payload could not be decoded by it; empty if it could.
    """
    if message.encryption_context() is not None:
        return _value("encrypted", hex_text(message.data(), most), "", "", most)
    schema = error = ""
    try:
        writer = message.writer_schema()
        schema = "" if writer is None else writer.schema_type().name
        if message.has_null_value() and schema != "KEY_VALUE":
            return _value("null", "null", schema, "", most)
        native = _AUTO.decode_message(message).get_native_object()
        if not isinstance(native, bytes):
            return _value("text" if isinstance(native, str) else "json", _text_of(native), schema, "", most)
    # A payload that does not fit its schema may fail in any way, by the library of the format.
    except Exception as e:  # noqa: BLE001
        error = f"{type(e).__name__}: {e}"
    kind, text = _raw(message.data(), most)
    return _value(kind, text, schema, error, most)


def _value(kind: str, text: str, schema: str, error: str, most: int) -> dict[str, Any]:
    return {"kind": kind, "text": text[:most], "isCut": len(text) > most, "schema": schema, "error": error}


def _text_of(native: Any) -> str:
    """A decoded value as people read it."""
    if isinstance(native, str):
        return native
    if hasattr(native, "DESCRIPTOR"):
        return str(native)  # the text form of Protobuf
    return json.dumps(_plain(native), indent=2, ensure_ascii=False, default=str)


def _plain(value: Any) -> Any:
    """A value as JSON has it: bytes as text, or in base 64; pairs as objects; keys as text."""
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {str(key): _plain(element) for key, element in value.items()}
    if hasattr(value, "key") and hasattr(value, "value"):
        return {"key": _plain(value.key), "value": _plain(value.value)}
    if isinstance(value, list | tuple | set):
        return [_plain(element) for element in json_form(tuple(value))]
    return value


def _raw(data: bytes, most: int) -> tuple[str, str]:
    """Bytes without a schema: JSON and text as such, everything else in hexadecimal."""
    try:
        # A character of the last bytes may be cut in two.
        text = data[: 4 * most].decode(errors="strict" if len(data) <= 4 * most else "ignore")
    except UnicodeDecodeError:
        return "hex", hex_text(data, most)
    if any(character < " " and character not in "\t\n\r" for character in text[:most]):
        return "hex", hex_text(data, most)
    if text[:1] in ("{", "[") and len(data) <= WHOLE:
        try:
            return "json", json.dumps(json.loads(data), indent=2, ensure_ascii=False)
        except ValueError:
            return "text", text
    return "text", text


def hex_text(data: bytes, most: int) -> str:
    """Bytes in rows of 16: their offset, in hexadecimal, and the letters among them.

    Example:
        >>> print(hex_text(b"tea\\x00\\xff", 100))
        00000000  74 65 61 00 ff                                   tea..
    """
    rows = []
    width = 3 * _HEX_ROW
    for offset in range(0, len(data), _HEX_ROW):
        row = data[offset : offset + _HEX_ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{offset:08x}  {row.hex(' '):<{width}} {letters}")
        if offset * 5 > most:
            break
    return "\n".join(rows)


def message_of(served: Served, topic: str, message_id: MessageId) -> Message[bytes]:
    """The message of an id; of a batch without an index, the first.

    Raises:
        InvalidMessage: there is none.
    """
    messages = served.admin.topics().get_messages_by_id(topic, message_id.ledger_id(), message_id.entry_id())
    for message in messages:
        if message_id.batch_index() in (-1, message.message_id().batch_index()):
            return message
    raise PulsarException(f"{topic} has no message {id_text(message_id)}")

"""Argument checks with the error texts of ``pulsar-client``, and the error for options that are not built.

The options of a message besides its payload, checked when it is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat

from embeddedpulsar._engine.format.document import pack_map, pack_text_map
from embeddedpulsar._engine.format.entry import EntryContent
from embeddedpulsar.enums import PulsarEnum
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta
    from typing import Any, Final


INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
UINT32_MAX = 2**32 - 1
INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1


def check_type(kind: type[Any], value: object, name: str) -> None:
    """Refuse a value that is not of type ``kind``. As in ``pulsar-client``, True passes for an int.

    >>> check_type(int, "5", "receiver_queue_size")
    Traceback (most recent call last):
    ValueError: Argument receiver_queue_size is expected to be of type 'int' and not 'str'
    """
    # `pulsar-client` checks with isinstance as well, and a program that passes True for a number goes on
    # working.
    if not isinstance(value, kind):
        raise ValueError(
            f"Argument {name} is expected to be of type '{kind.__name__}' and not '{type(value).__name__}'"
            + _what_to_write(kind, value)
        )


def _what_to_write(kind: type[Any], value: object) -> str:
    """The hint of an error text: how to write a valid value; "" for types without named values.

    >>> from embeddedpulsar.enums import InitialPosition
    >>> _what_to_write(InitialPosition, 1), _what_to_write(int, "1")
    ('; write InitialPosition.Latest or InitialPosition.Earliest', '')
    """
    # The class was given in place of an object, as `schema=StringSchema`.
    if isinstance(value, type) and issubclass(value, kind):
        return f"; make one: {value.__name__}()"
    if kind is MessageId:
        return "; write MessageId.earliest, MessageId.latest or the id of a message"
    return f"; {kind.choices()}" if issubclass(kind, PulsarEnum) else ""


def check_type_or_none(kind: type[Any], value: object, name: str) -> None:
    """Refuse a value that is neither None nor of type ``kind``.

    >>> check_type_or_none(str, 5, "producer_name")
    Traceback (most recent call last):
    ValueError: Argument producer_name is expected to be either None or of type 'str'
    """
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"Argument {name} is expected to be either None or of type '{kind.__name__}'")


def check_types(types: Iterable[tuple[str, type[Any], bool]], options: dict[str, Any]) -> None:
    """Refuse the first option of a wrong type.

    Args:
        types: names, types, and whether None is accepted too.
        options: by their names.

    >>> check_types([("name", str, True), ("size", int, False)], {"name": None, "size": "5"})
    Traceback (most recent call last):
    ValueError: Argument size is expected to be of type 'int' and not 'str'
    """
    for name, kind, is_optional in types:
        value = options[name]
        # The call that makes the text comes only for a wrong value: this loop runs for each producer and
        # consumer.
        if not isinstance(value, kind) and not (is_optional and value is None):
            (check_type_or_none if is_optional else check_type)(kind, value, name)


def check_key_reader(reader: object) -> None:
    """Refuse a ``crypto_key_reader`` of another type. Those that have none need not import its class."""
    from embeddedpulsar.crypto import CryptoKeyReader

    check_type_or_none(CryptoKeyReader, reader, "crypto_key_reader")


def check_callable(value: object, name: str) -> None:
    """Refuse what cannot be called; None is accepted.

    >>> check_callable(print, "on_damage")
    """
    if value is not None and not callable(value):
        raise ValueError(f"Argument {name} is expected to be callable, and {value!r} is not")


def check_range(value: int, name: str, low: int, high: int) -> None:
    """Refuse a number outside ``[low, high]``.

    >>> check_range(-1, "send_timeout_millis", 0, 10)
    Traceback (most recent call last):
    ValueError: Argument send_timeout_millis must be between 0 and 10, not -1
    """
    if not low <= value <= high:
        raise ValueError(f"Argument {name} must be between {low} and {high}, not {value}")


def check_fits(value: int, name: str, low: int, high: int) -> None:
    """Refuse a number that the type of this argument in Pulsar's protocol cannot hold.

    It raises `TypeError` rather than `ValueError`, because ``pulsar-client`` reports such a number as one of
    another type.

    >>> check_fits(-1, "event_timestamp", 0, UINT64_MAX)
    Traceback (most recent call last):
    TypeError: Argument event_timestamp must be between 0 and 18446744073709551615, not -1
    """
    if not low <= value <= high:
        raise TypeError(f"Argument {name} must be between {low} and {high}, not {value}")


def check_text(text: str, name: str) -> None:
    """Refuse text that UTF-8 cannot encode before the message is added to a batch.

    >>> check_text("\\ud800", "partition_key")
    Traceback (most recent call last):
    TypeError: Argument partition_key has no UTF-8: '\\ud800' ...
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TypeError(f"Argument {name} has no UTF-8: {text[:80]!r} ({error.reason})") from None


def checked_properties(properties: dict[Any, Any]) -> dict[str, str]:
    """Return a copy of properties, so that the caller may change its dict afterwards. Hot.

    As in ``pulsar-client``, `bytes` are decoded as UTF-8. If two names are equal after decoding, the first
    one is kept.

    Raises:
        TypeError: a name or value is neither `str` nor `bytes`, or is not valid UTF-8.

    >>> checked_properties({"kind": b"new"})
    {'kind': 'new'}
    >>> checked_properties({"count": 5})
    Traceback (most recent call last):
    TypeError: Argument properties is expected to be a dict of str to str, not to have an 'int' in it
    """
    # One pass for the usual case, where all is `str`. The class is compared, which is quicker than
    # isinstance; subclasses go the other way.
    for name, value in properties.items():
        if name.__class__ is not str or value.__class__ is not str:
            return _decoded_properties(properties)
        if not (name.isascii() and value.isascii()):  # saves two calls for almost all properties
            check_text(name, "properties")
            check_text(value, "properties")
    return properties.copy()


def _decoded_properties(properties: dict[Any, Any]) -> dict[str, str]:
    decoded: dict[str, str] = {}
    for name, value in properties.items():
        decoded.setdefault(_text(name), _text(value))
    return decoded


def _text(given: object) -> str:
    if isinstance(given, bytes | bytearray):
        try:
            return bytes(given).decode()
        except UnicodeDecodeError as error:
            raise TypeError(f"Argument properties has {bytes(given)[:80]!r}, which is no UTF-8") from error
    if not isinstance(given, str):
        raise TypeError(
            "Argument properties is expected to be a dict of str to str, not to have "
            f"an {type(given).__name__!r} in it"
        )
    check_text(given, "properties")
    return str(given)


def refuse_unbuilt(is_set: object, argument: str, feature: str, remedy: str = "") -> None:
    """Refuse an option of a feature that is not built, because ignoring the option would hide the difference.

    Args:
        is_set: whether the caller set the option.
        argument: the name of the option.
        feature: the feature that is not built.
        remedy: what to do instead; the default text is to leave the option at its default.

    >>> refuse_unbuilt(True, "chunking_enabled", "chunking of large messages")
    Traceback (most recent call last):
    NotImplementedError: chunking_enabled needs chunking of large messages, which is not built yet; ...
    """
    if is_set:
        raise NotImplementedError(
            f"{argument} needs {feature}, which is not built yet; "
            + (remedy or f"leave {argument} at its default")
        )


def check_transaction(txn: object) -> None:
    """Refuse what is no transaction of a client.

    >>> check_transaction("(0,1)")
    Traceback (most recent call last):
    ValueError: Argument txn must be a transaction of `Client.transaction`, not 'str'
    """
    if not hasattr(txn, "_part_of"):
        raise ValueError(
            f"Argument txn must be a transaction of `Client.transaction`, not {type(txn).__name__!r}"
        )


def id_parts(message: object) -> tuple[int, int, int, int]:
    """Return the ledger, entry, batch index and batch size of a message or a message id.

    >>> id_parts(5)
    Traceback (most recent call last):
    TypeError: expected a Message or a MessageId, not int
    """
    if type(message) is Message:  # as its id says, without making that
        entry: Any = message._entry
        index, size = (message._index, entry.count) if entry.batched else (-1, 0)
        return entry.ledger_id, entry.entry_id, index, size
    if isinstance(message, Message):
        message = message.message_id()
    if not isinstance(message, MessageId):
        # The method was given in place of its result.
        hint = "; call it: message.message_id()" if callable(message) else ""
        raise TypeError(f"expected a Message or a MessageId, not {type(message).__name__}{hint}")
    return message._ledger, message._entry, message._batch_index, message._batch_size


def redelivery_count(message: object) -> int:
    """Return how often a message was delivered before; 0 for an id, which has no count."""
    return message.redelivery_count() if isinstance(message, Message) else 0


def checked_seek_target(target: object) -> MessageId | int:
    """Refuse a seek target of a wrong type, with the error text of ``pulsar-client``."""
    if isinstance(target, MessageId):
        return target
    # A bool is an int, and passes as it does in `pulsar-client`.
    if isinstance(target, int):
        check_fits(target, "messageid", 0, UINT64_MAX)
        return target
    raise ValueError(
        f"invalid seek_arg type {type(target)}; seek goes to a MessageId (MessageId.earliest, say) or to a "
        "time in milliseconds: int(moment.timestamp() * 1000)"
    )


DURABILITY_LEVELS = ("process", "interval", "flush")


def check_durability(durability: object) -> None:
    """Refuse a value that is not a durability level.

    >>> check_durability("disk")
    Traceback (most recent call last):
    ValueError: Argument durability must be 'process', 'interval' or 'flush', not 'disk'
    """
    if durability not in DURABILITY_LEVELS:
        raise ValueError(f"Argument durability must be 'process', 'interval' or 'flush', not {durability!r}")


Options = tuple[dict[str, str] | None, str | None, str | None, int, int, int, bool]
"""Properties, partition key, ordering key, sequence id, event time and delivery time in ms, null value.

As in ``pulsar-client``, an empty or zero option counts as not set. The type is a plain tuple, because every
keyed message needs one, and a named tuple costs three times as much.
"""

# Indexes into `Options`. `KEY` is the partition key, too, where no partition is chosen by it.
PROPERTIES: Final = 0
PARTITION_KEY: Final = 1
KEY: Final = 1
SEQUENCE_ID: Final = 3
DELIVER_AT: Final = 5
NO_OPTIONS: Final[Options] = (None, None, None, 0, 0, 0, False)
NULL_VALUE: Final[Options] = (None, None, None, 0, 0, 0, True)


def check_options(
    null: bool,
    properties: dict[str, str] | None,
    partition_key: str | None,
    ordering_key: str | None,
    sequence_id: int | None,
    replication_clusters: list[str] | None,
    disable_replication: bool,
    event_timestamp: int | None,
    deliver_at: int | None,
    deliver_after: timedelta | None,
    now_ms: Callable[[], int],
) -> Options:
    """Check the options of `Producer.send`. Hot: called for every keyed message.

    Args:
        null: whether the content is None.
        now_ms: returns the time; called only with ``deliver_after``.

    Raises:
        ValueError: a wrong type or value.
        TypeError: a number or text that the protocol cannot represent, or a property that is not text.
        NotImplementedError: replication between stores.
    """
    # Each option costs one comparison if it is not given.
    if properties is not None:
        if properties.__class__ is not dict:
            check_type_or_none(dict, properties, "properties")
        properties = checked_properties(properties)
    if partition_key is not None:
        _check_key(partition_key)
    if ordering_key is not None:
        check_type_or_none(str, ordering_key, "ordering_key")
        check_text(ordering_key, "ordering_key")
    if sequence_id is not None:
        check_type_or_none(int, sequence_id, "sequence_id")
        check_fits(sequence_id, "sequence_id", -INT64_MAX - 1, INT64_MAX)
        if sequence_id < 0:
            raise ValueError("sequenceId needs to be >= 0")
    if replication_clusters is not None:
        check_type_or_none(list, replication_clusters, "replication_clusters")
        if not all(isinstance(cluster, str) for cluster in replication_clusters):
            raise TypeError("Argument replication_clusters is expected to be a list of str")
        # An empty list asks for nothing.
        refuse_unbuilt(replication_clusters, "replication_clusters", "replication between stores")
    # True is accepted: there is no replication that it could switch off.
    if disable_replication is not False:
        check_type(bool, disable_replication, "disable_replication")
    if event_timestamp is not None:
        check_type_or_none(int, event_timestamp, "event_timestamp")
        check_fits(event_timestamp, "event_timestamp", 0, INT64_MAX)
    if deliver_at is not None:
        check_type_or_none(int, deliver_at, "deliver_at")
        check_fits(deliver_at, "deliver_at", 0, INT64_MAX)
    # A delay of 0 leaves what `deliver_at` says.
    if deliver_after is not None:
        deliver_at = _absolute(deliver_after, now_ms) or deliver_at
    # Empty and zero are the same as not given, as in `pulsar-client`.
    return (
        properties or None,
        partition_key or None,
        ordering_key or None,
        sequence_id or 0,
        event_timestamp or 0,
        deliver_at or 0,
        null,
    )


def check_few(null: bool, properties: dict[str, str] | None, partition_key: str | None) -> Options:
    """`check_options` of a message with properties or a key, or both, and no other option."""
    if properties is not None:
        check_type_or_none(dict, properties, "properties")
        properties = checked_properties(properties)
    if partition_key is not None:
        _check_key(partition_key)
    return (properties or None, partition_key or None, None, 0, 0, 0, null)


def keyed_row(
    value: Any, callback: Any, properties: dict[str, str] | None, partition_key: str | None
) -> tuple[Any, ...]:
    """Return what `BatchContainer.items` has of a message with properties or a key. Hot: 0.6 us.

    The properties are packed at once: that checks them, and needs no copy of the dict.

    Example:
        >>> keyed_row(b"a", None, None, "k")
        (b'a', None, None, 'k')
    """
    packed = None
    # In the usual case the properties are packed as they are. The slow way is taken where something is not a
    # `str`, and to find the text that has no UTF-8.
    if properties is not None:
        if properties.__class__ is not dict:
            check_type_or_none(dict, properties, "properties")
        if properties:
            try:
                packed = pack_text_map(properties)
                if packed is None:
                    packed = pack_map(checked_properties(properties))
            except UnicodeEncodeError:
                packed = pack_map(checked_properties(properties))  # which says what is no text
    if partition_key is not None and (partition_key.__class__ is not str or not partition_key.isascii()):
        _check_key(partition_key)
    return (value, callback, packed, partition_key or None)  # the first options of `Options`


def _check_key(partition_key: str) -> None:
    check_type_or_none(str, partition_key, "partition_key")
    check_text(partition_key, "partition_key")


def _absolute(deliver_after: timedelta, now_ms: Callable[[], int]) -> int:
    from datetime import timedelta  # takes 2 ms; a caller that passes a timedelta has imported it already

    check_type_or_none(timedelta, deliver_after, "deliver_after")
    if not deliver_after:
        return 0
    # Milliseconds, cut. A time before 1970 would be negative, which the format has no room for; 0 would be no
    # delay at all.
    at = now_ms() + deliver_after // timedelta(milliseconds=1)
    return max(at, 1)


def make_content(
    values: list[bytes], columns: list[list[Any]], sequence_ids: Sequence[int], batched: bool
) -> EntryContent:
    """Turn messages with options into the content of one entry. Unused columns are omitted.

    Args:
        values: payloads.
        columns: the options, one list per field of `Options`, or of its first two.
        sequence_ids: of all messages; a range if they are consecutive.
        batched: whether messages get batch indexes.

    >>> options = transposed([NO_OPTIONS, (None, "k", None, 0, 0, 0, False)])
    >>> make_content([b"a", b"b"], options, [3, 4], True).keys
    [None, 'k']
    """
    # A column of which no message has a value is left out of the entry (docs/format/frame.md). The fourth
    # one, sequence ids, is given by the caller, which has numbered the messages.
    if len(columns) == 2:
        properties, keys = columns
        return EntryContent(
            values,
            sequence_ids[0],
            batched,
            keys=keys if any(keys) else None,
            properties=properties if any(properties) else None,
            sequence_ids=sequence_ids if isinstance(sequence_ids, list) else None,
        )
    properties, keys, ordering_keys, _, event_times, deliver_at, nulls = columns
    return EntryContent(
        values,
        sequence_ids[0],
        batched,
        keys=keys if any(keys) else None,
        ordering_keys=ordering_keys if any(ordering_keys) else None,
        properties=properties if any(properties) else None,
        event_times=event_times if any(event_times) else None,
        deliver_at=deliver_at if any(deliver_at) else None,
        null_values=nulls if any(nulls) else None,
        sequence_ids=sequence_ids if isinstance(sequence_ids, list) else None,
    )


def transposed(rows: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    """Return one list per field, from one tuple per message.

    >>> transposed([(1, "a"), (2, "b")])
    [[1, 2], ['a', 'b']]
    """
    return list(map(list, zip(*rows, strict=True)))


# -- messages whose key is made of their value, by a schema that separates keys: see `KeyValueSchema` ---


def with_key(schema: Any, content: Any, options: Options | None) -> tuple[bytes, Options]:
    """The payload of a value, and its options with the key and the mark of a null value.

    Raises:
        TypeError, ValueError: see `KeyValueSchema.encode_keyed`.
    """
    properties, given, ordering_key, sequence_id, event_time, deliver_at, _ = options or NO_OPTIONS
    payload, key = schema.encode_keyed(content, given)
    is_null = payload is None
    return payload or b"", (properties, key, ordering_key, sequence_id, event_time, deliver_at, is_null)


def keyed_columns(
    schema: Any, contents: Iterable[Any], keys: Iterable[str | None] | None
) -> tuple[Iterator[bytes | None], Iterator[str | None]]:
    """The columns of payloads and keys. A payload is read before its key.

    Raises:
        TypeError, ValueError: as `with_key`, when the value is read.
    """
    keys_of_values: deque[str | None] = deque()
    given = repeat(None) if keys is None else keys

    def payloads() -> Iterator[bytes | None]:
        for content, key in zip(contents, given, strict=keys is not None):
            payload, made_key = schema.encode_keyed(content, key)
            keys_of_values.append(made_key)
            yield payload

    def made_keys() -> Iterator[str | None]:
        while keys_of_values:
            yield keys_of_values.popleft()

    return payloads(), made_keys()

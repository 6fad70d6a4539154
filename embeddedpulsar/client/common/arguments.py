"""Argument checks with the error texts of ``pulsar-client``, and the error for options that are not built."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from embeddedpulsar.enums import PulsarEnum
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId

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
        if not isinstance(value, kind) and not (is_optional and value is None):
            (check_type_or_none if is_optional else check_type)(kind, value, name)


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
    for name, value in properties.items():
        if name.__class__ is not str or value.__class__ is not str:
            return _decoded_properties(properties)
        if not (name.isascii() and value.isascii()):  # saves two calls for almost all properties
            check_text(name, "properties")
            check_text(value, "properties")
    return properties.copy()


def _decoded_properties(properties: dict[Any, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in properties.items():
        found.setdefault(_text(name), _text(value))
    return found


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


def id_parts(message: object) -> tuple[int, int, int, int]:
    """Return the ledger, entry, batch index and batch size of a message or a message id.

    >>> id_parts(5)
    Traceback (most recent call last):
    TypeError: expected a Message or a MessageId, not int
    """
    if isinstance(message, Message):
        message = message.message_id()
    if not isinstance(message, MessageId):
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

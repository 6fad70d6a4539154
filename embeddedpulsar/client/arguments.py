"""Argument checks with the texts of ``pulsar-client``, and the answer to options that are not built."""

from __future__ import annotations

from typing import Any

from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId


def check_type(kind: type[Any], value: object, name: str) -> None:
    """Refuse a value that is not of type ``kind``. As in ``pulsar-client``, True passes for an int.

    >>> check_type(int, "5", "receiver_queue_size")
    Traceback (most recent call last):
    ValueError: Argument receiver_queue_size is expected to be of type 'int' and not 'str'
    """
    if not isinstance(value, kind):
        raise ValueError(
            f"Argument {name} is expected to be of type '{kind.__name__}' and not '{type(value).__name__}'"
        )


def check_type_or_none(kind: type[Any], value: object, name: str) -> None:
    """Refuse a value that is neither None nor of type ``kind``.

    >>> check_type_or_none(str, 5, "producer_name")
    Traceback (most recent call last):
    ValueError: Argument producer_name is expected to be either None or of type 'str'
    """
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"Argument {name} is expected to be either None or of type '{kind.__name__}'")


def check_range(value: int, name: str, low: int, high: int) -> None:
    """Refuse a number outside ``[low, high]``.

    >>> check_range(-1, "send_timeout_millis", 0, 10)
    Traceback (most recent call last):
    ValueError: Argument send_timeout_millis must be between 0 and 10, not -1
    """
    if not low <= value <= high:
        raise ValueError(f"Argument {name} must be between {low} and {high}, not {value}")


def refuse_unbuilt(is_set: object, argument: str, feature: str, remedy: str = "") -> None:
    """Refuse an option that asks for a feature which is not built: ignoring it would be worse.

    Args:
        is_set: whether the option asks for it.
        argument: the option.
        feature: what is not built.
        remedy: what to do instead; default is to leave the option alone.

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
    """Ledger, entry, batch index and batch size of a message or an id.

    >>> id_parts(5)
    Traceback (most recent call last):
    TypeError: expected a Message or a MessageId, not int
    """
    if isinstance(message, Message):
        message = message.message_id()
    if not isinstance(message, MessageId):
        raise TypeError(f"expected a Message or a MessageId, not {type(message).__name__}")
    return message._ledger, message._entry, message._batch_index, message._batch_size


def redelivery_count(message: object) -> int:
    """How often a message was delivered again before; 0 for an id, which does not know."""
    return message.redelivery_count() if isinstance(message, Message) else 0


def checked_seek_target(target: object) -> MessageId | int:
    """Refuse what a seek does not take, with the text of ``pulsar-client``."""
    if isinstance(target, MessageId | int):
        return target
    raise ValueError(f"invalid seek_arg type {type(target)}")

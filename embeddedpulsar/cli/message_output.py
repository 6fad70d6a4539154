"""How messages are printed."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import click

from embeddedpulsar.cli.output import print_json
from embeddedpulsar.message import Message


class MessagePrinter:
    """Prints messages, one after the other.

    Args:
        is_json: as one JSON object a line.
        is_verbose: with a line of id, publish time, key and properties before each.
    """

    def __init__(self, is_json: bool, is_verbose: bool) -> None:
        self._is_json = is_json
        self._is_verbose = is_verbose

    def print(self, message: Message[Any]) -> None:
        """Print a message. A payload that is no UTF-8 is shown with escapes, and in base64 in JSON."""
        if self._is_json:
            print_json(_fields(message), indent=None)
            return
        if self._is_verbose:
            click.echo(click.style(_heading(message), bold="NO_COLOR" not in os.environ))
        click.echo(message.data().decode("utf-8", "backslashreplace"))


def message_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of how messages are printed, and a `MessagePrinter` as ``printer``."""

    @click.option("-v", "--verbose", is_flag=True, help="Show id, publish time, key and properties too.")
    @click.option("--json", "is_json", is_flag=True, help="Print one JSON object a line.")
    @wraps(command)
    def with_printer(*args: Any, is_json: bool, verbose: bool, **kwargs: Any) -> Any:
        return command(*args, printer=MessagePrinter(is_json, verbose), **kwargs)

    return with_printer


def iso_time(timestamp_ms: int) -> str:
    """Return a time in UTC, as ISO 8601 writes it."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _heading(message: Message[Any]) -> str:
    parts = [str(message.message_id()), iso_time(message.publish_timestamp())]
    if message.partition_key():
        parts.append(f"key={message.partition_key()}")
    parts += [f"{name}={value}" for name, value in message.properties().items()]
    if message.redelivery_count():
        parts.append(f"redelivered {message.redelivery_count()} times")
    return "  ".join(parts)


def _fields(message: Message[Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "topic": message.topic_name(),
        "messageId": str(message.message_id()),
        "publishTime": message.publish_timestamp(),
        "eventTime": message.event_timestamp(),
        "key": message.partition_key(),
        "properties": message.properties(),
        "producerName": message.producer_name(),
        "redeliveryCount": message.redelivery_count(),
    }
    try:
        fields["payload"] = message.data().decode("utf-8")
    except UnicodeDecodeError:
        fields["payloadBase64"] = base64.b64encode(message.data()).decode("ascii")
    return fields

"""How messages are printed."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import click

from embeddedpulsar.cli.output import print_json
from embeddedpulsar.cli.terminal import is_terminal, printable, raw_stream, write_bytes
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
        """Print a message. Its payload comes out as its bytes; a terminal gets what is not printable escaped,
        line ends too, and JSON a payload that is no UTF-8 in base64. On return the output has it."""
        if self._is_json:
            print_json(_fields(message), indent=None)
        else:
            if self._is_verbose:
                _print_heading(_heading(message))
            write_bytes(message.data())
        sys.stdout.flush()


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


def _print_heading(text: str) -> None:
    if not is_terminal():
        print(text)  # click would strip what looks like a style
        return
    styled = click.style(printable(text), bold="NO_COLOR" not in os.environ)
    raw_stream(sys.stdout).write(styled + "\n")


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

"""Messages whose key is made of their value, by a schema that separates keys: see `KeyValueSchema`."""

from __future__ import annotations

from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.arguments import NO_OPTIONS, Options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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

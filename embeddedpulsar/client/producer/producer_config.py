"""The options of a producer, checked."""

from __future__ import annotations

from embeddedpulsar._engine.format.compression import require_codec
from embeddedpulsar.client.arguments import (
    INT32_MAX,
    INT64_MAX,
    UINT32_MAX,
    UINT64_MAX,
    check_durability,
    check_fits,
    check_key_reader,
    check_range,
    check_type,
    check_types,
    checked_properties,
)
from embeddedpulsar.enums import (
    BatchingType,
    CompressionType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerAccessMode,
)
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple
from embeddedpulsar.schema import Schema

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from embeddedpulsar.client.interceptors import InterceptorChain
    from embeddedpulsar.crypto import Encryption
    from embeddedpulsar.message import Message

DEFAULT_SEND_TIMEOUT_MS = 30_000
BULK_MESSAGES = 10_000
BULK_BYTES = 1 << 20
"""Most messages and bytes of an entry of `Producer.send_many` and `send_arrow`."""
LONGEST_NAME = 4096
"""Most bytes of a producer's name, which every entry contains."""


class BulkLimits(NamedTuple):
    """The limits of an entry of columns, and whether an entry holds one key only."""

    messages: int
    payload: int
    key_based: bool


class ProducerConfig(NamedTuple):
    """The options of a producer for one topic; see `Client.create_producer`. Immutable.

    The defaults are those of ``pulsar-client``. None stands for an option that is not set, 0 for no limit.

    Attributes:
        initial_sequence_id: id before the first automatic one; None to continue after the last stored id.
        key_based: whether a batch holds one key only.
        max_pending_across: most messages not stored yet on all partitions together.
        chain: the interceptors.
        chunk_max_size: most bytes of payload in one chunk; 0 or less for as many as fit.
        schema_version: stored with every message; -1 for none.
        is_of_letters: whether it publishes dead letters or retry letters, which a topic may not refuse.
    """

    topic: str
    schema: Schema[Any]
    name: str | None = None
    initial_sequence_id: int | None = None
    send_timeout_ms: int = DEFAULT_SEND_TIMEOUT_MS
    compression: int = 0
    max_pending_messages: int = 1000
    block_if_queue_full: bool = False
    batching: bool = False
    batching_max_messages: int = 1000
    batching_max_bytes: int = 128 * 1024
    batching_max_delay_ms: int = 10
    key_based: bool = False
    properties: dict[str, str] | None = None
    access_mode: ProducerAccessMode = ProducerAccessMode.Shared
    durability: str | None = None
    max_pending_across: int = 50_000
    routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution
    message_router: Callable[[Message[Any], int], int] | None = None
    hashing_scheme: HashingScheme = HashingScheme.JavaStringHash
    lazy_start: bool = False
    encryption: Encryption | None = None
    chain: InterceptorChain | None = None
    chunking: bool = False
    chunk_max_size: int = -1
    schema_version: int = -1
    is_of_letters: bool = False


def producer_config(options: dict[str, Any]) -> ProducerConfig:
    """Check the arguments of `Client.create_producer`, given by name.

    Args:
        options: the arguments.

    Raises:
        ValueError: a wrong type or value.
        TypeError: a number out of range, a property that is not text, an invalid routing mode.
        NotImplementedError: an option whose feature is not built.
        ImportError: a codec, or the extra ``crypto`` for encryption, is not installed.
    """
    check_types(_TYPES, options)
    if options["crypto_key_reader"] is not None:
        check_key_reader(options["crypto_key_reader"])
    check_types(_LATER_TYPES, options)
    _check_values(options)
    codec = int(options["compression_type"])
    if codec:
        require_codec(codec)
    return ProducerConfig(
        topic=options["topic"],
        schema=options["schema"],
        name=options["producer_name"] or None,
        initial_sequence_id=_initial_sequence_id(options["initial_sequence_id"]),
        send_timeout_ms=max(options["send_timeout_millis"], 0),  # as in pulsar-client, negative is no limit
        compression=int(options["compression_type"]),
        max_pending_messages=options["max_pending_messages"],
        block_if_queue_full=options["block_if_queue_full"],
        batching=options["batching_enabled"],
        batching_max_messages=options["batching_max_messages"],
        batching_max_bytes=min(options["batching_max_allowed_size_in_bytes"], INT32_MAX),
        batching_max_delay_ms=min(options["batching_max_publish_delay_ms"], INT32_MAX),
        key_based=options["batching_type"] == BatchingType.KeyBased,
        properties=options["properties"] and checked_properties(options["properties"]),
        access_mode=options["access_mode"],
        durability=options["durability"],
        max_pending_across=options["max_pending_messages_across_partitions"],
        routing_mode=options["message_routing_mode"],
        message_router=options["message_router"],
        hashing_scheme=options["hashing_scheme"],
        lazy_start=options["lazy_start_partitioned_producers"],
        encryption=_encryption(options),
        chain=_chain(options),
        chunking=options["chunking_enabled"],
        chunk_max_size=options["chunk_max_message_size"],
    )


def _check_values(options: dict[str, Any]) -> None:
    if options["durability"] is not None:
        check_durability(options["durability"])
    if len((options["producer_name"] or "").encode()) > LONGEST_NAME:
        raise ValueError(f"Argument producer_name must have at most {LONGEST_NAME} bytes")
    for name, low, high, least, text in _NUMBERS:
        if not least <= options[name] <= high:
            check_fits(options[name], name, low, high)
            raise ValueError(text)
    check_type(int, options["chunk_max_message_size"], "chunk_max_message_size")
    check_range(options["chunk_max_message_size"], "chunk_max_message_size", -1, INT32_MAX)
    _check_routing(options["message_routing_mode"], options["message_router"])
    if options["batching_enabled"] and options["chunking_enabled"]:
        raise ValueError("Batching and chunking of messages can't be enabled together.")


def _check_routing(mode: PartitionsRoutingMode, router: object) -> None:
    """Check the routing options. As in ``pulsar-client``, a router alone implies `CustomPartition`."""
    if not isinstance(mode, PartitionsRoutingMode):
        raise TypeError(
            "Argument message_routing_mode is expected to be of type 'PartitionsRoutingMode' and not "
            f"{type(mode).__name__!r}; {PartitionsRoutingMode.choices()}"
        )
    if router is not None and not callable(router):
        raise ValueError(f"Argument message_router is expected to be callable, and {router!r} is not")
    if router is None and mode == PartitionsRoutingMode.CustomPartition:
        raise ValueError(
            "message_routing_mode=CustomPartition needs a message_router, which chooses the partitions"
        )


def _initial_sequence_id(given: int | None) -> int | None:
    """Return None for 0 and -1, as ``pulsar-client`` does: the producer continues after its last stored id.

    The id must be smaller than the largest number, so that further ids can follow.
    """
    if not given:
        return None
    check_fits(given, "initial_sequence_id", -INT64_MAX - 1, INT64_MAX)
    check_range(given, "initial_sequence_id", -1, INT64_MAX - _ROOM_FOR_IDS)
    return None if given == -1 else given


def _chain(options: dict[str, Any]) -> InterceptorChain | None:
    """Return the chain of the interceptors, which are imported only for those who have some."""
    given = options["interceptors"]
    if given is None:
        return None
    from embeddedpulsar.client.interceptors import ProducerInterceptor, chain_of

    return chain_of(given, ProducerInterceptor)


def _encryption(options: dict[str, Any]) -> Encryption | None:
    """Return the keys and the reader of an encrypting producer; incomplete options are an error."""
    more = options["encryption_keys"]
    if more is not None and (isinstance(more, str) or not all(isinstance(name, str) for name in more)):
        raise ValueError("Argument encryption_keys is expected to be a list of str")
    names = tuple(dict.fromkeys(filter(None, (options["encryption_key"], *(more or ())))))
    reader = options["crypto_key_reader"]
    if not names and reader is None:
        return None
    if reader is None:
        raise ValueError("encryption_key needs crypto_key_reader, which is not set: it has the public key")
    if not names:
        raise ValueError(
            "crypto_key_reader needs encryption_key, which is not set: nothing would be encrypted"
        )
    from embeddedpulsar.crypto import Encryption, require_cryptography

    require_cryptography()
    return Encryption(names, reader)


_TYPES: tuple[tuple[str, type[Any], bool], ...] = (
    ("topic", str, False),
    ("producer_name", str, True),
    ("schema", Schema, False),
    ("initial_sequence_id", int, True),
    ("send_timeout_millis", int, False),
    ("compression_type", CompressionType, False),
    ("max_pending_messages", int, False),
    ("max_pending_messages_across_partitions", int, False),
    ("block_if_queue_full", bool, False),
    ("batching_enabled", bool, False),
    ("batching_max_messages", int, False),
    ("batching_max_allowed_size_in_bytes", int, False),
    ("batching_max_publish_delay_ms", int, False),
    ("chunking_enabled", bool, False),
    ("properties", dict, True),
    ("batching_type", BatchingType, False),
    ("encryption_key", str, True),
)
_LATER_TYPES: tuple[tuple[str, type[Any], bool], ...] = (
    ("lazy_start_partitioned_producers", bool, False),
    ("access_mode", ProducerAccessMode, False),
    ("hashing_scheme", HashingScheme, False),
)
"""In the order in which ``pulsar-client`` checks them, the key reader between, so that the first error is the
same."""

_ROOM_FOR_IDS = 2**48
_ANY = -INT32_MAX - 1
_NUMBERS = (
    ("send_timeout_millis", _ANY, INT32_MAX, _ANY, ""),
    ("max_pending_messages", _ANY, INT32_MAX, 0, "maxPendingMessages needs to be >= 0"),
    ("max_pending_messages_across_partitions", _ANY, INT32_MAX, 0, "maxPendingMessages needs to be >=0"),
    ("batching_max_messages", 0, UINT32_MAX, 2, "batchingMaxMessages needs to be greater than 1"),
    ("batching_max_allowed_size_in_bytes", 0, UINT64_MAX, 0, ""),
    ("batching_max_publish_delay_ms", 0, UINT64_MAX, 0, ""),
)
"""The ranges of the types of ``pulsar-client``, the smallest values, and the error texts, in its order."""

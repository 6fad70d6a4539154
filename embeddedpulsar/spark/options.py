"""The options of a read: parsed, checked against each other, none ignored silently.

Spark's types of the columns of messages.

The options of a write, and the columns that are written.

The options of a streaming read: those of a batch read without an end, and limits of its batches.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from embeddedpulsar.arrow import milliseconds
from embeddedpulsar.arrow import schema as names
from embeddedpulsar.arrow.schema import (
    FAILFAST,
    READ_COMMITTED,
    check_columns,
    check_mode,
    reads_uncommitted,
)
from embeddedpulsar.client.consumer.topic_pattern import TopicPattern, matches_no_name
from embeddedpulsar.crypto import CryptoKeyReader, EncryptionKeyInfo
from embeddedpulsar.enums import CompressionType
from embeddedpulsar.exceptions import CryptoError, InvalidConfiguration, InvalidTopicName
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.spark.engine import root_of
from embeddedpulsar.topic_name import TopicName

# Bytes of log; Spark's own default for files (spark.sql.files.maxPartitionBytes) is 128 MiB, of what is often
# compressed.
DEFAULT_PARTITION_BYTES: Final = 64 << 20

Place = MessageId | int
"""Where a log is entered or left: a message id, or a publish time in ms."""

# The names that Pulsar's connector for Spark has.
_ALIASES: Final = {
    "service.url": "path",
    "startingtimestamp": "startingtime",
    "endingtimestamp": "endingtime",
    "predefinedsubscription": "subscription",
}
_KNOWN: Final = frozenset(
    {
        "path",
        "topic",
        "topics",
        "topicspattern",
        "startingoffsets",
        "endingoffsets",
        "startingtime",
        "endingtime",
        "columns",
        "minpartitions",
        "maxpartitionbytes",
        "failondataloss",
        "cryptoprivatekeypath",
        "cryptofailureaction",
        "decode",
        "valueschema",
        "mode",
        "isolation",
    }
)
# Options of the connector for clusters that have no meaning for files.
_IGNORED: Final = frozenset({"admin.url", "polltimeoutms"})
STREAMING: Final = {
    "maxoffsetspertrigger": "maxOffsetsPerTrigger",
    "maxbytespertrigger": "maxBytesPerTrigger",
    "subscription": "subscription",
    "waitingfornonexistedtopic": "waitingForNonExistedTopic",
}
_BYTES = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_POSITION = re.compile(r"(\d+):(\d+)(?::(-?\d+))?")


@dataclass(frozen=True, slots=True)
class Limits:
    """One side of the range: the same for all topics, or one place each. `everywhere` None leaves it open."""

    everywhere: Place | None = None
    by_topic: tuple[tuple[str, Place], ...] = ()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What is to be read, and how it is cut into partitions.

    Attributes:
        path: directory of the store.
        topics: names as given; empty with a pattern.
        pattern: regular expression, as `topics_matching` takes it, or None.
        start, end: where reading begins and ends, half-open.
        columns: names, in order; None for all.
        min_partitions: at least so many partitions, as far as there are entries; 0 for no wish.
        max_partition_bytes: size of a partition in bytes of log.
        fail_on_data_loss: whether damage and missing data are errors.
        private_keys: names of keys and the files they are in, on the workers; ``""`` is any name.
        discards: whether messages that cannot be decrypted are left out; else they are an error.
        mode: what becomes of messages that cannot be decoded, or have a time that no column can hold.
        uncommitted: whether messages of open and of aborted transactions are read.
    """

    path: str
    topics: tuple[str, ...]
    pattern: str | None
    start: Limits
    end: Limits
    columns: tuple[str, ...] | None
    min_partitions: int
    max_partition_bytes: int
    fail_on_data_loss: bool
    private_keys: Paths = ()
    discards: bool = False
    mode: str = FAILFAST
    uncommitted: bool = False


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Check the options of a batch read; names are not case-sensitive.

    Raises:
        InvalidConfiguration: an unknown option, a value that does not parse, or two that exclude each other.
        NotAllowedError: it is a store in memory that no process which started this one has open.

    Example:
        >>> parse_options({"path": "/data", "topic": "orders", "maxPartitionBytes": "8m"}).max_partition_bytes
        8388608
    """
    options = known_options(given)
    # A stream's limit in a batch read would do nothing, and the caller would take it for a limit.
    for name in STREAMING.keys() & options.keys():
        raise InvalidConfiguration(f"option {STREAMING[name]} is for streaming reads; this is a batch read")
    return read_options(options, MessageId.latest)


def parse_columns(given: Mapping[str, str]) -> tuple[str, ...] | None:
    """The option `columns` alone, which says what schema a read has; None without it.

    Raises:
        InvalidConfiguration: an unknown option or column.
    """
    columns = named_columns(known_options(given))
    return None if columns is None else check_columns(columns)


def named_columns(options: Mapping[str, str]) -> tuple[str, ...] | None:
    """The names in option `columns`; None without it.

    Args:
        options: as `known_options` returns them.
    """
    text = options.get("columns")
    return None if text is None else tuple(name.strip() for name in text.split(","))


def read_options(options: Mapping[str, str], refused: MessageId | None) -> ReadOptions:
    """What batch and streaming reads have in common.

    Args:
        options: as `known_options` returns them.
        refused: a start that makes no sense.

    Raises:
        InvalidConfiguration, NotAllowedError: as `parse_options`.
    """
    if not options.get("path"):
        raise InvalidConfiguration("option path is missing: the directory of the store")
    root = root_of(options["path"])
    named = [name for name in ("topic", "topics", "topicspattern") if name in options]
    if len(named) != 1:
        raise InvalidConfiguration("give exactly one of the options topic, topics and topicsPattern")
    return ReadOptions(
        root,
        _topics(options),
        _pattern(options.get("topicspattern")),
        _limits(options, "starting", refused),
        _limits(options, "ending", MessageId.earliest),
        # With decoded payloads, `columns` may name fields that only the schema knows; it is checked where the
        # schema is.
        named_columns(options) if {"decode", "valueschema"} & options.keys() else parse_columns(options),
        number("minPartitions", options.get("minpartitions", "0")),
        size("maxPartitionBytes", options.get("maxpartitionbytes", str(DEFAULT_PARTITION_BYTES))),
        switch("failOnDataLoss", options.get("failondataloss", "true")),
        key_paths("cryptoPrivateKeyPath", options.get("cryptoprivatekeypath")),
        _discards(options.get("cryptofailureaction", "FAIL")),
        check_mode(options.get("mode", FAILFAST)),
        reads_uncommitted(options.get("isolation", READ_COMMITTED)),
    )


def known_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options under one name each, in lower case.

    Raises:
        InvalidConfiguration: an unknown option, or one that is given twice.
    """
    options: dict[str, str] = {}
    for name, value in given.items():
        # Spark's options are not case-sensitive.
        lower = _ALIASES.get(name.lower(), name.lower())
        # Jobs come from the connector with them.
        if lower in _IGNORED:
            _warn(f"option {name} has no meaning for a store in a directory and is ignored")
        elif lower not in _KNOWN and lower not in STREAMING:
            raise InvalidConfiguration(
                f"unknown option {name}; there are path, topic, topics, topicsPattern, startingOffsets, "
                "endingOffsets, startingTime, endingTime, columns, minPartitions, maxPartitionBytes, "
                "failOnDataLoss, cryptoPrivateKeyPath, cryptoFailureAction, decode, valueSchema, mode and "
                "isolation, and for streams "
                f"{', '.join(STREAMING.values())}"
            )
        elif lower in options:
            # `service.url` and `path` are one option; which of two values holds is not for this to guess.
            raise InvalidConfiguration(f"option {name} is given twice, under two of its names")
        else:
            options[lower] = value
    return options


def _topics(options: Mapping[str, str]) -> tuple[str, ...]:
    text = options.get("topics", options.get("topic"))
    if text is None:
        return ()
    # Only `topics` is a list: the name of a topic may not have a comma, but a wrong one should be refused as
    # it is.
    names = [name.strip() for name in text.split(",")] if "topics" in options else [text]
    topics = tuple(dict.fromkeys(TopicName.parse(name).full for name in names if name))
    if not topics:
        raise InvalidConfiguration(f"option {'topics' if 'topics' in options else 'topic'} names no topic")
    return topics


def _pattern(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        compiled = re.compile(text)
        never: tuple[str, ...]
        # With a domain, the pattern is for full names; without, it is a pattern as consumers take it, in a
        # namespace.
        if "://" in text:
            never = (text,) if matches_no_name(text, compiled.flags, least_slashes=4) else ()
        else:
            never = TopicPattern(compiled).never
    except (re.error, InvalidTopicName) as error:
        raise InvalidConfiguration(f"topicsPattern {text!r}: {error}") from None
    # A warning and no error: such a pattern may be generated, and a stream may wait for topics.
    if never:
        logging.getLogger("embeddedpulsar.spark").warning(
            "option topicsPattern has what no topic can match, whatever its name: %s",
            ", ".join(map(repr, never)),
        )
    return text


def topics_matching(pattern: str) -> Callable[[str], Any]:
    """The function that says whether the topic of a full name matches an option ``topicsPattern``.

    With a domain it is an expression for full names, else one as consumers take it.

    Example:
        >>> matches = topics_matching("orders|bills")
        >>> [bool(matches(f"persistent://public/{name}")) for name in ("default/bills", "other/bills")]
        [True, False]
    """
    compiled = re.compile(pattern)
    return compiled.fullmatch if "://" in pattern else TopicPattern(compiled).matches


def _limits(options: Mapping[str, str], side: str, refused: MessageId | None) -> Limits:
    offsets, time = options.get(f"{side}offsets"), options.get(f"{side}time")
    if offsets is not None and time is not None:
        raise InvalidConfiguration(f"give {side}Offsets or {side}Time, not both")
    if offsets is None and time is None:
        return Limits()
    name = f"{side}Time" if offsets is None else f"{side}Offsets"
    parse = _time if offsets is None else parse_place
    text = (time or "") if offsets is None else offsets
    limits = _parsed(name, text.strip(), parse)
    # A start at the very end, or an end at the very start, leaves nothing to read: it is refused for a batch,
    # and is the default of a stream.
    places = [place for _topic, place in limits.by_topic] + [limits.everywhere]
    if any(isinstance(place, MessageId) and place == refused for place in places):
        word = "latest" if refused == MessageId.latest else "earliest"
        raise InvalidConfiguration(f"{name} {word} leaves nothing for a batch read")
    return limits


def _parsed(name: str, text: str, parse: Any) -> Limits:
    # One place for all topics, or a JSON object with one for each.
    if not text.startswith("{"):
        return Limits(parse(name, text))
    try:
        given_places = json.loads(text)
    except ValueError as error:
        raise InvalidConfiguration(f"{name} is no JSON: {error}") from None
    # Short and full names of one topic are the same key.
    places = [(TopicName.parse(topic).full, parse(name, place)) for topic, place in given_places.items()]
    if len(dict(places)) < len(places):
        raise InvalidConfiguration(f"{name} names a topic twice: {', '.join(given_places)}")
    return Limits(None, tuple(places))


def parse_place(name: str, place: Any) -> MessageId:
    """A place: ``earliest``, ``latest``, ``ledger:entry[:batch index]``, or bytes of a serialized id."""
    # Three forms: a word, "ledger:entry:index", and the bytes of a serialized id, as Pulsar's connector
    # writes them into JSON: numbers from -128 on, as Java has bytes.
    if place in ("earliest", "latest"):
        return MessageId.earliest if place == "earliest" else MessageId.latest
    if isinstance(place, str):
        match = _POSITION.fullmatch(place)
        if match is not None:
            # A part that is left out is -1: no batch index.
            ledger, entry, index = match.groups(default="-1")
            # A number that is too large: refused below with the form that is expected.
            with contextlib.suppress(TypeError):  # a number that no message has
                return MessageId(-1, int(ledger), int(entry), int(index))
    elif isinstance(place, list) and all(isinstance(byte, int) and -128 <= byte < 256 for byte in place):
        try:
            return MessageId.deserialize(bytes(byte & 0xFF for byte in place))
        except ValueError as error:
            raise InvalidConfiguration(f"{name}: {error}") from None
    raise InvalidConfiguration(
        f'{name}: {place!r} is no place; use earliest, latest, "ledger:entry:batchIndex" or a JSON object of '
        "topics and places"
    )


def _time(name: str, place: Any) -> int:
    """A time as ms since 1970, or as ISO 8601 (without a zone it is UTC)."""
    # bool is an int in Python.
    if isinstance(place, int) and not isinstance(place, bool):
        return place
    try:
        # A string of digits is milliseconds: options of Spark are texts. Other values than texts have no
        # `lstrip`.
        if place.lstrip("-").isdigit():
            return int(place)
        time = datetime.fromisoformat(place)
    except (AttributeError, ValueError):
        raise InvalidConfiguration(
            f"{name}: {place!r} is no time; use ms since 1970, or ISO 8601 as in 2026-01-31T12:00:00Z"
        ) from None
    ms = milliseconds(time if time.tzinfo else time.replace(tzinfo=UTC))
    return 0 if ms is None else ms


def number(name: str, text: str) -> int:
    """A number of 0 or more."""
    # `isdigit` alone holds for digits of other scripts, too.
    if not (text.isascii() and text.isdigit()):
        raise InvalidConfiguration(f"option {name}: {text!r} is no number of 0 or more")
    return int(text)


def size(name: str, text: str) -> int:
    """A number of bytes, 1 or more, with a unit if one is given."""
    match = _BYTES.fullmatch(text.strip())
    # "64m", "64mb" and "64mib" are the same, as in Spark's sizes: powers of 1024.
    bytes_given = int(match[1]) << _UNITS[match[2].lower()] if match else 0
    if bytes_given <= 0:
        raise InvalidConfiguration(f"option {name}: {text!r} is no size; write 67108864 or 64m")
    return bytes_given


def switch(name: str, text: str) -> bool:
    """A word that is true or false."""
    if text.lower() not in ("true", "false"):
        raise InvalidConfiguration(f"option {name}: {text!r} is neither true nor false")
    return text.lower() == "true"


def key_paths(option: str, text: str | None) -> Paths:
    """A path for all keys, or a JSON object of names and paths."""
    if text is None:
        return ()
    if not text.lstrip().startswith("{"):
        # A path without a name is that of all keys.
        given_paths: Any = {"": text}
    else:
        try:
            given_paths = json.loads(text)
        except ValueError as error:
            raise InvalidConfiguration(f"{option} is no JSON: {error}") from None
    for name, path in given_paths.items():
        if not isinstance(path, str) or not path:
            raise InvalidConfiguration(
                f"{option}: {path!r} is no path{f' for the key {name!r}' if name else ''}; give "
                'the path of a PEM file, or a JSON object as in {"key name": "path"}'
            )
    return tuple(given_paths.items())


def _discards(text: str) -> bool:
    action = text.upper()
    if action == "CONSUME":
        raise InvalidConfiguration(
            "option cryptoFailureAction: a DataFrame has no place for ciphertext, which is of no use without "
            "its encryption context; use FAIL or DISCARD, or an embeddedpulsar.Reader"
        )
    if action not in ("FAIL", "DISCARD"):
        raise InvalidConfiguration(f"option cryptoFailureAction: {text!r} is neither FAIL nor DISCARD")
    return action == "DISCARD"


def _warn(text: str) -> None:
    import logging

    logging.getLogger("embeddedpulsar.spark").warning("%s", text)


Paths = tuple[tuple[str, str], ...]
"""Names of keys, and PEM files; the name ``""`` is that of all others."""


class KeyFiles(CryptoKeyReader):
    """Keys by name, each read from its file when it is needed.

    Args:
        paths: where they are.
        option: the option that says so.
    """

    def __init__(self, paths: Paths, option: str) -> None:
        # Each reader has the path for both kinds of keys: the option says which of the two is asked for.
        self._readers = {name: CryptoKeyReader(path, path) for name, path in paths}
        self._option = option

    def get_private_key(self, key_name: str, metadata: dict[str, str]) -> EncryptionKeyInfo:
        """The key of that name.

        Raises:
            CryptoError: there is no file for it, or it cannot be read.
        """
        return self._reader(key_name).get_private_key(key_name, metadata)

    def get_public_key(self, key_name: str, metadata: dict[str, str]) -> EncryptionKeyInfo:
        """The key of that name; errors as of `get_private_key`."""
        return self._reader(key_name).get_public_key(key_name, metadata)

    def _reader(self, key_name: str) -> CryptoKeyReader:
        # The name of a key is in the message, so a key that no option names falls back to the path for all.
        reader = self._readers.get(key_name, self._readers.get(""))
        if reader is None:
            raise CryptoError(
                f"option {self._option} names no file for the key {key_name!r}, only for "
                f"{', '.join(self._readers)}"
            )
        return reader


def key_reader(paths: Paths, option: str = "cryptoPrivateKeyPath") -> CryptoKeyReader | None:
    """A reader of these keys; None if there are none."""
    return KeyFiles(paths, option) if paths else None


_SPARK_TYPES: dict[str, DataType] = {
    names.VALUE: BinaryType(),
    names.KEY: BinaryType(),
    names.TOPIC: StringType(),
    names.MESSAGE_ID: BinaryType(),
    names.PUBLISH_TIME: TimestampType(),
    names.EVENT_TIME: TimestampType(),
    names.PROPERTIES: MapType(StringType(), StringType()),
    names.PARTITION: IntegerType(),
    names.ORDERING_KEY: BinaryType(),
    names.SEQUENCE_ID: LongType(),
    names.PRODUCER_NAME: StringType(),
    names.LEDGER_ID: LongType(),
    names.ENTRY_ID: LongType(),
    names.BATCH_INDEX: IntegerType(),
    names.SCHEMA_VERSION: IntegerType(),
}


def struct_type(columns: tuple[str, ...] | None) -> StructType:
    """The schema of these columns, or of all; every field is nullable, as Spark wants it of batches."""
    return StructType([StructField(name, _SPARK_TYPES[name], True) for name in names.check_columns(columns)])


def requested_columns(schema: StructType) -> tuple[str, ...]:
    """The columns a schema asks for, in its order.

    Raises:
        InvalidConfiguration: a column that does not exist, or has another type.
    """
    columns = names.check_columns(schema.names)
    for field in schema.fields:
        kind = _SPARK_TYPES[field.name]
        # Spark would trust NOT NULL and might drop checks for null.
        if not field.nullable:
            raise InvalidConfiguration(f"column {field.name} is nullable, as all are; leave NOT NULL out")
        if field.dataType != kind:
            given, wanted = field.dataType.simpleString(), kind.simpleString()
            if given == wanted:  # a map whose values are not nullable, say
                given, wanted = field.dataType.json(), kind.json()
            raise InvalidConfiguration(
                f"column {field.name} is {wanted}, not {given}; read it as it is and cast it in the query"
            )
    return columns


DELIVER_AT: Final = "__deliverAt"
WRITTEN: Final = (
    names.VALUE, names.KEY, names.ORDERING_KEY, names.TOPIC, names.EVENT_TIME, names.PROPERTIES, DELIVER_AT,
)  # fmt: skip
ASSIGNED: Final = frozenset(
    (names.MESSAGE_ID, names.PUBLISH_TIME, names.PARTITION, names.SEQUENCE_ID, names.PRODUCER_NAME)
)
"""What the store assigns: such columns of a DataFrame that was read from a topic are not written."""

_EXACTLY: Final = "exactly-once"
_AT_LEAST: Final = "at-least-once"
_DURABILITIES: Final = ("process", "interval", "flush")
_SINK_OPTIONS: Final = frozenset(
    (
        "path",
        "topic",
        "producername",
        "batchid",
        "deliveryguarantee",
        "durability",
        "compressiontype",
        "encryptionkeys",
        "cryptopublickeypath",
        "checkpointlocation",  # of Spark
    )
)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where rows go, and what is promised of them.

    Attributes:
        path: directory of the store.
        topic: full name of the topic; empty where column ``__topic`` says it.
        producer_name: as given; empty for one that is made of the query or job.
        batch_id: number of a batch write; None without one.
        exactly_once: whether rows are staged and committed together; else each task publishes its own.
        durability: level of the producers.
        codec: compresses entries; 0 for none.
        encryption_keys: names of public keys; empty if nothing is encrypted.
        public_keys: names of keys, and the files they are in; ``""`` is any name.
        growth: the most bytes by which encryption makes an entry larger.
    """

    path: str
    topic: str = ""
    producer_name: str = ""
    batch_id: int | None = None
    exactly_once: bool = True
    durability: str = "process"
    codec: int = 0
    encryption_keys: tuple[str, ...] = ()
    public_keys: Paths = ()
    growth: int = 0


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check the options of a write; names are not case-sensitive.

    Raises:
        InvalidConfiguration: an unknown option, a value that does not parse, or two that do not go together.
        NotAllowedError: it is a store in memory that no process which started this one has open.

    Example:
        >>> parse_sink_options({"path": "/data", "topic": "orders"}).topic
        'persistent://public/default/orders'
    """
    options = {name.lower(): value for name, value in given.items()}
    if "service.url" in options:
        options.setdefault("path", options.pop("service.url"))
    # Refused, not ignored: an option with a typing error would change what is promised.
    unknown = sorted(options.keys() - _SINK_OPTIONS)
    if unknown:
        raise InvalidConfiguration(
            f"a write has no option {unknown[0]}; there are path, topic, producerName, batchId, "
            "deliveryGuarantee, durability, compressionType, encryptionKeys and cryptoPublicKeyPath"
        )
    if not options.get("path"):
        raise InvalidConfiguration("option path is missing: the directory of the store")
    root = root_of(options["path"])
    guarantee = _one_of(
        "deliveryGuarantee", options.get("deliveryguarantee", _EXACTLY), (_EXACTLY, _AT_LEAST)
    )
    producer, batch = options.get("producername", ""), options.get("batchid")
    # Numbers count within one producer and are compared with its last one; a random producer has none.
    if batch is not None and not producer:
        raise InvalidConfiguration("option batchId numbers the batches of a producerName; give that as well")
    # At least once, a repeated batch is published again: there is nothing to compare its number with.
    if batch is not None and guarantee == _AT_LEAST:
        raise InvalidConfiguration("option batchId has no meaning with deliveryGuarantee at-least-once")
    topic = options.get("topic", "")
    return SinkOptions(
        root,
        TopicName.parse(topic).full if topic else "",
        producer,
        None if batch is None else number("batchId", batch),
        guarantee == _EXACTLY,
        _one_of("durability", options.get("durability", "process"), _DURABILITIES),
        _codec(options.get("compressiontype", "NONE")),
        *_keys(options),
    )


def _keys(options: Mapping[str, str]) -> tuple[tuple[str, ...], Paths]:
    """The names of public keys, and their files."""
    paths = key_paths("cryptoPublicKeyPath", options.get("cryptopublickeypath"))
    given = options.get("encryptionkeys", "")
    # Names given twice encrypt once; empty parts are a comma too many.
    names = tuple(dict.fromkeys(filter(None, (name.strip() for name in given.split(",")))))
    # Both options or none: without a key, rows would be stored in the clear where the user expects
    # encryption.
    if names and not paths:
        raise InvalidConfiguration(
            "option encryptionKeys needs cryptoPublicKeyPath: the file with the public key"
        )
    # The names may be those of the files.
    names = names or tuple(name for name, _ in paths if name)
    if paths and not names:
        raise InvalidConfiguration(
            "option cryptoPublicKeyPath needs encryptionKeys: the names of the keys, separated by commas"
        )
    return names, paths


def _one_of(name: str, text: str, known: tuple[str, ...]) -> str:
    if text.lower() not in known:
        raise InvalidConfiguration(f"option {name}: {text!r} is none of {', '.join(known)}")
    return text.lower()


def _codec(text: str) -> int:
    try:
        return int(CompressionType[text.upper()])
    except KeyError:
        known = ", ".join(codec.name for codec in CompressionType)
        raise InvalidConfiguration(f"option compressionType: {text!r} is none of {known}") from None


def written_columns(types_by_name: Mapping[str, str], options: SinkOptions) -> tuple[str, ...]:
    """The columns of a DataFrame that are written.

    Args:
        types_by_name: names and types, in Spark's words.
        options: of the write.

    Raises:
        InvalidConfiguration: a column that a message has no place for, one of another type, or none to say
            what is sent or where to.

    Example:
        >>> written_columns({"value": "binary", "__publishTime": "timestamp"}, SinkOptions("/data", "t"))
        ('value',)
    """
    for name, kind in types_by_name.items():
        # A DataFrame that was read from a topic can be written to another one as it is: what the store
        # assigns anew is left out.
        if name in ASSIGNED:
            continue
        if name not in _COLUMN_TYPES:
            raise InvalidConfiguration(
                f"column {name!r} has no place in a message: a write takes {', '.join(WRITTEN)}; put it into "
                "value, for example by to_json(struct(...)), or leave it out"
            )
        # `value` may have a type that the schema of the topic encodes; which schema that is only the tasks
        # know.
        if kind not in _COLUMN_TYPES[name] and not (name == names.VALUE and _is_encoded(kind)):
            raise InvalidConfiguration(
                f"column {name} is {kind}, not {' or '.join(_COLUMN_TYPES[name])}; cast it"
            )
    # Null in the column is a null value; no column at all is a mistake.
    if names.VALUE not in types_by_name:
        raise InvalidConfiguration(
            "a write needs a column value: binary, string, or of the type that the schema of the topic has; "
            "null is a null value"
        )
    if not options.topic and names.TOPIC not in types_by_name:
        raise InvalidConfiguration("say where to write: option topic, or a column __topic")
    return tuple(name for name in types_by_name if name in _COLUMN_TYPES)


def _is_encoded(kind: str) -> bool:
    """Whether values of a type are encoded by the schema of the topic."""
    return kind in _SINGLE or kind.startswith(("struct<", "time("))


_BYTES_TYPES: Final = ("binary", "string")
_SINGLE: Final = frozenset(
    (
        "boolean",
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "float",
        "double",
        "date",
        "timestamp",
        "timestamp_ntz",
    )
)
_COLUMN_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    names.VALUE: _BYTES_TYPES,
    names.KEY: _BYTES_TYPES,
    names.ORDERING_KEY: _BYTES_TYPES,
    names.TOPIC: ("string",),
    names.EVENT_TIME: ("timestamp",),
    names.PROPERTIES: ("map<string,string>",),
    DELIVER_AT: ("timestamp",),
}


NO_LIMIT: Final = sys.maxsize
_ENDS: Final = {"endingoffsets": "endingOffsets", "endingtime": "endingTime"}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What is to be read, and how much of it at once.

    Attributes:
        read: topics, start, columns, tasks and keys.
        max_messages: most messages of a batch, of all topics together.
        max_bytes: most bytes of log of a batch.
        subscription: the subscription that follows the query; empty for none.
        waits: whether topics may be named that do not exist yet.
    """

    read: ReadOptions
    max_messages: int
    max_bytes: int
    subscription: str
    waits: bool


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Check the options of a streaming read; names are not case-sensitive.

    Raises:
        InvalidConfiguration: as `parse_options`; also an end, which a stream does not have.
        NotAllowedError: it is a store in memory that no process which started this one has open.

    Example:
        >>> parse_stream_options({"path": "/data", "topic": "t", "maxBytesPerTrigger": "8m"}).max_bytes
        8388608
    """
    options = known_options(given)
    for name in _ENDS.keys() & options.keys():
        raise InvalidConfiguration(
            f"option {_ENDS[name]} is for batch reads, and this is a streaming read; leave it out. "
            "trigger(availableNow=True) ends where the topics end at the start of the query"
        )
    messages = options.get("maxoffsetspertrigger")
    most_messages = NO_LIMIT if messages is None else number("maxOffsetsPerTrigger", messages)
    # 0 would be a query that runs and reads nothing.
    if most_messages == 0:
        raise InvalidConfiguration("option maxOffsetsPerTrigger: 0 would read nothing; give 1 or more")
    most_bytes = options.get("maxbytespertrigger")
    subscription = options.get("subscription")
    if subscription == "":
        raise InvalidConfiguration("option subscription: a subscription has a name")
    # No start is refused: `latest`, the default, waits for what comes.
    read = read_options(options, None)
    return StreamOptions(
        read,
        most_messages,
        NO_LIMIT if most_bytes is None else size("maxBytesPerTrigger", most_bytes),
        subscription or "",
        # A pattern always waits: topics that match may appear.
        read.pattern is not None
        or switch("waitingForNonExistedTopic", options.get("waitingfornonexistedtopic", "false")),
    )

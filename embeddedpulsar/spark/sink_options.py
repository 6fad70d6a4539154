"""The options of a write, and the columns that are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from embeddedpulsar._engine.store.store_root import root_of
from embeddedpulsar.arrow import schema as names
from embeddedpulsar.enums import CompressionType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.spark.options import Paths, key_paths, number
from embeddedpulsar.topic_name import TopicName

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
_KNOWN: Final = frozenset(
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
    unknown = sorted(options.keys() - _KNOWN)
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
    if batch is not None and not producer:
        raise InvalidConfiguration("option batchId numbers the batches of a producerName; give that as well")
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
    names = tuple(dict.fromkeys(filter(None, (name.strip() for name in given.split(",")))))
    if names and not paths:
        raise InvalidConfiguration(
            "option encryptionKeys needs cryptoPublicKeyPath: the file with the public key"
        )
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
        known = ", ".join(one.name for one in CompressionType)
        raise InvalidConfiguration(f"option compressionType: {text!r} is none of {known}") from None


def written_columns(found: Mapping[str, str], options: SinkOptions) -> tuple[str, ...]:
    """The columns of a DataFrame that are written.

    Args:
        found: names and types, in Spark's words.
        options: of the write.

    Raises:
        InvalidConfiguration: a column that a message has no place for, one of another type, or none to say
            what is sent or where to.

    Example:
        >>> written_columns({"value": "binary", "__publishTime": "timestamp"}, SinkOptions("/data", "t"))
        ('value',)
    """
    for name, kind in found.items():
        if name in ASSIGNED:
            continue
        if name not in _TYPES:
            raise InvalidConfiguration(
                f"column {name!r} has no place in a message: a write takes {', '.join(WRITTEN)}; put it into "
                "value, for example by to_json(struct(...)), or leave it out"
            )
        if kind not in _TYPES[name] and not (name == names.VALUE and _is_encoded(kind)):
            raise InvalidConfiguration(f"column {name} is {kind}, not {' or '.join(_TYPES[name])}; cast it")
    if names.VALUE not in found:
        raise InvalidConfiguration(
            "a write needs a column value: binary, string, or of the type that the schema of the topic has; "
            "null is a null value"
        )
    if not options.topic and names.TOPIC not in found:
        raise InvalidConfiguration("say where to write: option topic, or a column __topic")
    return tuple(name for name in found if name in _TYPES)


def _is_encoded(kind: str) -> bool:
    """Whether values of a type are encoded by the schema of the topic."""
    return kind in _SINGLE or kind.startswith(("struct<", "time("))


_BYTES: Final = ("binary", "string")
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
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    names.VALUE: _BYTES,
    names.KEY: _BYTES,
    names.ORDERING_KEY: _BYTES,
    names.TOPIC: ("string",),
    names.EVENT_TIME: ("timestamp",),
    names.PROPERTIES: ("map<string,string>",),
    DELIVER_AT: ("timestamp",),
}

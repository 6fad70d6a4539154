"""The enumerations of the Pulsar client API, with the members and the values of ``pulsar-client``.

The values are persistent: compression types are written into entries, and results are passed between
processes. Never renumber a member. `Result` is in `embeddedpulsar.results`.
"""

from __future__ import annotations

from enum import EnumMeta, IntEnum

from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn

# SchemaType and `results.Result` have more members than a line of an error should have.
_MOST_LISTED = 20


class _NamesItsMembers(EnumMeta):
    """Adds the members to the error for a name that is not a member."""

    if not TYPE_CHECKING:  # a type checker must report such a name itself

        def __getattr__(cls, name: str) -> NoReturn:
            text = f"type object {cls.__name__!r} has no attribute {name!r}"
            # Names that begin with an underscore are asked for by `copy`, `pickle` and the like, which expect
            # the usual error.
            if not name.startswith("_"):
                text = f"{cls.__name__} has no member {name!r}; {cls.choices()}"
            raise AttributeError(text, name=name, obj=cls)


class PulsarEnum(IntEnum, metaclass=_NamesItsMembers):
    """Base of the enumerations: an ``IntEnum`` that prints its name as ``pulsar-client`` does.

    As in ``pulsar-client``, every member is true, even the one with the number 0: ``kind or
    ConsumerType.Shared`` is ``kind`` whenever ``kind`` is not None.

    Example:
        >>> str(ConsumerType.Shared), repr(ConsumerType.Shared), int(ConsumerType.Shared)
        ('ConsumerType.Shared', '<ConsumerType.Shared: 1>', 1)
        >>> ConsumerType.Exclusive or ConsumerType.Shared
        <ConsumerType.Exclusive: 0>
        >>> ConsumerType("Shared")
        Traceback (most recent call last):
        ValueError: 'Shared' is not a valid ConsumerType; write ConsumerType.Exclusive, ...
    """

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        # Without this the message of `enum` would name the value alone.
        raise ValueError(f"{value!r} is not a valid {cls.__name__}; {cls.choices()}")

    @classmethod
    def choices(cls) -> str:
        """Return the list of members for the text of an error.

        >>> KeySharedMode.choices()
        'write KeySharedMode.AutoSplit or KeySharedMode.Sticky'
        """
        *names, last = [str(member) for member in cls]
        if len(names) > _MOST_LISTED:
            return f"a member is written {last}; list({cls.__name__}) has them all"
        return f"write {', '.join(names)} or {last}"

    def __bool__(self) -> bool:
        # pulsar-client's enumerations are of pybind11, whose members are true whatever their number is.
        return True

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, format_spec: str) -> str:
        # `IntEnum` would format the number.
        return format(str(self), format_spec)


class ConsumerType(PulsarEnum):
    """How the consumers of one subscription share its messages.

    ``Key_Shared``, Pulsar's name outside of ``pulsar-client``, is an alias of ``KeyShared``.

    Example:
        >>> [kind.name for kind in ConsumerType]
        ['Exclusive', 'Shared', 'Failover', 'KeyShared']
    """

    Exclusive = 0
    Shared = 1
    Failover = 2
    KeyShared = 3
    Key_Shared = 3


class InitialPosition(PulsarEnum):
    """Where a new subscription starts: after the last entry, or at the first retained one.

    Example:
        >>> int(InitialPosition.Latest), int(InitialPosition.Earliest)
        (0, 1)
    """

    Latest = 0
    Earliest = 1


class CompressionType(PulsarEnum):
    """The codec of an entry. ``ZSTD`` and ``SNAPPY`` need ``pip install "embeddedpulsar[compression]"``.

    Example:
        >>> CompressionType.LZ4
        <CompressionType.LZ4: 1>
    """

    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


class SubscriptionMode(PulsarEnum):
    """Lifetime of a subscription. A durable one outlives its consumers and keeps their acknowledgements.

    Not in ``pulsar-client`` for Python; the values are those of Pulsar's protocol.

    Example:
        >>> int(SubscriptionMode.Durable), int(SubscriptionMode.NonDurable)
        (0, 1)
    """

    Durable = 0
    NonDurable = 1


class PartitionsRoutingMode(PulsarEnum):
    """How a producer picks the partition of a message that has no key.

    Example:
        >>> PartitionsRoutingMode(1).name
        'RoundRobinDistribution'
    """

    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class BatchingType(PulsarEnum):
    """Batching of a producer: one batch, or one batch per key.

    Example:
        >>> BatchingType.KeyBased.value
        1
    """

    Default = 0
    KeyBased = 1


class ProducerAccessMode(PulsarEnum):
    """How a producer shares its topic, and what it does when exclusive access is not available.

    Example:
        >>> ProducerAccessMode.WaitForExclusive.value
        2
    """

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class RegexSubscriptionMode(PulsarEnum):
    """Which domains a pattern subscription matches.

    Example:
        >>> RegexSubscriptionMode.AllTopics.value
        2
    """

    PersistentOnly = 0
    NonPersistentOnly = 1
    AllTopics = 2


class KeySharedMode(PulsarEnum):
    """How the hash range of a Key_Shared subscription is divided: by the store, or by the consumers.

    Example:
        >>> KeySharedMode.Sticky.value
        1
    """

    AutoSplit = 0
    Sticky = 1


class ConsumerCryptoFailureAction(PulsarEnum):
    """How a consumer treats a message that it cannot decrypt.

    Example:
        >>> ConsumerCryptoFailureAction.FAIL.value
        0
    """

    FAIL = 0
    DISCARD = 1
    CONSUME = 2


class LoggerLevel(PulsarEnum):
    """Verbosity of `ConsoleLogger` and `FileLogger`.

    Example:
        >>> [level.name for level in LoggerLevel]
        ['Debug', 'Info', 'Warn', 'Error']
    """

    Debug = 0
    Info = 1
    Warn = 2
    Error = 3


class SchemaType(PulsarEnum):
    """The kind of a schema, as stored with a topic. Negative values exist in clients only.

    ``pulsar-client`` lacks ``BOOLEAN``, and dates and times; Pulsar's Java client has them.

    Example:
        >>> SchemaType.BYTES.value, SchemaType.STRING.value
        (-1, 1)
    """

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    BYTES = -1
    AUTO_CONSUME = -3
    AUTO_PUBLISH = -4


class HashingScheme(PulsarEnum):
    """The hash that maps a message key to a partition.

    ``JavaStringHash`` is the default here, as in Pulsar's Java client; ``pulsar-client`` for Python always
    uses ``BoostHash`` and offers no choice.

    Example:
        >>> [scheme.name for scheme in HashingScheme]
        ['Murmur3_32Hash', 'BoostHash', 'JavaStringHash']
    """

    Murmur3_32Hash = 0
    BoostHash = 1
    JavaStringHash = 2


class KeyValueEncodingType(PulsarEnum):
    """Where `schema.KeyValueSchema` stores the key. Not in ``pulsar-client``; as in Pulsar's Java client.

    ``INLINE``: in the payload, before the value. ``SEPARATED``: in the key of the message.

    Example:
        >>> [encoding.name for encoding in KeyValueEncodingType]
        ['SEPARATED', 'INLINE']
    """

    SEPARATED = 0
    INLINE = 1


class SchemaCompatibilityStrategy(PulsarEnum):
    """Which schemas a topic accepts beside those that it has. Not in ``pulsar-client``; as in Pulsar's Java
    client.

    ``BACKWARD``: the new schema reads what the last one wrote. ``FORWARD``: the last one reads what the new
    one writes. ``FULL``: both. With ``_TRANSITIVE``, all schemas of the topic count, not the last one alone.
    ``UNDEFINED`` stands for the strategy of the next level.

    Example:
        >>> SchemaCompatibilityStrategy["FULL"]
        <SchemaCompatibilityStrategy.FULL: 5>
    """

    UNDEFINED = 0
    ALWAYS_INCOMPATIBLE = 1
    ALWAYS_COMPATIBLE = 2
    BACKWARD = 3
    FORWARD = 4
    FULL = 5
    BACKWARD_TRANSITIVE = 6
    FORWARD_TRANSITIVE = 7
    FULL_TRANSITIVE = 8

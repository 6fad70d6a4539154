"""Broker settings: the options of a store, with Pulsar's names, from ``<root>/broker.conf``."""

from __future__ import annotations

from embeddedpulsar.error_text import nearest
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.policies import Retention
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final

_TRUE = frozenset(("true", "yes", "on", "1"))
_FALSE = frozenset(("false", "no", "off", "0"))

# Settings of features that are not built: accepted only with the value that changes nothing.
_ABSENT: dict[str, str] = {
    "dispatcherMaxRoundRobinBatchSize": "turns of a fixed size",
    "activeConsumerFailoverDelayTimeMillis": "a delay before a standby takes over",
}

_BATCHED: Final = "a commit is one record, and one flush is for all that wait for it"
_SNAPSHOTS: Final = "outcomes are looked up, and topics take no snapshots of them"

# Settings of Pulsar that tune what is not there: taken, and a warning says why they do nothing.
_WITHOUT_EFFECT: dict[str, str] = {
    "transactionMetadataStoreProviderClassName": "transactions have one log, the journal of the store",
    "transactionBufferProviderClassName": "topics look outcomes up, and have no buffers",
    "transactionPendingAckStoreProviderClassName": "the journal of a subscription has what is pending in it",
    "numTransactionReplayThreadPoolSize": "nothing is replayed for a topic or subscription",
    "transactionBufferSnapshotMaxTransactionCount": _SNAPSHOTS,
    "transactionBufferSnapshotMinTimeInMillis": _SNAPSHOTS,
    "transactionBufferSnapshotSegmentSize": _SNAPSHOTS,
    "transactionBufferSegmentedSnapshotEnabled": _SNAPSHOTS,
    "transactionBufferClientMaxConcurrentRequests": "a commit makes no requests to topics",
    "transactionBufferClientOperationTimeoutInMills": "a commit makes no requests to topics",
    "transactionLogBatchedWriteEnabled": _BATCHED,
    "transactionLogBatchedWriteMaxRecords": _BATCHED,
    "transactionLogBatchedWriteMaxSize": _BATCHED,
    "transactionLogBatchedWriteMaxDelayInMillis": _BATCHED,
    "transactionPendingAckBatchedWriteEnabled": _BATCHED,
    "transactionPendingAckBatchedWriteMaxRecords": _BATCHED,
    "transactionPendingAckBatchedWriteMaxSize": _BATCHED,
    "transactionPendingAckBatchedWriteMaxDelayInMillis": _BATCHED,
    "transactionPendingAckLogIndexMinLag": "what is pending has no log of its own",
}

# The valid numbers, for settings with a limited range.
_RANGES: dict[str, tuple[int, int]] = {
    "managedLedgerMaxSizePerLedgerMbytes": (1, 1 << 30),
    "nonPersistentTopicRingSizeInMB": (1, 4096),
    "managedLedgerMaxEntriesPerLedger": (1, 1 << 31),
    "managedLedgerMaxLedgerRolloverTimeMinutes": (1, 1 << 31),
    "keepAliveIntervalSeconds": (0, 1 << 20),
    "maxActiveTransactionsPerCoordinator": (0, 1 << 31),
    "transactionMaxTimeoutInSeconds": (1, 1 << 31),
    "retentionCheckIntervalInSeconds": (1, 1 << 20),
    "backlogQuotaCheckIntervalInSeconds": (1, 1 << 20),
    "messageExpiryCheckIntervalInMinutes": (1, 1 << 20),
    "subscriptionExpiryCheckIntervalInMinutes": (1, 1 << 20),
    "brokerDeleteInactiveTopicsFrequencySeconds": (1, 1 << 20),
    "brokerServiceCompactionMonitorIntervalInSeconds": (1, 1 << 20),
    "subscriptionKeySharedConsistentHashingReplicaPoints": (1, 10_000),
    "brokerDeduplicationEntriesInterval": (1, 1 << 31),
    "brokerDeduplicationSnapshotIntervalSeconds": (1, 1 << 31),
    "brokerDeduplicationMaxNumberOfProducers": (1, 1 << 20),
    "brokerDeduplicationProducerInactivityTimeoutMinutes": (1, 1 << 31),
}

# The valid words.
_CHOICES: dict[str, tuple[str, ...]] = {}

# generated: ranges of policies, by `make policies` from the rows in topic/policies
_RANGES |= {
    "ttlDurationDefaultInSeconds": (0, 1 << 31),
    "backlogQuotaDefaultLimitBytes": (-1, 1 << 50),
    "backlogQuotaDefaultLimitSecond": (-1, 1 << 31),
    "subscriptionExpirationTimeMinutes": (0, 1 << 31),
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": (0, 1 << 31),
    "defaultRetentionTimeInMinutes": (-1, 1 << 31),
    "defaultRetentionSizeInMB": (-1, 1 << 40),
    "brokerServiceCompactionThresholdInBytes": (0, 1 << 62),
    "managedLedgerOffloadAutoTriggerSizeThresholdBytes": (-1, 1 << 62),
    "managedLedgerOffloadThresholdInSeconds": (-1, 1 << 40),
    "managedLedgerOffloadDeletionLagMs": (0, 1 << 53),
    "maxPublishRatePerTopicInMessages": (0, 1 << 50),
    "maxPublishRatePerTopicInBytes": (0, 1 << 50),
    "dispatchThrottlingRatePerTopicInMsg": (0, 1 << 50),
    "dispatchThrottlingRatePerTopicInByte": (0, 1 << 50),
    "dispatchThrottlingRatePerSubscriptionInMsg": (0, 1 << 50),
    "dispatchThrottlingRatePerSubscriptionInByte": (0, 1 << 50),
    "subscribeThrottlingRatePerConsumer": (0, 1 << 31),
    "subscribeRatePeriodPerConsumerInSecond": (1, 1 << 20),
    "maxMessageSize": (1, 1 << 30),
    "maxProducersPerTopic": (0, 1 << 31),
    "maxConsumersPerTopic": (0, 1 << 31),
    "maxConsumersPerSubscription": (0, 1 << 31),
    "maxSubscriptionsPerTopic": (0, 1 << 31),
    "maxTopicsPerNamespace": (0, 1 << 31),
    "delayedDeliveryTickTimeMillis": (1, 1 << 31),
    "maxUnackedMessagesPerConsumer": (0, (1 << 32) - 1),
    "maxUnackedMessagesPerSubscription": (0, (1 << 32) - 1),
    "defaultNumPartitions": (1, 10_000),
}
_CHOICES |= {
    "backlogQuotaDefaultRetentionPolicy": (
        "producer_request_hold",
        "producer_exception",
        "consumer_backlog_eviction",
    ),
    "brokerDeleteInactiveTopicsMode": ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
    "allowAutoTopicCreationType": ("non-partitioned", "partitioned"),
    "schemaCompatibilityStrategy": (
        "ALWAYS_INCOMPATIBLE",
        "ALWAYS_COMPATIBLE",
        "BACKWARD",
        "FORWARD",
        "FULL",
        "BACKWARD_TRANSITIVE",
        "FORWARD_TRANSITIVE",
        "FULL_TRANSITIVE",
    ),
    "systemTopicSchemaCompatibilityStrategy": (
        "ALWAYS_INCOMPATIBLE",
        "ALWAYS_COMPATIBLE",
        "BACKWARD",
        "FORWARD",
        "FULL",
        "BACKWARD_TRANSITIVE",
        "FORWARD_TRANSITIVE",
        "FULL_TRANSITIVE",
    ),
}
# end of ranges of policies


class BrokerSettings(NamedTuple):
    """The settings of one store. Immutable; every process that opens the store reads the same file.

    Fields have Pulsar's own names and defaults, except where a comment says otherwise. Read them from text
    with `parse`.

    Attributes:
        unknown: names in the text that are not settings of this package, or do nothing here; the store logs a
            warning.

    Example:
        >>> settings = BrokerSettings.parse("maxMessageSize = 1048576  # 1 MiB")
        >>> settings.maxMessageSize, settings.allowAutoTopicCreation
        (1048576, True)
    """

    # Messages and segments
    managedLedgerMaxSizePerLedgerMbytes: int = 64  # Pulsar: 2048; a segment is one file, mapped as a whole
    managedLedgerMaxEntriesPerLedger: int = 250_000  # Pulsar: 50000
    managedLedgerMaxLedgerRolloverTimeMinutes: int = 240
    # Topics and subscriptions
    enableNonPersistentTopics: bool = True
    nonPersistentTopicRingSizeInMB: int = 16  # not in Pulsar
    brokerDeleteInactiveTopicsFrequencySeconds: int = 60
    brokerDeleteInactivePartitionedTopicMetadataEnabled: bool = False
    subscriptionExpiryCheckIntervalInMinutes: int = 5
    # Dispatch
    keepAliveIntervalSeconds: int = 30
    acknowledgmentAtBatchIndexLevelEnabled: bool = True  # Pulsar: false
    dispatcherMaxRoundRobinBatchSize: int = 20
    subscriptionKeySharedUseConsistentHashing: bool = False  # Pulsar: true since 3.0
    subscriptionKeySharedConsistentHashingReplicaPoints: int = 100
    subscriptionKeySharedUseClassicPersistentImplementation: bool = False
    activeConsumerFailoverConsistentHashing: bool = False
    activeConsumerFailoverDelayTimeMillis: int = 0  # Pulsar: 1000
    # Delayed delivery
    isDelayedDeliveryDeliverAtTimeStrict: bool = True  # Pulsar: false
    # Duplicates
    brokerDeduplicationEntriesInterval: int = 1000
    brokerDeduplicationSnapshotIntervalSeconds: int = 120
    brokerDeduplicationMaxNumberOfProducers: int = 10_000
    brokerDeduplicationProducerInactivityTimeoutMinutes: int = 360
    # Keeping and dropping
    messageExpiryCheckIntervalInMinutes: int = 5
    retentionCheckIntervalInSeconds: int = 120
    letterTopicsExpire: bool = False  # not in Pulsar
    brokerServiceCompactionMonitorIntervalInSeconds: int = 60
    topicCompactionRetainNullKey: bool = False
    backlogQuotaCheckEnabled: bool = True
    backlogQuotaCheckIntervalInSeconds: int = 60
    # Transactions
    transactionCoordinatorEnabled: bool = True  # Pulsar: false
    maxActiveTransactionsPerCoordinator: int = 0
    transactionMaxTimeoutInSeconds: int = 900  # not in Pulsar
    # generated: fields of policies, by `make policies` from the rows in topic/policies
    ttlDurationDefaultInSeconds: int = 0
    backlogQuotaDefaultLimitBytes: int = -1
    backlogQuotaDefaultRetentionPolicy: str = "producer_request_hold"
    backlogQuotaDefaultLimitSecond: int = -1
    subscriptionExpirationTimeMinutes: int = 0
    brokerDeleteInactiveTopicsEnabled: bool = False  # Pulsar: true
    brokerDeleteInactiveTopicsMaxInactiveDurationSeconds: int = 0  # as long as the frequency
    brokerDeleteInactiveTopicsMode: str = "delete_when_no_subscriptions"
    defaultRetentionTimeInMinutes: int = 0
    defaultRetentionSizeInMB: int = 0
    letterTopicsKeepUntilSubscribed: bool = True  # not in Pulsar
    brokerServiceCompactionThresholdInBytes: int = 0
    managedLedgerOffloadLocation: str = ""  # not in Pulsar: for driver, bucket and endpoint
    managedLedgerOffloadAutoTriggerSizeThresholdBytes: int = -1
    managedLedgerOffloadThresholdInSeconds: int = -1
    managedLedgerOffloadDeletionLagMs: int = 14_400_000
    maxPublishRatePerTopicInMessages: int = 0
    maxPublishRatePerTopicInBytes: int = 0
    dispatchThrottlingRatePerTopicInMsg: int = 0
    dispatchThrottlingRatePerTopicInByte: int = 0
    dispatchThrottlingRateRelativeToPublishRate: bool = False
    dispatchThrottlingRatePerSubscriptionInMsg: int = 0
    dispatchThrottlingRatePerSubscriptionInByte: int = 0
    subscribeThrottlingRatePerConsumer: int = 0
    subscribeRatePeriodPerConsumerInSecond: int = 30
    maxMessageSize: int = 5_242_880
    maxProducersPerTopic: int = 0
    maxConsumersPerTopic: int = 0
    maxConsumersPerSubscription: int = 0
    maxSubscriptionsPerTopic: int = 0
    maxTopicsPerNamespace: int = 0
    delayedDeliveryEnabled: bool = True
    delayedDeliveryTickTimeMillis: int = 1000
    maxUnackedMessagesPerConsumer: int = 50_000
    maxUnackedMessagesPerSubscription: int = 200_000
    allowAutoTopicCreation: bool = True
    allowAutoTopicCreationType: str = "non-partitioned"
    defaultNumPartitions: int = 1
    allowAutoSubscriptionCreation: bool = True
    encryptionRequireOnProducer: bool = False
    schemaCompatibilityStrategy: str = "FULL"
    systemTopicSchemaCompatibilityStrategy: str = "ALWAYS_COMPATIBLE"
    isSchemaValidationEnforced: bool = False
    isAllowAutoUpdateSchemaEnabled: bool = True
    brokerDeduplicationEnabled: bool = False
    # end of fields of policies

    unknown: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> BrokerSettings:
        """Read ``name=value`` lines. ``#`` starts a comment. The last line of a name counts.

        Raises:
            InvalidConfiguration: a line or a value cannot be read; the text names the line.

        Example:
            >>> BrokerSettings.parse("zookeeperServers=localhost").unknown
            ('zookeeperServers',)
        """
        values: dict[str, Any] = {}
        unknown: dict[str, None] = {}
        text = text.removeprefix("\ufeff")  # the mark of the byte order, which editors of Windows write
        for number, line in enumerate(text.splitlines(), 1):
            line = line.partition("#")[0].strip()
            if not line:
                continue
            name, separator, value = (part.strip() for part in line.partition("="))
            if not separator or not name:
                raise InvalidConfiguration(f"broker.conf line {number}: write name=value, not {line!r}")
            if name not in cls._field_defaults or name == "unknown":
                unknown[name] = None
            elif value:  # an empty value means the default, as in the file that Pulsar ships
                where = f"broker.conf line {number}"
                values[name] = read_setting(where, name, value, cls._field_defaults[name])
            else:
                values.pop(name, None)
        return cls()._replace(unknown=tuple(unknown), **values)

    def check_supported(self) -> None:
        """Refuse settings of features that are not built, and settings that contradict each other.

        Raises:
            InvalidConfiguration: the text names the setting and the valid value.

        Example:
            >>> BrokerSettings.parse("dispatcherMaxRoundRobinBatchSize=21").check_supported()
            Traceback (most recent call last):
            embeddedpulsar.exceptions.InvalidConfiguration: Pulsar error: ...
        """
        for name, feature in _ABSENT.items():
            default = self._field_defaults[name]
            if getattr(self, name) != default:
                raise InvalidConfiguration(
                    f"broker.conf: {name} needs {feature}, which is not built yet; "
                    f"remove the line or set it to {write_setting(default)}"
                )
        self.retention.check("broker.conf: defaultRetentionTimeInMinutes and defaultRetentionSizeInMB")

    def warnings(self) -> list[str]:
        """Return the warnings for unknown names, and for those that do nothing here.

        Example:
            >>> BrokerSettings.parse("maxMesageSize=1048576").warnings()
            ['unknown setting maxMesageSize, ignored; did you mean maxMessageSize?']
            >>> BrokerSettings.parse("transactionPendingAckLogIndexMinLag=500").warnings()
            ['transactionPendingAckLogIndexMinLag has no effect: what is pending has no log of its own']
        """
        if not self.unknown:
            return []
        known = [name for name in self._fields if name != "unknown"]
        texts = []
        for name in self.unknown:
            if name in _WITHOUT_EFFECT:
                texts.append(f"{name} has no effect: {_WITHOUT_EFFECT[name]}")
                continue
            near = nearest(name, known)
            hint = f"; did you mean {near}?" if near else ""
            texts.append(f"unknown setting {name}, ignored{hint}")
        return texts

    @property
    def retention(self) -> Retention:
        """The default retention of topics.

        Example:
            >>> BrokerSettings().retention
            Retention(time_minutes=0, size_mb=0)
        """
        return Retention(self.defaultRetentionTimeInMinutes, self.defaultRetentionSizeInMB)


def read_setting(where: str, name: str, value: str, default: object) -> int | bool | str:
    """Return the value of a setting.

    Args:
        where: it is written, for errors.
        name: of the setting.
        value: its text.
        default: of the setting, whose type decides.

    Raises:
        InvalidConfiguration: the text is no value of this setting.

    Example:
        >>> read_setting("a test", "allowAutoTopicCreation", "FALSE", True)
        False
    """
    # The default decides the type. bool comes first: True is an int in Python.
    if isinstance(default, bool):
        word = value.lower()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
        raise InvalidConfiguration(f"{where}: {name} is true or false, not {value!r}")
    if isinstance(default, int):
        try:
            number = int(value)
        except ValueError:
            raise InvalidConfiguration(f"{where}: {name} is a number, not {value!r}") from None
        low, high = _RANGES.get(name, (number, number))
        if not low <= number <= high:
            raise InvalidConfiguration(f"{where}: {name} is a number from {low} to {high}, not {number}")
        return number
    if value not in (choices := _CHOICES.get(name, (value,))):
        raise InvalidConfiguration(f"{where}: {name} is {' or '.join(choices)}, not {value!r}")
    return value


def write_setting(value: object) -> str:
    """Return a value as ``broker.conf`` has it.

    Example:
        >>> write_setting(True), write_setting(5)
        ('true', '5')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)

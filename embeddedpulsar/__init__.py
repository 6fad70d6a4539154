"""Apache Pulsar's messaging model as a library: topics and subscriptions in a directory, no daemon.

Names, parameters and defaults are those of ``pulsar-client``: changing the import to ``import embeddedpulsar
as pulsar`` migrates a program, and changing it back returns to Pulsar.

Example:
    >>> import embeddedpulsar
    >>> embeddedpulsar.MessageId.earliest, embeddedpulsar.ConsumerType.Shared
    ((-1,-1,-1,-1), <ConsumerType.Shared: 1>)
"""

from __future__ import annotations

from sys import modules

from embeddedpulsar import exceptions, schema
from embeddedpulsar._engine import EXTENSIONS as _EXTENSIONS
from embeddedpulsar._engine.platform import threads as _threads  # noqa: F401 - binds primitives now
from embeddedpulsar._engine.platform.descriptors import late_imports as _late_imports
from embeddedpulsar.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    KeySharedMode,
    LoggerLevel,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
    SchemaType,
    SubscriptionMode,
)
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    AuthenticationError,
    AuthorizationError,
    BrokerMetadataError,
    BrokerPersistenceError,
    ChecksumError,
    ConnectError,
    ConsumerAssignError,
    ConsumerBusy,
    ConsumerNotFound,
    ConsumerNotInitialized,
    CorruptionError,
    CryptoError,
    CumulativeAcknowledgementNotAllowedError,
    DescriptorLimitError,
    ErrorGettingAuthenticationData,
    IncompatibleSchema,
    Interrupted,
    InvalidConfiguration,
    InvalidMessage,
    InvalidTopicName,
    InvalidTxnStatusError,
    InvalidUrl,
    LookupError,
    MemoryBufferIsFull,
    MessageTooBig,
    NotAllowedError,
    NotConnected,
    OperationNotSupported,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    ProducerBusy,
    ProducerFenced,
    ProducerNotInitialized,
    ProducerQueueIsFull,
    PulsarException,
    ReadError,
    ServiceUnitNotReady,
    StorageError,
    StorageFullError,
    SubscriptionNotFound,
    ThreadLimitError,
    Timeout,
    TooManyLookupRequestException,
    TopicNotFound,
    TopicTerminated,
    TransactionConflict,
    TransactionCoordinatorNotFoundError,
    TransactionHasOperationFailed,
    TransactionNotFound,
    TransactionTimeout,
    UnknownError,
    UnsupportedVersionError,
)
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.schema import BytesSchema, Schema, SchemaInfo, StringSchema

if TYPE_CHECKING:
    from typing import Any

    from embeddedpulsar._engine.platform.timing import Clock
    from embeddedpulsar._engine.store.care.backup_target import BackupTarget
    from embeddedpulsar.admin.admin import Admin
    from embeddedpulsar.client.client import Client
    from embeddedpulsar.client.client_config import ConsoleLogger, FileLogger
    from embeddedpulsar.client.cluster_options import (
        Authentication,
        AuthenticationAthenz,
        AuthenticationBasic,
        AuthenticationOauth2,
        AuthenticationTLS,
        AuthenticationToken,
        AutoClusterFailover,
        MessageBatch,
        ServiceInfo,
        ServiceInfoProvider,
    )
    from embeddedpulsar.client.consumer.consumer import Consumer
    from embeddedpulsar.client.consumer.due_entries import MultiplierRedeliveryBackoff
    from embeddedpulsar.client.consumer.reader import Reader
    from embeddedpulsar.client.consumer.table_view import TableView
    from embeddedpulsar.client.interceptors import (
        ConsumerInterceptor,
        ProducerInterceptor,
        ReaderInterceptor,
    )
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.client.statistics import ConsumerStats, ProducerStats
    from embeddedpulsar.client.transaction import (
        JoinedTransaction,
        PreparedTransaction,
        Transaction,
        TransactionState,
        TxnID,
    )
    from embeddedpulsar.crypto import CryptoKeyReader, EncryptionKeyInfo
    from embeddedpulsar.damage import Damage, DamageHook
    from embeddedpulsar.encryption import EncryptionContext, EncryptionKey
    from embeddedpulsar.enums import SchemaCompatibilityStrategy
    from embeddedpulsar.functions.context import Context
    from embeddedpulsar.functions.function import Function
    from embeddedpulsar.functions.serde import IdentitySerDe, PickleSerDe, SerDe
    from embeddedpulsar.policies import (
        BatchReceivePolicy,
        ConsumerBatchReceivePolicy,
        ConsumerDeadLetterPolicy,
        ConsumerKeySharedPolicy,
        DeadLetterPolicyBuilder,
        KeySharedPolicy,
    )
    from embeddedpulsar.results import Result
    from embeddedpulsar.spark.sink_place import SinksCut, SinkUpkeep

__version__ = "0.1.0"

# Loaded on first access, so that importing the package is fast.
_LOGGERS = "embeddedpulsar.client.client_config"
_NETWORK = "embeddedpulsar.client.cluster_options"
_INTERCEPTORS = "embeddedpulsar.client.interceptors"
_STATISTICS = "embeddedpulsar.client.statistics"
_TRANSACTION = "embeddedpulsar.client.transaction"
_POLICIES = "embeddedpulsar.policies"
_SERDE = "embeddedpulsar.functions.serde"
_LAZY = {
    "Authentication": _NETWORK,
    "AuthenticationAthenz": _NETWORK,
    "AuthenticationBasic": _NETWORK,
    "AuthenticationOauth2": _NETWORK,
    "AuthenticationTLS": _NETWORK,
    "AuthenticationToken": _NETWORK,
    "AutoClusterFailover": _NETWORK,
    "ConsoleLogger": _LOGGERS,
    "ConsumerInterceptor": _INTERCEPTORS,
    "ConsumerStats": _STATISTICS,
    "ProducerStats": _STATISTICS,
    "FileLogger": _LOGGERS,
    "ServiceInfo": _NETWORK,
    "ServiceInfoProvider": _NETWORK,
    "Admin": "embeddedpulsar.admin.admin",
    "Client": "embeddedpulsar.client.client",
    "Damage": "embeddedpulsar.damage",
    "CryptoKeyReader": "embeddedpulsar.crypto",
    "EncryptionContext": "embeddedpulsar.encryption",
    "EncryptionKey": "embeddedpulsar.encryption",
    "EncryptionKeyInfo": "embeddedpulsar.crypto",
    "Consumer": "embeddedpulsar.client.consumer.consumer",
    "Context": "embeddedpulsar.functions.context",
    "Function": "embeddedpulsar.functions.function",
    "IdentitySerDe": _SERDE,
    "PickleSerDe": _SERDE,
    "SerDe": _SERDE,
    "ProducerInterceptor": _INTERCEPTORS,
    "ReaderInterceptor": _INTERCEPTORS,
    "MultiplierRedeliveryBackoff": "embeddedpulsar.client.consumer.due_entries",
    "MessageBatch": "embeddedpulsar.client.cluster_options",
    "Producer": "embeddedpulsar.client.producer.producer",
    "BatchReceivePolicy": _POLICIES,
    "ConsumerBatchReceivePolicy": _POLICIES,
    "ConsumerDeadLetterPolicy": _POLICIES,
    "ConsumerKeySharedPolicy": _POLICIES,
    "DeadLetterPolicyBuilder": _POLICIES,
    "KeySharedPolicy": _POLICIES,
    "Result": "embeddedpulsar.results",
    "Reader": "embeddedpulsar.client.consumer.reader",
    "SchemaCompatibilityStrategy": "embeddedpulsar.enums",
    "TableView": "embeddedpulsar.client.consumer.table_view",
    "JoinedTransaction": _TRANSACTION,
    "PreparedTransaction": _TRANSACTION,
    "Transaction": _TRANSACTION,
    "TransactionState": _TRANSACTION,
    "TxnID": _TRANSACTION,
}


def _offloading(*arguments: Any) -> Any:
    """Make the offloading of a topic, for the engine."""
    with _late_imports():
        from embeddedpulsar.offload import TopicOffload

    return TopicOffload(*arguments)


def _finish_commits(root: str, /, *, report: DamageHook) -> int:
    """Finish the commits of the sinks of a store, as the next write would."""
    with _late_imports():
        from embeddedpulsar.spark.sink_commit import finish_commits

    return finish_commits(root, report=report)


def _sink_upkeep(root: str, clock: Clock, report: DamageHook) -> SinkUpkeep:
    """Make the upkeep of the sinks of a store, for the engine."""
    with _late_imports():
        from embeddedpulsar.spark.sink_place import SinkUpkeep

    return SinkUpkeep(root, clock, lambda: _finish_commits(root, report=report))


def _sinks_cut(root: str, target: BackupTarget) -> SinksCut:
    """Make what a backup has of sinks, for the engine."""
    with _late_imports():
        from embeddedpulsar.spark.sink_place import SinksCut

    return SinksCut(root, target)


_EXTENSIONS.offloading = _offloading
_EXTENSIONS.chores["sinks"] = _sink_upkeep
_EXTENSIONS.shared_records.append(_sinks_cut)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    # Bound here on first access, so the second one does not come through this function.
    if name in _LAZY:
        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    # As attributes without an import, as `pulsar.asyncio` and `pulsar.functions` are.
    if name in ("asyncio", "functions", "outbox"):
        return import_module(f"embeddedpulsar.{name}")
    if name == "inbox":
        return import_module("embeddedpulsar.outbox.inbox")
    # With `name` and `obj` the interpreter adds the most similar name.
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=modules[__name__])


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


def connect(service_url: Any, **options: Any) -> Client:
    """Open a store in a directory, or connect to a Pulsar cluster, by the form of the URL.

    Args:
        service_url: a path (``./data``), ``file:///path``, ``memory://`` for a store in memory. Or
            ``pulsar://host:6650`` for a cluster, also with ``pulsar+ssl``, ``http`` and ``https``; an
            `AutoClusterFailover` or a `ServiceInfoProvider` for several clusters.
        **options: keyword arguments of `Client`.

    Returns:
        A `Client`; for a cluster, one over that of the package ``pulsar-client``, with the classes, errors
        and methods of this package.

    Raises:
        ImportError: the URL names a cluster and ``pulsar-client`` is not installed.
        InvalidConfiguration: an option that ``pulsar-client`` does not have.

    Example:
        >>> connect("word")
        Traceback (most recent call last):
        ValueError: The scheme part is missing: word ...
    """
    from embeddedpulsar.client.client_config import is_cluster

    # By the form alone: a client of this package is not made for an address of a cluster, nor the other way
    # round.
    if is_cluster(service_url):
        from embeddedpulsar.cluster.client import connected

        return connected(service_url, **options)
    # Through `__getattr__`, as an attribute of this module: it is replaced there by tests.
    client: Client = __getattr__("Client")(service_url, **options)
    return client


__all__ = [
    # Clients
    "Admin",
    "Client",
    "Consumer",
    "Producer",
    "Reader",
    "TableView",
    "connect",
    # Messages
    "Message",
    "MessageBatch",
    "MessageId",
    # Transactions
    "JoinedTransaction",
    "PreparedTransaction",
    "Transaction",
    "TransactionState",
    "TxnID",
    # Schemas
    "BytesSchema",
    "Schema",
    "SchemaInfo",
    "StringSchema",
    "schema",
    # Functions
    "Context",
    "Function",
    "IdentitySerDe",
    "PickleSerDe",
    "SerDe",
    # Interceptors and statistics
    "ConsumerInterceptor",
    "ConsumerStats",
    "ProducerStats",
    "ProducerInterceptor",
    "ReaderInterceptor",
    # Encryption
    "CryptoKeyReader",
    "EncryptionContext",
    "EncryptionKey",
    "EncryptionKeyInfo",
    # Policies
    "BatchReceivePolicy",
    "ConsumerBatchReceivePolicy",
    "ConsumerDeadLetterPolicy",
    "ConsumerKeySharedPolicy",
    "DeadLetterPolicyBuilder",
    "KeySharedPolicy",
    "MultiplierRedeliveryBackoff",
    # Accepted for clusters: credentials, fail-over, logging
    "Authentication",
    "AuthenticationAthenz",
    "AuthenticationBasic",
    "AuthenticationOauth2",
    "AuthenticationTLS",
    "AuthenticationToken",
    "AutoClusterFailover",
    "ConsoleLogger",
    "FileLogger",
    "ServiceInfo",
    "ServiceInfoProvider",
    # Enumerations
    "BatchingType",
    "CompressionType",
    "ConsumerCryptoFailureAction",
    "ConsumerType",
    "HashingScheme",
    "InitialPosition",
    "KeySharedMode",
    "LoggerLevel",
    "PartitionsRoutingMode",
    "ProducerAccessMode",
    "RegexSubscriptionMode",
    "Result",
    "SchemaCompatibilityStrategy",
    "SchemaType",
    "SubscriptionMode",
    # Errors
    "AlreadyClosed",
    "AuthenticationError",
    "AuthorizationError",
    "BrokerMetadataError",
    "BrokerPersistenceError",
    "ChecksumError",
    "ConnectError",
    "ConsumerAssignError",
    "ConsumerBusy",
    "ConsumerNotFound",
    "ConsumerNotInitialized",
    "CorruptionError",
    "Damage",
    "CryptoError",
    "CumulativeAcknowledgementNotAllowedError",
    "DescriptorLimitError",
    "ErrorGettingAuthenticationData",
    "IncompatibleSchema",
    "Interrupted",
    "InvalidConfiguration",
    "InvalidMessage",
    "InvalidTopicName",
    "InvalidTxnStatusError",
    "InvalidUrl",
    "LookupError",
    "MemoryBufferIsFull",
    "MessageTooBig",
    "NotAllowedError",
    "NotConnected",
    "OperationNotSupported",
    "ProducerBlockedQuotaExceededError",
    "ProducerBlockedQuotaExceededException",
    "ProducerBusy",
    "ProducerFenced",
    "ProducerNotInitialized",
    "ProducerQueueIsFull",
    "PulsarException",
    "ReadError",
    "ServiceUnitNotReady",
    "StorageError",
    "StorageFullError",
    "SubscriptionNotFound",
    "ThreadLimitError",
    "Timeout",
    "TooManyLookupRequestException",
    "TopicNotFound",
    "TopicTerminated",
    "TransactionConflict",
    "TransactionCoordinatorNotFoundError",
    "TransactionHasOperationFailed",
    "TransactionNotFound",
    "TransactionTimeout",
    "UnknownError",
    "UnsupportedVersionError",
    "exceptions",
]

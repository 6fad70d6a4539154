"""Values of this package as those of ``pulsar-client``, and back.

Errors of ``pulsar-client`` as those of this package.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from functools import cache
from types import TracebackType
from typing import Any, Final

from embeddedpulsar import enums, error_text, exceptions
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar.client import client_config, cluster_options
from embeddedpulsar.crypto import CryptoKeyReader
from embeddedpulsar.exceptions import (
    InvalidConfiguration,
    OperationNotSupported,
    PulsarException,
    TopicNotFound,
)
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.policies import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
)
from embeddedpulsar.schema import Schema, SchemaInfo


def translated_error(error: BaseException) -> PulsarException | None:
    """Return the error of this package for one of ``pulsar-client``; None for any other error."""
    # By name along the classes: `pulsar-client` need not be imported to know its errors, and may be a
    # stand-in of a test.
    if isinstance(error, PulsarException) or not any(
        kind.__name__ == "PulsarException" for kind in type(error).__mro__
    ):
        return None
    our_error = _class(type(error).__name__)()
    our_error.args = (str(error),)  # the text of pulsar-client, which is that of this package
    return our_error


# Errors have the same names in both packages. One that only a newer `pulsar-client` has becomes the base
# class.
def _class(name: str) -> type[PulsarException]:
    kind = getattr(exceptions, name, None)
    if isinstance(kind, type) and issubclass(kind, PulsarException):
        return kind
    return PulsarException


def not_supported(what: str, instead: str) -> OperationNotSupported:
    """The error of a method that a cluster, or ``pulsar-client``, does not have."""
    return OperationNotSupported(f"{what} needs a store of embeddedpulsar; on a cluster, {instead}")


def unknown_option(call: str, name: str) -> InvalidConfiguration:
    """The error of an option that ``pulsar-client`` does not have."""
    return InvalidConfiguration(f"pulsar-client has no option {name} of {call}; leave it out for a cluster")


class _Translation:
    """Context manager without state: one object serves every call and thread."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and (translated := translated_error(error)) is not None:
            raise translated from error


translated: Final = _Translation()
"""``with translated:`` around a call of ``pulsar-client`` raises the errors of this package."""


def failure(result: Any) -> PulsarException:
    """The error for a result of ``pulsar-client`` other than ``Ok``."""
    error = _class(result.name)()
    error.args = (error_text.describe(result.name, ""),)
    return error


# Options of this package that concern the files of a store. On a cluster, its brokers decide.
OF_FILES: Final = frozenset(
    {"durability", "durability_interval_ms", "allow_network_fs", "on_damage", "read_only"}
)


def library() -> Any:
    """Return the module ``pulsar``, imported when the first client of a cluster is made.

    Raises:
        ImportError: ``pulsar-client`` is not installed; the text has the command that installs it.
    """
    try:
        with late_imports():
            import pulsar
    except ImportError as error:
        raise ImportError(
            'a Pulsar cluster needs the package pulsar-client: pip install "embeddedpulsar[pulsar]"'
        ) from error
    return pulsar


def _extension() -> Any:
    """Return the extension module of ``pulsar-client``."""
    with late_imports():
        import _pulsar
    return _pulsar


def given(call: Callable[..., Any], theirs: Callable[..., Any], *args: Any, **options: Any) -> dict[str, Any]:
    """Return the arguments of a call by name, as ``pulsar-client`` takes them.

    Args:
        call: the method of this package.
        theirs: that of ``pulsar-client``.
        *args: positional arguments, without ``self``.
        **options: the others.

    Raises:
        TypeError: the method has no such parameter.
        InvalidConfiguration: ``pulsar-client`` has no such option, and it has not its default.
    """
    parameters = inspect.signature(call).parameters
    bound = inspect.signature(call).bind(None, *args, **options).arguments
    bound.pop("self")
    bound.update(bound.pop("options", {}))
    known = inspect.signature(theirs).parameters
    translated_arguments = {}
    for name, value in bound.items():
        if name in known:
            translated_arguments[name] = to_pulsar(value)
        # Two cases are left: an option of files, which a cluster does not have, is ignored; any other is an
        # error, unless it has the value that it has when it is left out.
        elif name not in OF_FILES and (name not in parameters or value != parameters[name].default):
            raise unknown_option(call.__name__.replace("__init__", "Client"), name)
    return translated_arguments


def to_pulsar(value: Any) -> Any:
    """Return the value of ``pulsar-client`` for one of this package, and any other value unchanged."""
    # The order of the table does not matter: no class in it derives from another.
    for kind, convert in _CONVERSIONS.items():
        if isinstance(value, kind):
            return convert(value)
    return value


def _enum(value: Enum) -> Any:
    # Both packages have the enumerations by the same names; `pulsar-client` has its values in its extension
    # module.
    theirs = getattr(getattr(_extension(), type(value).__name__, None), value.name, None)
    if theirs is None:
        raise InvalidConfiguration(f"pulsar-client has no {value}")
    return theirs


class ClusterMessageId(MessageId):
    """The id of a message of a cluster, with that of ``pulsar-client``, which knows the batch it is of."""

    __slots__ = ("theirs",)

    theirs: Any

    # The id of `pulsar-client` cannot be pickled. The bytes have what a seek needs.
    def __reduce__(self) -> tuple[Any, ...]:
        return MessageId.deserialize, (self.serialize(), self._topic)


def from_message_id(theirs: Any, topic: str) -> MessageId:
    """Return the id of this package for one of ``pulsar-client``."""
    parsed = MessageId.deserialize(theirs.serialize(), topic)
    # Without `__init__`, which would check the numbers again: this is called for every message.
    message_id = ClusterMessageId.__new__(ClusterMessageId)
    for name in MessageId.__slots__:
        if hasattr(parsed, name):
            setattr(message_id, name, getattr(parsed, name))
    message_id.theirs = theirs
    return message_id


def _message_id(value: MessageId) -> Any:
    if isinstance(value, ClusterMessageId):
        return value.theirs
    return library().MessageId.deserialize(value.serialize(), getattr(value, "_topic", None))


def _key_reader(value: CryptoKeyReader) -> Any:
    # A subclass has code of the application, which `pulsar-client` does not call.
    if type(value) is not CryptoKeyReader:
        raise InvalidConfiguration(
            "pulsar-client reads keys from files only; give CryptoKeyReader(public_path, private_path)"
        )
    return library().CryptoKeyReader(value.public_key_path, value.private_key_path)


def _batch_policy(value: ConsumerBatchReceivePolicy) -> Any:
    policy = value.policy()
    return library().ConsumerBatchReceivePolicy(
        policy.getMaxNumMessages(), policy.getMaxNumBytes(), policy.getTimeoutMs()
    )


def _key_shared_policy(value: ConsumerKeySharedPolicy) -> Any:
    return library().ConsumerKeySharedPolicy(
        _enum(value.key_shared_mode), value.allow_out_of_order_delivery, value.sticky_ranges or None
    )


def _dead_letter_policy(value: ConsumerDeadLetterPolicy) -> Any:
    return library().ConsumerDeadLetterPolicy(
        value.max_redeliver_count, value.dead_letter_topic or None, value.initial_subscription_name or None
    )


def _authentication(value: cluster_options.Authentication) -> Any:
    return getattr(library(), type(value).__name__)(*value.arguments)


def _service_info(value: cluster_options.ServiceInfo) -> Any:
    return library().ServiceInfo(
        value.service_url, to_pulsar(value.authentication), value.tls_trust_certs_file_path
    )


def from_service_info(theirs: Any) -> cluster_options.ServiceInfo:
    """Return the address of this package for one of ``pulsar-client``, without credentials."""
    return cluster_options.ServiceInfo(
        theirs.service_url, tls_trust_certs_file_path=theirs.tls_trust_certs_file_path
    )


def _failover(value: cluster_options.AutoClusterFailover) -> Any:
    return library().AutoClusterFailover(
        _service_info(value.primary),
        [_service_info(info) for info in value.secondary],
        value.check_interval_ms,
        value.failover_threshold,
        value.switch_back_threshold,
    )


def _provider(value: cluster_options.ServiceInfoProvider) -> Any:
    class Provider(library().ServiceInfoProvider):  # type: ignore[misc]
        """Passes the calls of ``pulsar-client`` to the provider of the application."""

        def initial_service_info(self) -> Any:
            return to_pulsar(value.initial_service_info())

        def initialize(self, on_service_info_update: Callable[[Any], None]) -> None:
            value.initialize(lambda info: on_service_info_update(to_pulsar(info)))

        def close(self) -> None:
            value.close()

    return Provider()


def _console_logger(value: client_config.ConsoleLogger) -> Any:
    return library().ConsoleLogger(_enum(value.log_level))


def _file_logger(value: client_config.FileLogger) -> Any:
    return library().FileLogger(_enum(value.log_level), value.log_file)


@cache
def _adapter() -> Any:
    class Adapter(library().schema.Schema):  # type: ignore[misc]
        """A schema of this package, where ``pulsar-client`` expects one of its own."""

        def __init__(self, ours: Schema[Any]) -> None:
            info = ours.schema_info()
            self.ours = ours
            self._client: Any = None
            self._writers: dict[tuple[str, int], SchemaInfo | None] = {}
            kind = max(info.schema_type(), enums.SchemaType.BYTES)  # those that depend on the topic are bytes
            make = _extension().SchemaInfo
            self._schema_info = make(_kind(enums.SchemaType(kind)), info.name(), info.schema())

        def encode(self, obj: Any) -> Any:
            return self.ours.encode(obj)

        def decode(self, data: bytes) -> Any:
            return self.ours.decode(data)

        def attach_client(self, client: Any) -> None:
            self._client = client

        def writer_of(self, raw: Any) -> SchemaInfo | None:
            """The schema with which a message was written, fetched once for each version."""
            if not raw.schema_version():
                return None
            place = raw.topic_name(), raw.int_schema_version()
            if place not in self._writers:
                try:
                    with translated:
                        # A request to the broker, in the middle of decoding: once for each topic and version.
                        theirs = self._client.get_schema_info(*place)
                except TopicNotFound:  # not kept any more; a cluster that does not answer raises
                    return None
                kind = enums.SchemaType(int(theirs.schema_type()))
                if kind == enums.SchemaType.KEY_VALUE:  # without its properties it says nothing
                    return None
                self._writers[place] = SchemaInfo(kind, theirs.name(), theirs.schema())
            return self._writers[place]

    return Adapter


def _kind(kind: enums.SchemaType) -> Any:
    """The type of a schema that ``pulsar-client`` registers: not those whose properties it does not send."""
    # The schema of a pair lies in properties, which `pulsar-client` neither sends nor returns.
    if kind == enums.SchemaType.KEY_VALUE or not hasattr(_extension().SchemaType, kind.name):
        raise InvalidConfiguration(
            f"pulsar-client does not register schemas of the type {kind.name}; leave the schema out, and "
            "call it yourself: send(schema.encode(value)) and schema.decode(message.data()); of a "
            "KeyValueSchema that is SEPARATED, encode_keyed and decode_keyed, with partition_key"
        )
    return _enum(kind)


def _schema(value: Schema[Any]) -> Any:
    return _adapter()(value)


_CONVERSIONS: Final[dict[Any, Callable[[Any], Any]]] = {
    Enum: _enum,
    MessageId: _message_id,
    Schema: _schema,
    CryptoKeyReader: _key_reader,
    ConsumerBatchReceivePolicy: _batch_policy,
    ConsumerKeySharedPolicy: _key_shared_policy,
    ConsumerDeadLetterPolicy: _dead_letter_policy,
    cluster_options.Authentication: _authentication,
    cluster_options.ServiceInfo: _service_info,
    cluster_options.AutoClusterFailover: _failover,
    cluster_options.ServiceInfoProvider: _provider,
    client_config.ConsoleLogger: _console_logger,
    client_config.FileLogger: _file_logger,
}

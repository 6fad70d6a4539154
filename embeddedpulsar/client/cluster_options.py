"""Classes of ``pulsar-client`` for programs that have to do with a cluster, too: what describes a connection,
and the messages of a batch in Pulsar's wire format, which such programs keep or decrypt.

A local store has no broker and no second cluster. The classes of a connection exist so that a program can be
moved by changing its URL: `connect` passes them on to ``pulsar-client``. Each docstring says what a local
client does with the class. Most processes never load them.
"""

from __future__ import annotations

from collections.abc import Callable

from embeddedpulsar._engine.format.pulsar_batch import Single, singles
from embeddedpulsar.client.arguments import check_type, check_type_or_none
from embeddedpulsar.message import Message, ValueDecoder
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.schema import BytesSchema

if TYPE_CHECKING:
    from typing import Any, Self


class Authentication:
    """Credentials for a cluster, see `connect`. A local client ignores them: the permissions of the files of
    its store control access.

    Example:
        >>> Authentication("libauth.so", "token:abc")
        <Authentication>
    """

    arguments: tuple[Any, ...]
    """What the object was made of, for the client of a cluster."""

    def __init__(self, dynamicLibPath: str, authParamsString: str) -> None:
        check_type(str, dynamicLibPath, "dynamicLibPath")
        check_type(str, authParamsString, "authParamsString")
        self.arguments = dynamicLibPath, authParamsString

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"  # does not show the secret


class AuthenticationTLS(Authentication):
    """A client certificate; see `Authentication`."""

    def __init__(self, certificate_path: str, private_key_path: str) -> None:
        check_type(str, certificate_path, "certificate_path")
        check_type(str, private_key_path, "private_key_path")
        self.arguments = certificate_path, private_key_path


class AuthenticationToken(Authentication):
    """A token, or a function that returns one, which a local client never calls; see `Authentication`."""

    def __init__(self, token: str | Callable[[], str]) -> None:
        if not (isinstance(token, str) or callable(token)):
            raise ValueError("Argument token is expected to be of type 'str' or a function returning 'str'")
        self.arguments = (token,)


class AuthenticationAthenz(Authentication):
    """Athenz parameters; see `Authentication`."""

    def __init__(self, auth_params_string: str) -> None:
        check_type(str, auth_params_string, "auth_params_string")
        self.arguments = (auth_params_string,)


class AuthenticationOauth2(Authentication):
    """OAuth2 parameters; see `Authentication`."""

    def __init__(self, auth_params_string: str) -> None:
        check_type(str, auth_params_string, "auth_params_string")
        self.arguments = (auth_params_string,)


class AuthenticationBasic(Authentication):
    """User name and password; see `Authentication`."""

    def __init__(
        self,
        username: str | None = None,
        password: str | None = None,
        method: str = "basic",
        auth_params_string: str | None = None,
    ) -> None:
        self.arguments = username, password, method, auth_params_string
        if auth_params_string is not None:
            check_type(str, auth_params_string, "auth_params_string")
            _check_basic_parameters(auth_params_string)
            return
        check_type(str, username, "username")
        check_type(str, password, "password")
        check_type(str, method, "method")


def _check_basic_parameters(text: str) -> None:
    import json

    # A RuntimeError, as the C++ library raises it through `pulsar-client`.
    try:
        parameters = json.loads(text)
    except ValueError:
        raise RuntimeError("expected value: auth_params_string is not JSON") from None
    for name in ("username", "password"):
        if not isinstance(parameters, dict) or name not in parameters:
            raise RuntimeError(f"No {name} provided for basic provider")


class ServiceInfo:
    """A service URL with its credentials, as `Client.get_service_info` returns it.

    Example:
        >>> ServiceInfo("pulsar+ssl://host:6651").use_tls
        True
        >>> info = ServiceInfo("pulsar://host:6650", AuthenticationToken("secret"), "ca.pem")
        >>> info.service_url, info.authentication, info.tls_trust_certs_file_path
        ('pulsar://host:6650', <AuthenticationToken>, 'ca.pem')
        >>> ServiceInfo.wrap(info) is info
        True
    """

    def __init__(
        self,
        service_url: str,
        authentication: Authentication | None = None,
        tls_trust_certs_file_path: str | None = None,
    ) -> None:
        check_type(str, service_url, "service_url")
        check_type_or_none(Authentication, authentication, "authentication")
        check_type_or_none(str, tls_trust_certs_file_path, "tls_trust_certs_file_path")
        self._service_url = service_url
        self._authentication = authentication
        self._certs = tls_trust_certs_file_path

    @property
    def service_url(self) -> str:
        """The URL."""
        return self._service_url

    @property
    def authentication(self) -> Authentication | None:
        """The credentials."""
        return self._authentication

    @property
    def use_tls(self) -> bool:
        """Whether the URL asks for TLS; never for a local store."""
        return self._service_url.startswith(("pulsar+ssl://", "https://"))

    @property
    def tls_trust_certs_file_path(self) -> str | None:
        """The certificates to trust."""
        return self._certs

    @classmethod
    def wrap(cls, service_info: ServiceInfo) -> ServiceInfo:
        """Return ``service_info`` itself: this package has one class of them, ``pulsar-client`` has two."""
        return service_info

    def __repr__(self) -> str:
        return (
            f"ServiceInfo(service_url={self.service_url!r}, use_tls={self.use_tls!r}, "
            f"tls_trust_certs_file_path={self.tls_trust_certs_file_path!r})"
        )


class ServiceInfoProvider:
    """Base class of objects that supply the address of a cluster to `connect`. `Client` refuses them.

    Example:
        >>> class Fixed(ServiceInfoProvider):
        ...     def initial_service_info(self):
        ...         return ServiceInfo("pulsar://host:6650")
        ...     def initialize(self, on_service_info_update):
        ...         self.report = on_service_info_update
        ...     def close(self):
        ...         self.report = None
        >>> provider = Fixed()
        >>> provider.initialize(print)
        >>> provider.report(ServiceInfo("pulsar://other:6650"))
        ServiceInfo(service_url='pulsar://other:6650', use_tls=False, tls_trust_certs_file_path=None)
    """

    def initial_service_info(self) -> ServiceInfo:
        """Return the first address."""
        raise NotImplementedError(f"{type(self).__name__} does not define initial_service_info()")

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        """Begin to report changes."""
        raise NotImplementedError(f"{type(self).__name__} does not define initialize()")

    def close(self) -> None:
        """Stop."""


class AutoClusterFailover:
    """Addresses of a cluster and its replacements, for `connect`. A local `Client` refuses it."""

    def __init__(
        self,
        primary: ServiceInfo,
        secondary: list[ServiceInfo],
        check_interval_ms: int = 5000,
        failover_threshold: int = 1,
        switch_back_threshold: int = 1,
    ) -> None:
        check_type(ServiceInfo, primary, "primary")
        check_type(list, secondary, "secondary")
        numbers = {
            "check_interval_ms": check_interval_ms,
            "failover_threshold": failover_threshold,
            "switch_back_threshold": switch_back_threshold,
        }
        # All types come before any value, which is the order of `pulsar-client`.
        for name, number in numbers.items():
            check_type(int, number, name)
        if not secondary:
            raise ValueError("Argument secondary is expected to contain at least one ServiceInfo")
        for index, service_info in enumerate(secondary):
            check_type(ServiceInfo, service_info, f"secondary[{index}]")
        for name, number in numbers.items():
            if number <= 0:
                raise ValueError(f"Argument {name} is expected to be greater than 0")
        self.primary = primary
        self.secondary = list(secondary)
        self.check_interval_ms = check_interval_ms
        self.failover_threshold = failover_threshold
        self.switch_back_threshold = switch_back_threshold

    def __repr__(self) -> str:
        return (
            f"AutoClusterFailover(primary={self.primary!r}, secondary={self.secondary!r}, "
            f"check_interval_ms={self.check_interval_ms!r}, failover_threshold={self.failover_threshold!r}, "
            f"switch_back_threshold={self.switch_back_threshold!r})"
        )


# Numbers of the fields of Pulsar's `SingleMessageMetadata`.
_KEY, _EVENT_TIME, _ORDERING_KEY, _SEQUENCE_ID, _NULL = 2, 5, 7, 8, 9


class MessageBatch:
    """Reads the payload of a batch that a Pulsar client encoded: the decompressed, decrypted bytes.

    Entries of this package have another layout, which consumers read by themselves.

    Example:
        >>> one = bytes.fromhex("00000002 1803") + b"tea"
        >>> batch = MessageBatch().with_message_id(MessageId(-1, 7, 4))
        >>> [(message.data(), message.message_id()) for message in batch.parse_from(one, 1)]
        [(b'tea', (7,4,-1,0))]
    """

    def __init__(self) -> None:
        self._message_id = MessageId.earliest

    def with_message_id(self, msg_id: MessageId) -> Self:
        """Set the id of the entry, of which the messages have ids; returns this object.

        Raises:
            TypeError: it is no message id.
        """
        if not isinstance(msg_id, MessageId):
            raise TypeError("unknown message id type")
        self._message_id = msg_id
        return self

    def parse_from(self, data: bytes, size: int) -> list[Message[bytes]]:
        """Return the messages of a payload.

        Args:
            data: the payload.
            size: number of messages to read.

        Raises:
            ValueError: the payload is not a batch of so many messages.
        """
        entry = _Entry(self._message_id, list(singles(bytes(data), size)))
        origin = _Origin(self._message_id.partition())
        return [Message(entry, index, origin) for index in range(size)]


class _Origin:
    """What the messages share; a payload does not say of which topic it is."""

    topic_name, by_message = "", False

    def __init__(self, partition: int) -> None:
        self.schema: ValueDecoder = BytesSchema()
        self.partition = partition


class _Entry:
    """The messages as `DecodedEntry`."""

    batched = True
    publish_time = redelivery_count = first_sequence_id = 0
    producer_name = ""
    schema_version = -1

    def __init__(self, message_id: MessageId, messages: list[Single]) -> None:
        self.ledger_id, self.entry_id = message_id.ledger_id(), message_id.entry_id()
        self.count = len(messages)
        self._singles = messages
        self.payload = b"".join(single.payload for single in messages)
        self.offsets = [0]
        for single in messages:
            self.offsets.append(self.offsets[-1] + len(single.payload))

    def _column(self, number: int, default: Any) -> list[Any]:
        return [single.fields.get(number, default) for single in self._singles]

    def keys(self) -> list[str | None]:
        """Partition keys."""
        return [key.decode() for key in self._column(_KEY, b"")]

    def ordering_keys(self) -> list[str | None]:
        """Ordering keys."""
        return [key.decode() for key in self._column(_ORDERING_KEY, b"")]

    def properties(self, index: int) -> dict[str, str]:
        """The properties of one message."""
        return self._singles[index].properties

    def event_times(self) -> list[int]:
        """Event times, in ms."""
        return self._column(_EVENT_TIME, 0)

    def deliver_at(self) -> None:
        """A delayed message is in no batch."""

    def sequence_ids(self) -> list[int]:
        """Sequence ids."""
        return self._column(_SEQUENCE_ID, 0)

    def null(self, index: int) -> bool:
        """Whether the value of one message is null."""
        return bool(self._singles[index].fields.get(_NULL))

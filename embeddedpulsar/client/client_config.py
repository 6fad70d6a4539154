"""The options of a `Client`, checked.

Classes of ``pulsar-client`` that describe a connection to a cluster.

A local store has no broker, no second cluster and no log of a C++ library. The classes exist so that a
program can be moved by changing its URL: `connect` passes them on to ``pulsar-client``. Each docstring says
what a local client does with the class.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from embeddedpulsar._engine.store.store_root import ServiceUrl
from embeddedpulsar.client.arguments import (
    INT32_MAX,
    UINT32_MAX,
    check_callable,
    check_durability,
    check_fits,
    check_range,
    check_type,
    check_type_or_none,
    check_types,
)
from embeddedpulsar.damage import DamageHook
from embeddedpulsar.enums import LoggerLevel
from embeddedpulsar.records import NamedTuple

_CLUSTER_SCHEMES = ("pulsar://", "pulsar+ssl://", "http://", "https://")


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


def is_cluster(service_url: object) -> bool:
    """Return whether this is the address of a cluster, or of several, as for `connect`.

    >>> is_cluster("pulsar://host:6650"), is_cluster("memory://"), is_cluster("./data")
    (True, False, False)
    """
    if isinstance(service_url, str):
        return service_url.startswith(_CLUSTER_SCHEMES)
    # By name: those of pulsar-client are addresses, too.
    names = {kind.__name__ for kind in type(service_url).__mro__}
    return not names.isdisjoint((AutoClusterFailover.__name__, ServiceInfoProvider.__name__))


class ConsoleLogger:
    """Makes the client write its log to standard error, from level ``log_level`` up.

    Example:
        >>> type(ConsoleLogger(LoggerLevel.Warn).make_handler()).__name__
        'StreamHandler'
    """

    def __init__(self, log_level: LoggerLevel = LoggerLevel.Info) -> None:
        check_type(LoggerLevel, log_level, "log_level")
        self.log_level = log_level

    def make_handler(self) -> Any:
        """Return the `logging.Handler` for it."""
        import logging

        return logging.StreamHandler()


class FileLogger:
    """Makes the client append its log to a file, from level ``log_level`` up.

    Example:
        >>> type(FileLogger(LoggerLevel.Info, "pulsar.log").make_handler()).__name__
        'FileHandler'
    """

    def __init__(self, log_level: LoggerLevel, log_file: str) -> None:
        check_type(LoggerLevel, log_level, "log_level")
        check_type(str, log_file, "log_file")
        self.log_level = log_level
        self.log_file = log_file

    def make_handler(self) -> Any:
        """Return the `logging.Handler` for it."""
        import logging

        # Opened with the first record, so a client that logs nothing makes no file.
        return logging.FileHandler(self.log_file, encoding="utf-8", delay=True)


_DAY_MS = 24 * 3600 * 1000


class ClientConfig(NamedTuple):
    """The options of a client that apply to a local store. Immutable.

    Attributes:
        url: the location of the store.
        durability: level of producers that set none.
        durability_interval_ms: time between flushes at level ``interval``.
        allow_network_fs: whether a store on a network file system is opened.
        listener_threads: threads that run message listeners.
        stats_interval_s: interval at which the statistics of each consumer are logged; 0 for never.
        memory_limit_bytes: most bytes of messages that are sent and not stored; 0 for no limit.
        operation_timeout_s: how long one call waits for locks that other processes hold.
        on_damage: called with what is found damaged; None for the log.
        read_only: whether the store is only looked at; None if this process may not write there.
    """

    url: ServiceUrl
    durability: str = "process"
    durability_interval_ms: int = 1000
    allow_network_fs: bool = False
    listener_threads: int = 1
    stats_interval_s: int = 600
    memory_limit_bytes: int = 0
    operation_timeout_s: int = 30
    on_damage: DamageHook | None = None
    read_only: bool | None = None


def client_config(options: dict[str, Any]) -> ClientConfig:
    """Check the arguments of `Client`, in the order in which ``pulsar-client`` checks them.

    Raises:
        ValueError: a wrong type or value.
        TypeError: a number outside the range of its type.
        NotImplementedError: addresses of clusters.
    """
    service_url = options["service_url"]
    if isinstance(service_url, AutoClusterFailover | ServiceInfoProvider):
        raise NotImplementedError(
            f"{type(service_url).__name__} switches between clusters; this client opens one directory: "
            "give it a path, file:///path or memory://, or use embeddedpulsar.connect for the clusters"
        )
    if not isinstance(service_url, str | os.PathLike):
        raise ValueError(
            "Argument service_url is expected to be of type 'str', 'AutoClusterFailover' or "
            f"'ServiceInfoProvider', and not {service_url!r}; write a directory, as './data' or a "
            "pathlib.Path, or 'memory://'"
        )
    check_type_or_none(Authentication, options["authentication"], "authentication")
    # Options of a network client are checked although they are ignored: a wrong one is as wrong as on a
    # cluster.
    for name, low, high in _INTS:
        check_type(int, options[name], name)
        check_fits(options[name], name, low, high)
    check_types(_TYPES, options)
    durability, interval_ms = options["durability"], options["durability_interval_ms"]
    check_durability(durability)
    check_type(int, interval_ms, "durability_interval_ms")
    check_range(interval_ms, "durability_interval_ms", 1, _DAY_MS)
    check_type(bool, options["allow_network_fs"], "allow_network_fs")
    check_type_or_none(bool, options["read_only"], "read_only")
    check_type(int, options["memory_limit_bytes"], "memory_limit_bytes")
    check_range(options["memory_limit_bytes"], "memory_limit_bytes", 0, 2**63 - 1)
    check_callable(options["on_damage"], "on_damage")
    return ClientConfig(
        ServiceUrl.parse(service_url),
        durability,
        interval_ms,
        options["allow_network_fs"],
        # Numbers that `pulsar-client` accepts and that make no sense here become the nearest that does.
        max(1, options["message_listener_threads"]),
        options["stats_interval_in_seconds"],
        options["memory_limit_bytes"],
        max(0, options["operation_timeout_seconds"]),
        options["on_damage"],
        options["read_only"],
    )


# The ranges are those of the C++ types behind the options.
_LOWEST = -INT32_MAX - 1
_INTS = (
    ("operation_timeout_seconds", _LOWEST, INT32_MAX),
    ("connection_timeout_ms", _LOWEST, INT32_MAX),
    ("io_threads", _LOWEST, INT32_MAX),
    ("message_listener_threads", _LOWEST, INT32_MAX),
    ("concurrent_lookup_requests", _LOWEST, INT32_MAX),
    ("stats_interval_in_seconds", 0, UINT32_MAX),
)
_TYPES: tuple[tuple[str, type[Any], bool], ...] = (
    ("use_tls", bool, False),
    ("tls_allow_insecure_connection", bool, False),
    ("tls_validate_hostname", bool, False),
    ("log_conf_file_path", str, True),
    ("tls_trust_certs_file_path", str, True),
    ("listener_name", str, True),
    ("tls_private_key_file_path", str, True),
    ("tls_certificate_file_path", str, True),
)

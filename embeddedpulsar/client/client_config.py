"""The options of a `Client`, checked; and where its log goes."""

from __future__ import annotations

import os

from embeddedpulsar._engine.platform.descriptors import late_imports
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
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any

_SEVERAL = ("AutoClusterFailover", "ServiceInfoProvider")  # addresses of several clusters
_CLUSTER_SCHEMES = ("pulsar://", "pulsar+ssl://", "http://", "https://")


def is_cluster(service_url: object) -> bool:
    """Return whether this is the address of a cluster, or of several, as for `connect`.

    >>> is_cluster("pulsar://host:6650"), is_cluster("memory://"), is_cluster("./data")
    (True, False, False)
    """
    if isinstance(service_url, str):
        return service_url.startswith(_CLUSTER_SCHEMES)
    # By name: those of pulsar-client are addresses, too.
    names = {kind.__name__ for kind in type(service_url).__mro__}
    return not names.isdisjoint(_SEVERAL)


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
    if not isinstance(service_url, str | os.PathLike):
        _refuse_several(service_url)
        raise ValueError(
            "Argument service_url is expected to be of type 'str', 'AutoClusterFailover' or "
            f"'ServiceInfoProvider', and not {service_url!r}; write a directory, as './data' or a "
            "pathlib.Path, or 'memory://'"
        )
    if options["authentication"] is not None:
        _check_authentication(options["authentication"])
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


def _refuse_several(service_url: object) -> None:
    with late_imports():
        from embeddedpulsar.client.cluster_options import AutoClusterFailover, ServiceInfoProvider
    if isinstance(service_url, AutoClusterFailover | ServiceInfoProvider):
        raise NotImplementedError(
            f"{type(service_url).__name__} switches between clusters; this client opens one directory: "
            "give it a path, file:///path or memory://, or use embeddedpulsar.connect for the clusters"
        )


def _check_authentication(value: object) -> None:
    with late_imports():
        from embeddedpulsar.client.cluster_options import Authentication
    check_type_or_none(Authentication, value, "authentication")


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

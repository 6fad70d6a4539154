"""The client of a cluster."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.client.client import Client
from embeddedpulsar.cluster.cluster_errors import translated
from embeddedpulsar.cluster.consumer import ClusterConsumer
from embeddedpulsar.cluster.message import ClusterMessage
from embeddedpulsar.cluster.producer import ClusterProducer
from embeddedpulsar.cluster.reader import ClusterReader
from embeddedpulsar.cluster.table_view import ClusterTableView
from embeddedpulsar.cluster.translation import from_service_info, given, library, to_pulsar
from embeddedpulsar.schema.schema import BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.client_config import ServiceInfo


class ClusterClient(Client):
    """`Client` over the client of ``pulsar-client``. Thread-safe.

    Made by `embeddedpulsar.connect`. At the end of a ``with`` block its producers are flushed, and all of it
    is closed.

    Args:
        service_url: ``pulsar://``, ``pulsar+ssl://``, ``http://`` or ``https://``; an `AutoClusterFailover`;
            or a `ServiceInfoProvider`.
        *args: as for ``pulsar.Client``, and so are the options.
        **options: those of this package that concern files are ignored.

    Raises:
        ImportError: ``pulsar-client`` is not installed.
        ValueError: a wrong type or value.
    """

    def __init__(self, service_url: Any, *args: Any, **options: Any) -> None:
        kind = library().Client
        arguments = given(Client.__init__, kind.__init__, service_url, *args, **options)
        self._arguments: Final = service_url, args, options
        self._is_closed = False
        with translated:
            self.theirs = kind(**arguments)
        self._producers: weakref.WeakSet[ClusterProducer[Any]] = weakref.WeakSet()

    def create_producer(self, topic: str, *args: Any, **options: Any) -> ClusterProducer[Any]:
        arguments = _given(Client.create_producer, self.theirs.create_producer, topic, *args, **options)
        router = arguments.get("message_router")
        if router is not None:
            arguments["message_router"] = _router(router)
        with translated:
            producer: ClusterProducer[Any] = ClusterProducer(self.theirs.create_producer(**arguments))
        self._keep(producer)
        self._producers.add(producer)
        return producer

    def subscribe(self, topic: Any, *args: Any, **options: Any) -> ClusterConsumer[Any]:
        arguments = _given(Client.subscribe, self.theirs.subscribe, topic, *args, **options)
        consumer: ClusterConsumer[Any] = self._receiver(
            ClusterConsumer, self.theirs.subscribe, arguments, "message_listener"
        )
        return consumer

    def create_reader(
        self, topic: str, start_message_id: Any, *args: Any, **options: Any
    ) -> ClusterReader[Any]:
        arguments = _given(
            Client.create_reader, self.theirs.create_reader, topic, start_message_id, *args, **options
        )
        reader: ClusterReader[Any] = self._receiver(
            ClusterReader, self.theirs.create_reader, arguments, "reader_listener"
        )
        return reader

    def _receiver(
        self, kind: Callable[[Any], Any], make: Callable[..., Any], arguments: dict[str, Any], name: str
    ) -> Any:
        """Make a consumer or reader, whose listener is the argument of that name."""
        made: list[Any] = []
        if arguments.get(name) is not None:
            arguments[name] = _listener(arguments[name], made, kind)
        with translated:
            receiver = kind(make(**arguments))
        self._keep(receiver)
        made.append(receiver)
        return receiver

    def create_table_view(self, topic: str, *args: Any, **options: Any) -> ClusterTableView[Any]:
        arguments = _given(Client.create_table_view, self.theirs.create_table_view, topic, *args, **options)
        with translated:
            return ClusterTableView(self.theirs.create_table_view(**arguments))

    def get_topic_partitions(self, topic: str) -> list[str]:
        with translated:
            return list(self.theirs.get_topic_partitions(topic))

    def get_service_info(self) -> ServiceInfo:
        with translated:
            return from_service_info(self.theirs.get_service_info())

    def shutdown(self) -> None:
        self._is_closed = True
        with translated:
            self.theirs.shutdown()

    def close(self) -> None:
        self._is_closed = True
        with translated:
            self.theirs.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._is_closed:
            return
        try:
            if kind is None:
                for producer in list(self._producers):
                    if not producer._is_closed:
                        producer.flush()
        finally:
            self.close()

    def __del__(self) -> None:
        """Leave the rest to the destructor of ``pulsar-client``."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._arguments

    def __repr__(self) -> str:
        return f"<Client {self._arguments[0]!r}{' closed' if self._is_closed else ''}>"


def _given(
    call: Callable[..., Any], theirs: Callable[..., Any], *args: Any, **options: Any
) -> dict[str, Any]:
    """`given`, with a schema of this package also where the call has none."""
    return {"schema": to_pulsar(BYTES), **given(call, theirs, *args, **options)}


def connected(service_url: Any, **options: Any) -> Client:
    """Return a client of a cluster."""
    module = library()
    if getattr(module, "is_stand_in", False):  # in a test with `patch_pulsar`
        local: Client = module.Client(service_url, **options)
        return local
    return ClusterClient(service_url, **options)


def _again(service_url: Any, args: tuple[Any, ...], options: dict[str, Any]) -> ClusterClient:
    return ClusterClient(service_url, *args, **options)


def _listener(listener: Callable[..., object], made: list[Any], wrap: Callable[[Any], Any]) -> Any:
    """A listener for ``pulsar-client``; it may be called before the call that makes the consumer returns."""

    def call(theirs: Any, message: Any) -> None:
        listener(made[0] if made else wrap(theirs), ClusterMessage(message))

    return call


def _router(router: Callable[[Any, int], int]) -> Any:
    return lambda message, partitions: router(ClusterMessage(message), partitions)

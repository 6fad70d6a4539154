"""The end of a client, and pickling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from embeddedpulsar.client.unclosed_clients import UNCLOSED_CLIENTS
from embeddedpulsar.platform import interrupts

if TYPE_CHECKING:
    from embeddedpulsar.client.client_core import ClientCore


class ClientLifetime:
    """The methods of `Client` for closing, ``with`` and pickling."""

    _core: ClientCore
    _logger: Any
    _was_shut_down = False
    _made: dict[int, Any]

    def _keep(self, made: Any) -> None:
        """Keep the client alive as long as one of its producers, consumers or readers.

        As in Pulsar, a consumer or reader that the application drops stays open until its client is closed.
        Nothing but a listener refers to them or to the client, so all of them can become garbage together.
        """
        made._client = self

    def _keep_consumer(self, consumer: Any) -> None:
        self._keep(consumer)
        try:
            self._made[id(consumer)] = consumer
            self._core.add_consumer(consumer)
        except BaseException:
            self._made.pop(id(consumer), None)  # the caller never gets the consumer: it is closed as garbage
            raise

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None and core.is_left_open:
            UNCLOSED_CLIENTS.client(core, tuple(self._made.values()), core.config.url.text)

    def shutdown(self) -> None:
        """Close the client if it is open. May be called repeatedly, and `close` may follow once."""
        if self._core.is_left_open:
            self.close()
            self._was_shut_down = True

    def close(self) -> None:
        """Close all producers, without flushing them, consumers and readers, and the store.

        Raises:
            AlreadyClosed: this method was called before.
        """
        if self._was_shut_down:
            self._was_shut_down = False
            return
        with interrupts.translated:
            try:
                self._core.close()
            finally:
                self._made.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._core.is_left_open:
            return
        try:
            if kind is None:
                with interrupts.translated:
                    self._core.flush()
        finally:
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._core.config.url.root is None:
            raise TypeError("a memory:// client cannot be pickled: its store is private; use a directory")
        return _rebuild, (type(self), self._core.config.url.text, self._logger, self._core.config[1:])

    def __repr__(self) -> str:
        return f"<Client {self._core.config.url.text}{' closed' if self._core.is_closed else ''}>"


def _rebuild(kind: Any, url: str, logger: Any, rest: tuple[Any, ...]) -> Any:
    durability, interval_ms, allow_network_fs, listener_threads, stats_interval_s, memory_limit, timeout_s = (
        rest
    )
    return kind(
        url,
        operation_timeout_seconds=timeout_s,
        message_listener_threads=listener_threads,
        stats_interval_in_seconds=stats_interval_s,
        logger=logger,
        durability=durability,
        durability_interval_ms=interval_ms,
        allow_network_fs=allow_network_fs,
        memory_limit_bytes=memory_limit,
    )

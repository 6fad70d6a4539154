"""Calls of a function that do not return: they are shown by its status, and may be ended."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.platform import child_process, threads
from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.functions.state_log import state_topic

if TYPE_CHECKING:
    from embeddedpulsar.client.client import Client
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.functions.function_config import FunctionConfig
    from embeddedpulsar.functions.instance import Instance
    from embeddedpulsar.message import Message

_LOOK_S: Final = 0.25
_LONG_S: Final = 1.0
"""A call that takes longer is reported."""
_LOG: Final = logging.getLogger("embeddedpulsar.function")


class CallWatch:
    """Watches the calls of one instance from a thread of its own.

    Role: an instance reports once a second, between calls. While it is in one, this thread reports in its
    place, once for each call that takes longer than a second. After ``call_timeout_ms`` it ends the process,
    as a kill does; the supervisor starts another, and the message is delivered again.
    Callers: the thread of the instance.

    Args:
        client: of the store.
        config: of the function.
        number: of the instance.
        instance: the instance.
    """

    def __init__(self, client: Client, config: FunctionConfig, number: int, instance: Instance) -> None:
        self._client: Final = client
        self._config: Final = config
        self._number: Final = number
        self._instance: Final = instance
        self._clock: Final = client._core.store.clock
        self._stopped: Final = threads.Event()
        self._thread: threads.Daemon | None = None
        self._producer: Producer[Any] | None = None
        self._reported: Message[Any] | None = None

    def start(self) -> None:
        self._thread = threads.start_daemon(self._run, "call-watch")

    def stop(self) -> None:
        """End the thread, and detach from the state topic."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        if self._producer is not None:
            self._producer.close()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            try:
                self.look()
            except (PulsarException, OSError):
                _LOG.exception("a long call of %s could not be reported", self._config.full_name)

    def look(self) -> None:
        """Report the call that is under way, if it takes long; end the process if it takes too long."""
        call = self._instance.call
        if call is None:
            return
        message, _, began = call
        took_s = self._clock.monotonic() - began
        limit_ms = self._config.call_timeout_ms
        if limit_ms is not None and took_s * 1000 >= limit_ms and self._instance.call is call:
            child_process.end_now(
                f"the call of {self._config.full_name} with message {message.message_id()} takes longer than "
                f"call_timeout_ms={limit_ms}"
            )
        if took_s >= _LONG_S and message is not self._reported:
            self._reported = message
            self._report()

    def _report(self) -> None:
        if self._producer is None:
            # Its name begins with no number: it is not taken for an instance.
            name = f"call-{self._number}-{uuid.uuid4().hex[:12]}"
            self._producer = self._client.create_producer(state_topic(self._config.full_name), name)
        record = self._instance.report_in_call()
        self._producer.send(record.payload or b"", partition_key=record.key)
        self._instance.report_again()  # the call may have returned, and been reported, before this was stored

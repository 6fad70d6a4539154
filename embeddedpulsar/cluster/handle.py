"""What the objects of a cluster share: that of ``pulsar-client``, its topic, and the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from embeddedpulsar.cluster.awaited_messages import AwaitedMessages
from embeddedpulsar.cluster.cluster_errors import translated
from embeddedpulsar.cluster.message import ClusterMessage
from embeddedpulsar.cluster.translation import library
from embeddedpulsar.exceptions import AlreadyClosed


class ClusterHandle:
    """An object over one of ``pulsar-client``, which is closed once."""

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs
        self._is_closed = False

    def close(self) -> None:
        if self._is_closed:
            raise AlreadyClosed  # pulsar-client raises a ValueError of a list
        self._is_closed = True
        with translated:
            self.theirs.close()

    def __exit__(self, *_: object) -> None:
        if not self._is_closed:
            with contextlib.suppress(AlreadyClosed):  # with its client, or by unsubscribe
                self.close()


class ClusterSource(ClusterHandle):
    """A consumer or reader, with the messages that coroutines wait for.

    Args:
        theirs: that of ``pulsar-client``.
        request: asks it for one message, as `AwaitedMessages` does.
    """

    def __init__(self, theirs: Any, request: Callable[[Any], object]) -> None:
        super().__init__(theirs)
        self._awaited = AwaitedMessages(request, self._wrapped)

    def _wrapped(self, raw: Any) -> ClusterMessage[Any]:
        message = library().Message()
        message._message, message._schema = raw, self.theirs._schema
        return ClusterMessage(message)

    def topic(self) -> str:
        return str(self.theirs.topic())

    def is_connected(self) -> bool:
        return bool(self.theirs.is_connected())

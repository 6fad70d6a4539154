"""What a transport of kombu stands on: URLs, names of topics, and an event loop that delivers what comes."""

from __future__ import annotations

import contextlib
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote

from embeddedpulsar import exceptions
from embeddedpulsar.frameworks.engine import threads

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar.client.consumer.consumer import Consumer

SCHEME: Final = "embeddedpulsar"
LONGEST_WAIT_S: Final = 60.0
_SAFE: Final = "@:+=,!~ "
_LONGEST_NAME: Final = 180

_IN_A_ROW: Final = 64
"""Messages that one turn of an event loop delivers at most."""
_GOODBYE_S: Final = 5.0


def topic_part(name: str) -> str:
    """Return the name of a queue as part of the name of a topic, in which it is unique.

    >>> topic_part("celery@host.celery.pidbox"), topic_part("a/b;c"), topic_part("x-partition-3")
    ('celery@host.celery.pidbox', 'a%2Fb%3Bc', 'x%2Dpartition-3')
    """
    text = quote(name, safe=_SAFE).replace("-partition-", "%2Dpartition-")
    if text.startswith("__"):
        text = "%5F" + text[1:]
    if len(text) > _LONGEST_NAME:
        raise exceptions.InvalidTopicName(
            f"the name of the queue or exchange {name[:40]!r}... takes {len(text)} characters in the name "
            f"of a topic, and at most {_LONGEST_NAME} are allowed; choose a shorter one"
        )
    return text


def due_ms_of(message: dict[str, Any]) -> int:
    """Return when a message is due, in ms since 1970, by its header ``eta`` of Celery; 0 for at once."""
    headers = message.get("headers") or {}
    eta = headers.get("eta")
    if not eta:
        return 0
    if isinstance(eta, str):
        try:
            eta = datetime.fromisoformat(eta)
        except ValueError:
            return 0  # the worker reports it, with the task
    if not isinstance(eta, datetime):
        return 0
    if eta.tzinfo is None:
        eta = eta.replace(tzinfo=UTC)
    return round(eta.timestamp() * 1000)


def parse_connection(client: Any) -> tuple[str, dict[str, Any]]:
    """Return the path of the store and the options of a connection."""
    options = {
        name: value
        for name, value in client.transport_options.items()
        if name in ("namespace", "durability") and value is not None
    }
    text = client.hostname or ""
    if "://" not in text or not text.startswith(f"{SCHEME}:"):
        # kombu has parsed the URL itself: of a list of URLs, all but the first.
        path = client.virtual_host or ""
        return _checked_path(path if path.startswith("/") else f"/{path}", client), options
    path, _, query = text.removeprefix(f"{SCHEME}://").partition("?")
    options.update(parse_qsl(query, strict_parsing=bool(query)))
    return _checked_path(unquote(path), client), options


def _checked_path(path: str, client: Any) -> str:
    if not path or path == "/":
        raise ValueError(
            f"{client.hostname or SCHEME + '://'!r} names no directory: write {SCHEME}:///srv/queue for the "
            f"store in /srv/queue, or {SCHEME}://./queue for one in the current directory"
        )
    return path


class LoopWatch:
    """Has an event loop of kombu deliver the messages of a transport as they come.

    Role: when a socket is readable, the messages that are there are delivered. When there are none, a thread
    sleeps for the consumers that are wanted, and then writes a byte to the socket. So an idle worker uses no
    processor, and a busy one does not wait for the thread. Messages are delivered as the loop handles its
    descriptors, and never as a turn begins, when it looks at timers and at the jobs of a pool.

    `look_again` may be called by any thread; the rest belongs to the thread of the loop.
    """

    def __init__(self, transport: Any, loop: Any) -> None:
        self._transport = transport
        self._loop = loop
        self._own, self._other = socket.socketpair()
        for end in (self._own, self._other):
            end.setblocking(False)
        self._is_rung = False
        self._is_closed = False
        self._sleeps_for: list[Consumer[bytes]] | None = None
        self._begin_sleep = threads.Event()
        self._thread = threads.start_daemon(self._sleep, "kombu")
        loop.add_reader(self._own.fileno(), self._on_readable)
        self.look_again()

    def look_again(self) -> None:
        """Look in the next turn of the loop."""
        if not self._is_rung:
            self._is_rung = True
            try:
                self._other.send(b"\0")
            except (BlockingIOError, OSError):
                return  # it is full, so the loop wakes; or closed

    def _on_readable(self, *events: object) -> None:
        with contextlib.suppress(BlockingIOError):  # rung, and emptied before
            self._own.recv(4096)
        # After the bytes and before the look: a thread that still sees the flag is served by this look, and
        # one that does not writes a byte that stays.
        self._is_rung = False
        transport = self._transport
        for _ in range(_IN_A_ROW):
            if not transport.deliver_next(transport.channels):
                break
        else:
            self.look_again()  # the loop has other work, too
            return
        consumers = transport.wanted()
        sleeps_for = self._sleeps_for
        if not transport.request_wakeup(consumers):
            self.look_again()
        elif sleeps_for is None:
            self._sleeps_for = consumers
            self._begin_sleep.set()
        elif set(sleeps_for) != set(consumers):
            transport.selector.wake()  # the thread rings, and sleeps for the others next

    def _sleep(self) -> None:
        """What the thread does: sleep each time the loop asks for it, and wake the loop."""
        while True:
            self._begin_sleep.wait()
            self._begin_sleep = threads.Event()
            if self._is_closed:
                return
            try:
                self._transport.selector.wait(self._sleeps_for or (), LONGEST_WAIT_S)
            except exceptions.AlreadyClosed:
                self._is_closed = True  # the loop gets the error when it looks
            self._sleeps_for = None
            self.look_again()
            if self._is_closed:
                return

    def close(self) -> None:
        """Stop delivering, and end the thread."""
        self._is_closed = True
        if self._transport.is_own_process:  # a fork shares the selector of the loop with its parent
            self._loop.remove_reader(self._own.fileno())
            self._begin_sleep.set()
            self._transport.selector.wake()
            self._thread.join(_GOODBYE_S)
        self._own.close()
        self._other.close()

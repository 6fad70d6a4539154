"""Signals in the processes of the hostile storm: Ctrl-C, and a handler that sends a message.

An interrupt strikes where the process is ready for one: between `arm` and `disarm`, once each time.

>>> patient(lambda: 7)
7
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import Any, TypeVar

from embeddedpulsar.client.client import Client
from embeddedpulsar.exceptions import AlreadyClosed
from tests.storms.hostile.hostile_roles import SIGNALS, HostileRole, signal_stream_of
from tests.storms.storm_payload import Mark, make_payload

T = TypeVar("T")

_is_armed = False


def arm() -> None:
    """From here on an interrupt strikes. Inside the ``try`` that catches KeyboardInterrupt."""
    global _is_armed
    _is_armed = True


def disarm() -> None:
    """No interrupt strikes from here on."""
    global _is_armed
    _is_armed = False


def _interrupt(number: int, frame: Any) -> None:
    if _is_armed:
        disarm()
        raise KeyboardInterrupt


def patient(call: Callable[[], T]) -> T:
    """Repeat ``call`` until no interrupt strikes it."""
    while True:
        try:
            arm()
            result = call()
            disarm()
            return result
        except KeyboardInterrupt:
            continue


class SendingHandler:
    """A handler of SIGUSR1 that sends a numbered message through a producer of its own.

    The message counts as stored once `Producer.send` has returned, wherever the handler was called.
    """

    def __init__(self, role: HostileRole, client: Client) -> None:
        self._page = role.page
        self._stream = signal_stream_of(role.member)
        self._run = role.new_run
        self._is_inside = False
        self._producer = patient(
            lambda: client.create_producer(SIGNALS, producer_name=f"signals-{role.member}")
        )
        signal.signal(signal.SIGUSR1, self._handle)

    def _handle(self, number: int, frame: Any) -> None:
        if self._is_inside:  # one at a time, so that numbers follow each other
            return
        try:
            self._is_inside = True
            stored = self._page.stored(self._stream)
            self._producer.send(make_payload(Mark(self._stream, self._run(), stored), 60))
            self._page.set_stored(self._stream, stored + 1)
        finally:
            self._is_inside = False

    def close(self) -> None:
        """Ignore the signal from here on, and close the producer."""
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        with contextlib.suppress(AlreadyClosed):  # an interrupt struck when it was nearly closed
            patient(self._producer.close)


def accept_signals(number: signal.Signals = signal.SIGINT) -> None:
    """Ctrl-C, or another signal, raises KeyboardInterrupt, where the process is ready for it."""
    signal.signal(number, _interrupt)

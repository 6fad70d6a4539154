"""Thread primitives, so that nothing above imports ``threading``.

All of them are the standard ones. `RLock` here is the one to use as ``try: lock.acquire() ... finally:
lock.release()``: its release does nothing when this thread does not hold it, and no interrupt can split it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from embeddedpulsar.platform import section_lock
from embeddedpulsar.platform.section_lock import SectionLock

Lock = threading.Lock
Condition = threading.Condition
Event = threading.Event
Local = threading.local

current_id = threading.get_ident
native_id = threading.get_native_id
renewed = section_lock.renewed


def RLock() -> SectionLock:
    """A re-entrant lock whose ``release()`` is safe in a ``finally`` that an interrupt may reach first."""
    return SectionLock()


def start_daemon(target: Callable[[], object], name: str) -> threading.Thread:
    """Start ``target`` on a daemon thread named ``embeddedpulsar-<name>`` and return the thread."""
    thread = threading.Thread(target=target, name=f"embeddedpulsar-{name}", daemon=True)
    thread.start()
    return thread


def Thread(target: Callable[[], object], name: str, daemon: bool = True) -> threading.Thread:
    """A thread that is not started yet, named ``embeddedpulsar-<name>``; daemon unless said otherwise."""
    return threading.Thread(target=target, name=f"embeddedpulsar-{name}", daemon=daemon)

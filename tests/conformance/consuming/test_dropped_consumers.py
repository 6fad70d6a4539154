"""A consumer whose opening was interrupted leaves its subscription, whatever strikes meanwhile."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from embeddedpulsar import Client


def test_no_interrupt_is_lost_in_a_finalizer(client: Client, monkeypatch: pytest.MonkeyPatch):
    """The finalizer runs no Python code, so no signal handler runs in it: its exception would be printed, and
    the consumer would stay attached."""
    ran: list[str] = []

    def note(frame: Any, event: str, argument: object) -> None:
        if event == "call":
            ran.append(frame.f_code.co_filename)

    with monkeypatch.context() as patch:
        patch.setattr(client, "_keep_consumer", lambda consumer: None)  # as if it was interrupted before
        client.subscribe("topic", "s")
    gc.disable()
    try:
        sys.setprofile(note)
        gc.collect()
    finally:
        sys.setprofile(None)
        gc.enable()
    assert not [file for file in ran if "consumer" in file], ran
    with client.subscribe("topic", "s") as consumer:  # the next opening finds it closed
        assert consumer.receive_nowait() is None


def test_a_closed_consumer_is_not_closed_again(client: Client):
    """Its finalizer lists nothing."""
    core: Any = client._core
    client.subscribe("topic", "s").close()
    gc.collect()
    assert not core.abandoned

"""Parts of a message: encoded ahead where that is safe, and from where a call stopped."""

from __future__ import annotations

import contextlib
import os
import threading
from itertools import islice

import pytest

from embeddedpulsar._engine.format.entry import EncodedEntry, ProducerPrefix
from embeddedpulsar._engine.platform import threads
from embeddedpulsar.client.producer.entry_encoder import Chunker
from embeddedpulsar.client.producer.pending_entry import WORTH_A_THREAD, Chunks

PREFIX = ProducerPrefix("producer")
LIMIT = WORTH_A_THREAD + 4096
PAYLOAD = os.urandom(12 * WORTH_A_THREAD)


def cut(chunker: Chunker) -> Chunks:
    """A message of a dozen large parts."""
    out = chunker.pending_entry(PAYLOAD, None, 9)
    assert out.chunks is not None
    return out.chunks


def payloads(parts: list[EncodedEntry]) -> list[bytes]:
    """The stored bytes."""
    return [b"".join(part.parts) for part in parts]


def encoders() -> list[threading.Thread]:
    """The second threads that are alive."""
    return [thread for thread in threading.enumerate() if thread.name == "embeddedpulsar-encode"]


def test_a_call_that_stops_leaves_no_thread_and_the_next_goes_on():
    """Part by part the same as without a stop."""
    whole = payloads(list(cut(Chunker(PREFIX, 0, LIMIT)).parts()))
    assert len(whole) == 11 or len(whole) == 12
    out = cut(Chunker(PREFIX, 0, LIMIT))
    found: list[EncodedEntry] = []
    while len(found) < len(whole):
        with contextlib.closing(out.parts()) as parts:
            for part in islice(parts, 4):
                found.append(part)
                out.earlier.append((1, len(found)))
        for thread in encoders():
            thread.join(30)
            assert not thread.is_alive()
    assert payloads(found) == whole


def test_nothing_is_encoded_ahead_of_the_first_part(monkeypatch: pytest.MonkeyPatch):
    """Until it is appended the topic may be locked, and a call that tries again encodes again."""
    chunker, started = Chunker(PREFIX, 0, LIMIT), []
    start = threads.start_daemon
    monkeypatch.setattr(threads, "start_daemon", lambda run, name: started.append(name) or start(run, name))
    with contextlib.closing(cut(chunker).parts()) as parts:
        next(parts)
        assert not started
        next(parts)
        assert started == ["encode"]


def test_a_cipher_is_used_by_one_thread_in_order():
    """It counts: two threads might encrypt under one number."""
    used: list[tuple[int, int]] = []

    def seal(entry: EncodedEntry, sequence_id: int) -> EncodedEntry:
        used.append((threading.get_ident(), sequence_id))
        return entry

    out = cut(Chunker(PREFIX, 0, LIMIT, seal))
    used.clear()
    with contextlib.closing(out.parts()) as parts:
        for number, _ in enumerate(parts, 1):
            assert used == [(threading.get_ident(), 9)] * number  # and none before it is asked for

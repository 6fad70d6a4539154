"""Cutting and putting together: whatever the sizes, every entry fits and the message comes back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format.entry import ProducerPrefix
from embeddedpulsar._engine.format.entry_decoder import pack_runs, read_chunk, unpack_runs
from embeddedpulsar._engine.format.frame import read_header
from embeddedpulsar._engine.log.log_positions import ChunkReader
from embeddedpulsar._engine.log.log_view import segment_part
from embeddedpulsar._engine.subscription.attachment.chunk_keeper import ChunkOptions, PendingChunks
from embeddedpulsar.client.producer.entry_encoder import Chunker
from embeddedpulsar.exceptions import CorruptionError, MessageTooBig
from tests.frames import framed, unframed

PREFIX = ProducerPrefix("producer-1", 7, 3)


class OneFrame:
    """A segment with one entry, as far as `ChunkReader` looks."""

    def __init__(self, ledger: int, frame: bytes) -> None:
        self.ledger_id = ledger
        self.view = memoryview(frame)
        self.file = SimpleNamespace(size=len(frame), not_needed=lambda *_: None)

    def frame_of(self, entry: int, end: int) -> Any:
        """The entry at the start."""
        return 0, read_header(self.view, 0, len(self.view))


@given(
    size=st.integers(0, 30_000),
    limit=st.integers(300, 5_000),
    codec=st.sampled_from([0, 1, 2]),
    fill=st.binary(min_size=1, max_size=50),
    properties=st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=60), max_size=3),
    key=st.none() | st.text(max_size=20),
    gap=st.integers(1, 3),
    most=st.integers(1, 300) | st.just(1 << 30),
)
def test_every_entry_fits_and_the_message_comes_back(size, limit, codec, fill, properties, key, gap, most):
    """Against the payload itself; the places of the parts are any that ascend; parts are small on demand."""
    value = (fill * (size // len(fill) + 1))[:size]
    options = (properties, key, None, 0, 5, 0, False)
    out = Chunker(PREFIX, codec, limit, None, most).pending_entry(value, options, 9)
    if out.error is not None:
        assert isinstance(out.error, MessageTooBig)
        return
    chunks = out.chunks
    assert chunks is not None
    assert all(0 < end - start <= most for start, end in chunks._plan.cuts())
    segments = {}
    for number, part in enumerate(chunks.parts()):
        assert part.size <= limit and part.count == 0
        place = (7 + number // 4, number * gap)
        segments[place] = OneFrame(place[0], framed(part)[0])
        chunks.earlier.append(place)
    last = chunks.finish()
    assert last.size <= limit and last.count == 1
    view = unframed(framed(last)[0])
    assert read_chunk(view.chunk(0)).total == len(segments) + 1
    assert view.offsets[-1] - view.offsets[0] <= most

    whole = ChunkReader(lambda place: segment_part(cast("Any", segments[place]), place[1])).whole(view)
    assert whole.payload == value
    assert whole.properties(0) == (properties or {})
    assert (whole.keys() or [None]) == [key or None]
    assert whole.earlier == tuple(chunks.earlier)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), unique=True, max_size=60))
def test_places_are_packed_as_runs(places):
    """What is packed comes out, and nothing else is accepted."""
    entries = sorted(places)
    packed = pack_runs(entries)
    assert list(unpack_runs(packed, len(entries))) == entries
    for wrong in (len(entries) + 1, len(entries) - 1):
        try:
            list(unpack_runs(packed, wrong))
            raise AssertionError("accepted")
        except CorruptionError:
            pass


class View:
    """What `PendingChunks` needs of an entry."""

    ledger_id = 1

    def __init__(self, name: int, entry: int) -> None:
        self.producer_name, self.first_sequence_id, self.entry_id = str(name), 0, entry


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=60), st.integers(0, 4))
def test_incomplete_messages_against_a_list(steps, most):
    """The oldest of too many is dropped, once; what is finished is forgotten."""
    pending = PendingChunks(ChunkOptions(max_pending=most))
    model: list[list[Any]] = []  # name, dropped
    for entry, (name, is_last) in enumerate(steps):
        known = [one for one in model if one[0] == name]
        if is_last:
            done = pending.finish((str(name), 0), (1, entry), None)  # type: ignore[arg-type]
            assert (done is not None) == bool(known)
            if done is not None:
                assert done.is_dropped == known[0][1]
                model.remove(known[0])
            continue
        dropped = pending.add(View(name, entry), 0.0)  # type: ignore[arg-type]
        counted = [one for one in model if not one[1]]
        if not known and most and len(counted) >= most:
            assert dropped is not None and dropped.key == (str(counted[0][0]), 0)
            counted[0][1] = True
        else:
            assert dropped is None
        if not known:
            model.append([name, False])
        assert len(pending) == len(model)

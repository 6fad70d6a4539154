"""Pruning by key and event time never loses an entry that has them, whatever else the log holds."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from embeddedpulsar._engine.format import frame  # noqa: E402
from embeddedpulsar._engine.format.entry import (  # noqa: E402
    EntryContent,
    encode,
)
from embeddedpulsar._engine.format.sealed_entry import seal_entry  # noqa: E402
from embeddedpulsar._engine.log.entry_range import part_of  # noqa: E402
from embeddedpulsar._engine.store.topic_lookup import plan_logs  # noqa: E402
from embeddedpulsar.arrow import entry_pruning  # noqa: E402
from embeddedpulsar.arrow.entry_pruning import Wanted, with_wanted  # noqa: E402
from embeddedpulsar.topic_name import TopicName  # noqa: E402
from tests.frames import shown_key  # noqa: E402
from tests.support.log_files import BASE_MS, LogFiles  # noqa: E402
from tests.unit.arrow.contents import PRODUCERS, contents  # noqa: E402

NAME = TopicName.parse("t")
TIME = 1_700_000_000_123
wanted_times = st.none() | st.sampled_from(
    [(None, 2), (1, 2), (2, None), (TIME, TIME + 1), (0, 1 << 62), (3, 1)]
)
wanted_keys = st.none() | st.frozensets(
    st.text(max_size=3).map(str.encode) | st.just(b"other"), min_size=1, max_size=3
)


@pytest.fixture(autouse=True, scope="module")
def every_gap() -> Any:
    """Each entry that may be left out is left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_pruning, "_GAP_BYTES", 0)
        yield


def encoded(content: EntryContent, form: str) -> Any:
    """An entry in one of the forms that entries are stored in."""
    entry = encode(content, PRODUCERS[0], 2 if form == "packed" else 0)
    if form == "sealed":
        cipher: Any = AESGCM(bytes(32))
        return seal_entry(entry, NAME.full, 0, b"\x80", bytes(12), cipher.encrypt)
    return entry._replace(flags=entry.flags | frame.FLAG_CHUNK) if form == "chunk" else entry


@given(
    st.lists(
        st.tuples(contents(most=3), st.sampled_from(["plain", "packed", "sealed", "chunk"])),
        min_size=1,
        max_size=8,
    ),
    wanted_keys,
    wanted_times,
    st.integers(0, 6),
)
def test_entries_with_what_is_wanted_are_kept(entries: Any, found: Any, times: Any, first: int):
    """Against brute force: of all forms of entries, and of parts of a ledger."""
    # Keys that occur are asked for, too: most random ones do not.
    shown = [shown_key(key) for content, _ in entries for key in content.keys or ()]
    occurring = [key.encode() for key in shown if key is not None]
    keys = None if found is None else found | frozenset(occurring[: len(found)])
    wanted = Wanted(keys, *(times or (None, None)))
    with tempfile.TemporaryDirectory() as path:
        log = LogFiles(Path(path))
        for content, form in entries:
            log.append(encoded(content, form), BASE_MS)
        log.finish()
        (whole,) = plan_logs(path, [NAME])
        planned = part_of(replace(whole, skip=1, keep=1), first, len(entries))
        if planned is None:
            return
        parts = with_wanted(planned, wanted)
        kept = [entry for part in parts for entry in range(part.first_entry, part.end_entry)]
        offsets = {entry: offset for _, entry, _, offset, _ in log.written} | {len(entries): whole.end_offset}
        for part in parts:
            assert (part.first_offset, part.end_offset) == (
                offsets[part.first_entry],
                offsets[part.end_entry],
            )
            assert part.skip == (planned.skip if part.first_entry == planned.first_entry else 0)
            assert part.keep == (1 if part.end_entry == planned.end_entry else 0)
        assert kept == sorted(set(kept))
        for number, (content, form) in enumerate(entries):
            is_wanted = any(
                matches(wanted, *row)
                for row in zip(
                    map(shown_key, content.keys or [None] * len(content.values)),
                    content.event_times or [0] * len(content.values),
                    strict=True,
                )
            )
            if number >= first and is_wanted:
                assert number in kept
            elif form == "plain" and wanted.is_timed and not content.event_times:
                assert number not in kept
            elif form == "plain" and keys and b"" not in keys and not content.keys:
                assert number not in kept


def matches(wanted: Wanted, key: str | None, time: int) -> bool:
    """Whether a message is wanted."""
    first, end = wanted.times
    return (wanted.keys is None or (key is not None and key.encode() in wanted.keys)) and (
        not wanted.is_timed or (time > 0 and first <= time < end)
    )


def test_what_is_pruned(tmp_path: Path):
    """The table of the entries that are left out for other keys, and of those that are not."""
    log = LogFiles(tmp_path)
    rows: list[tuple[list[str | None] | None, list[str | None] | None, str, bool]] = [
        (["a"], None, "plain", True),
        (["b"], None, "packed", False),
        (["b"], None, "sealed", False),
        (["b"], ["a"], "plain", False),
        (["b"], ["a"], "sealed", True),
        (["b", "c", None], None, "plain", False),
        (["b", "a"], None, "plain", True),
        (["b", "c"], None, "packed", True),
        (["b"], None, "chunk", True),
        (None, None, "packed", False),
        (None, ["a"], "plain", False),
        ([None], None, "plain", False),
    ]
    for keys, ordering, form, _ in rows:
        count = len(keys or ordering or [None])
        content = EntryContent([b"v" * 50] * count, 0, count > 1, keys=keys, ordering_keys=ordering)
        log.append(encoded(content, form), BASE_MS)
    log.finish()
    (planned,) = plan_logs(str(tmp_path), [NAME])
    parts = with_wanted(planned, Wanted(frozenset([b"a"])))
    kept = [entry for part in parts for entry in range(part.first_entry, part.end_entry)]
    assert kept == [number for number, row in enumerate(rows) if row[-1]]
    assert with_wanted(planned, Wanted(frozenset())) == with_wanted(planned, Wanted(frozenset([b"x"])))


def test_what_is_pruned_by_event_time(tmp_path: Path):
    """Entries without event times, and those in the clear that have none in the limits."""
    log = LogFiles(tmp_path)
    rows: list[tuple[dict[str, Any], str, bool]] = [
        ({}, "plain", False),
        ({}, "sealed", False),
        ({"event_times": [10]}, "plain", True),
        ({"event_times": [20]}, "plain", False),
        ({"event_times": [9]}, "packed", True),
        ({"event_times": [0]}, "plain", False),
        ({"event_times": [30, 0, 11]}, "plain", True),
        ({"event_times": [30, 0, 9]}, "plain", False),
        ({"event_times": [30], "keys": ["a" * 9], "properties": [{"p": "1"}]}, "plain", False),
        ({"event_times": [19], "ordering_keys": ["a" * 17], "sequence_ids": [5]}, "plain", True),
        ({"event_times": [9, 30], "keys": ["a", None], "ordering_keys": ["b", "c"]}, "plain", False),
        ({"event_times": [30]}, "chunk", True),
    ]
    for columns, form, _ in rows:
        count = max(map(len, columns.values()), default=1)
        log.append(encoded(EntryContent([b"v" * 50] * count, 0, count > 1, **columns), form), BASE_MS)
    log.finish()
    (planned,) = plan_logs(str(tmp_path), [NAME])
    parts = with_wanted(planned, Wanted(None, 10, 20))
    kept = [entry for part in parts for entry in range(part.first_entry, part.end_entry)]
    assert kept == [number for number, row in enumerate(rows) if row[-1]]


def test_an_index_that_is_wrong_prunes_nothing(tmp_path: Path):
    """Slots of other entries, a short index, and none."""
    log = LogFiles(tmp_path)
    for key in "abcdef":
        log.append(encode(EntryContent([b"v"], 0, False, keys=[key]), PRODUCERS[0]), BASE_MS)
    log.finish()
    (planned,) = plan_logs(str(tmp_path), [NAME])
    wanted = Wanted(frozenset([b"c"]))
    assert [one.first_entry for one in with_wanted(planned, wanted)] == [2]
    path = log.index_path(planned.ledger_id)
    whole = path.read_bytes()
    for at in (4096 + 24 * 2, 4096 + 24 * 2 + 12, 4096 + 24 * 3 + 20):  # offset, hash, checksum of the frame
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert with_wanted(planned, wanted) == [planned]
    path.write_bytes(whole[:4096])
    assert with_wanted(planned, wanted) == [planned]
    path.unlink()
    assert with_wanted(planned, wanted) == [planned]

"""Payloads of the catalog and of the topic journal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format import catalog_record, journal_record
from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.format.journal_record import AttachProducer, DetachProducer, EnqueueProducer
from embeddedpulsar.exceptions import CorruptionError

NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=300)
U64 = st.integers(0, 2**64 - 1)
ENTRIES = st.builds(
    TopicEntry, NAMES, st.from_regex(r"[a-z0-9-]{1,80}", fullmatch=True), U64, st.integers(0, 2**31 - 1)
)
PRODUCERS = st.tuples(U64, U64, st.binary(min_size=16, max_size=16), st.integers(0, 3), st.booleans(), NAMES)
COMMANDS = st.one_of(
    PRODUCERS.map(lambda fields: AttachProducer(*fields)),
    PRODUCERS.map(lambda fields: EnqueueProducer(*fields)),
    st.builds(DetachProducer, U64, st.integers(0, 2)),
)


@given(ENTRIES)
def test_topics_round_trip(entry: TopicEntry):
    """Any name and directory come back; trailing bytes of a later release do not disturb."""
    payload = catalog_record.encode_topic(entry)
    assert catalog_record.decode_topic(payload) == entry
    assert catalog_record.decode_topic(payload + b"more") == entry


@given(NAMES, U64)
def test_deletions_and_namespaces_round_trip(name: str, incarnation: int):
    """The other two kinds of record."""
    assert catalog_record.decode_topic_deleted(catalog_record.encode_topic_deleted(name, incarnation)) == (
        name,
        incarnation,
    )
    assert catalog_record.decode_namespace(catalog_record.encode_namespace(name)) == name


@given(COMMANDS)
def test_producer_commands_round_trip(command: journal_record.TopicCommand):
    """Every command keeps its type and fields."""
    decoded = journal_record.decode_command(*journal_record.encode_command(command))
    assert decoded == command and type(decoded) is type(command)


@given(st.binary(max_size=120), st.integers(0, 5))
def test_any_bytes_are_a_record_or_corruption(payload: bytes, kind: int):
    """Lengths in a payload are not trusted, and nothing but CorruptionError comes out."""
    decoders = (
        catalog_record.decode_topic,
        catalog_record.decode_topic_deleted,
        catalog_record.decode_namespace,
        lambda data: journal_record.decode_command(kind, data),
    )
    for decode in decoders:
        try:
            decode(payload)
        except CorruptionError:
            continue


def test_truncated_records_are_corruption():
    """Each prefix of a record is refused."""
    payload = journal_record.encode_command(AttachProducer(1, 2, bytes(16), 0, True, "bob"))[1]
    for size in range(len(payload)):
        with pytest.raises(CorruptionError):
            journal_record.decode_command(journal_record.ATTACH_PRODUCER, payload[:size])

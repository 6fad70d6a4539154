"""Keys of bytes, null keys, fields of entries, entries of Pulsar: what each kind of reader makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from embeddedpulsar import (
    Admin,
    Client,
    Consumer,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    Message,
    MessageBatch,
    MessageId,
    Reader,
)
from embeddedpulsar._engine.format.columns import EntryFields
from embeddedpulsar._engine.format.entry import (
    EntryContent,
    ProducerPrefix,
    encode,
    encode_pulsar,
    sticky_key_hash,
)
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar.crypto import wrap
from embeddedpulsar.testing import assert_clean
from tests.conformance.compacting import compact
from tests.support.key_files import KeyRing, key_pair
from tests.support.pulsar_entries import PulsarEntry, PulsarMessage

TOPIC = "persistent://public/default/t"
PREFIX = ProducerPrefix("mirror")
FIELDS = EntryFields(1_600_000_000_000, "east", ("west", "north"), 3)
IV = bytes(range(12))
DATA_KEY = bytes(range(32))
REVISED = EntryContent(
    [b"one", b"two", b"three", b"four"],
    keys=[b"\x00\xff", "text", None, ""],
    ordering_keys=[b"\xfe", b"utf", "text", None],
    null_keys=[False, False, True, False],
    fields=FIELDS,
)
BATCH = PulsarEntry(
    [
        PulsarMessage(b"five", b"\x00\xff", b"\xfe", {"a": "b"}, 5),
        PulsarMessage(b"six", "text", None, {}, 0),
        PulsarMessage(b"", None, None, {}, 0, None, True, True),
    ],
    producer="java",
    sequence_id=10,
    publish_time=1_500_000_000_000,
    replicated_from="south",
    compression=4,
    highest_sequence_id=12,
)


def encrypted(entry: PulsarEntry) -> bytes:
    """As a client of Pulsar encrypts it."""
    key = wrap(key_pair("rsa", 1)[0], DATA_KEY, "app")
    sealed = replace(entry, encryption_keys=[("app", key, {"version": "1"})], encryption_param=IV)
    return sealed.encoded(AESGCM(DATA_KEY).encrypt(IV, entry.packed(), None))


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A store whose topic has an entry of each kind."""
    path = tmp_path / "store"
    path.mkdir()
    kept = "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"
    (path / "broker.conf").write_text(kept)
    store = Store.open(str(path))
    append(store, encode(REVISED, PREFIX, 5), encode_pulsar(BATCH.encoded()))
    store.release()
    yield path
    assert_clean(path)


def append(store: Store, *entries: Any) -> None:
    """Append entries to the topic."""
    ledger = store.use_topic(TOPIC).topic.ledger
    for entry in entries:
        ledger.append(entry)


def drained(receiver: Consumer[bytes] | Reader[bytes]) -> list[Message[bytes]]:
    """All that it gets."""
    found = []
    if isinstance(receiver, Reader):
        while receiver.has_message_available():
            found.append(receiver.read_next(1000))
        return found
    while (message := receiver.receive_nowait()) is not None:
        found.append(message)
    return found


def shown(message: Message[bytes]) -> tuple[Any, ...]:
    """What a reader of a message sees."""
    return (
        message.data(),
        message.partition_key(),
        message.ordering_key(),
        message.properties(),
        message.event_timestamp(),
        message.sequence_id(),
        message.has_null_value(),
        message.message_id().batch_index(),
    )


EXPECTED = [
    (b"one", "AP8=", "/g==", {}, 0, 0, False, 0),
    (b"two", "text", "utf", {}, 0, 1, False, 1),
    (b"three", "", "text", {}, 0, 2, False, 2),
    (b"four", "", "", {}, 0, 3, False, 3),
    (b"five", "AP8=", "/g==", {"a": "b"}, 5, 10, False, 0),
    (b"six", "text", "", {}, 0, 11, False, 1),
    (b"", "", "", {}, 0, 12, True, 2),
]


@pytest.mark.parametrize("kind", list(ConsumerType))
def test_consumers(root: Path, kind: ConsumerType):
    """Of every type; each message is acknowledged by itself."""
    with Client(root) as client:
        consumer = client.subscribe(TOPIC, "s", consumer_type=kind, initial_position=InitialPosition.Earliest)
        messages = drained(consumer)
        assert sorted(map(shown, messages)) == sorted(EXPECTED)
        assert {message.producer_name() for message in messages} == {"mirror", "java"}
        for message in messages:
            consumer.acknowledge(message)
        consumer.close()
        with Admin(root) as admin:
            assert admin.topics().get_stats(TOPIC).subscriptions["s"].msg_backlog == 0


def test_what_else_an_entry_has(root: Path):
    """The bytes of keys, null keys, and what the writer of an entry said of it as a whole."""
    with Client(root) as client:
        first, second, third, *_, fifth, _, last = drained(client.create_reader(TOPIC, MessageId.earliest))
    entry, other = first._entry, fifth._entry
    assert (entry.key(0), entry.key(1), entry.key(2), entry.key(3)) == (b"\x00\xff", b"text", None, b"")
    assert (entry.ordering_key(0), entry.ordering_key(1)) == (b"\xfe", b"utf")
    assert [entry.is_key_null(i) for i in range(4)] == [False, False, True, False]
    assert entry.key_hash == sticky_key_hash(b"\xfe")
    assert entry.entry_fields() == FIELDS
    assert entry.highest_sequence_id() == 3
    assert (other.entry_fields().publish_time, other.entry_fields().replicated_from) == (
        BATCH.publish_time,
        "south",
    )
    assert last._entry.is_key_null(2)
    # The time by which the log is ordered is that of the store.
    assert all(message.publish_timestamp() > 1_700_000_000_000 for message in (first, second, third, fifth))


def test_a_seek_by_batch_index(root: Path):
    """Into the middle of either entry."""
    with Client(root) as client:
        reader = client.create_reader(TOPIC, MessageId.earliest)
        messages = drained(reader)
        for index in (2, 5):
            reader.seek(messages[index].message_id())
            assert list(map(shown, drained(reader))) == EXPECTED[index + 1 :]
            again = client.create_reader(TOPIC, messages[index].message_id(), start_message_id_inclusive=True)
            assert list(map(shown, drained(again))) == EXPECTED[index:]


def test_redelivery_of_some_of_a_batch(root: Path):
    """Batch indexes that were acknowledged do not come again."""
    with Client(root) as client:
        options: dict[str, Any] = {"batch_index_ack_enabled": True, "consumer_type": ConsumerType.Shared}
        options["initial_position"] = InitialPosition.Earliest
        consumer = client.subscribe(TOPIC, "s", **options)
        for number, message in enumerate(drained(consumer)):
            if number % 2 == 0:
                consumer.acknowledge(message)
        consumer.close()
        again = client.subscribe(TOPIC, "s", **options)
        assert sorted(map(shown, drained(again))) == sorted(EXPECTED[1::2])


def test_a_table_view(root: Path):
    """The text of a key is what tables are made of; a null value removes its key."""
    with Client(root) as client:
        view = client.create_table_view(TOPIC)
        assert dict(view.items()) == {"AP8=": b"five", "text": b"six"}


def test_compaction(root: Path):
    """The newest of each key stays, in the form that it had; what the entry said is kept for each row."""
    with Admin(root) as admin:
        compact(admin, TOPIC)
    with Client(root) as client:
        reader = client.create_reader(TOPIC, MessageId.earliest, is_read_compacted=True)
        messages = drained(reader)
    five = next(message for message in messages if message.data() == b"five")
    assert shown(five)[1:3] == ("AP8=", "/g==")
    entry = five._entry
    index = five._index
    assert (entry.key(index), entry.ordering_key(index)) == (b"\x00\xff", b"\xfe")
    assert entry.entry_fields().replicated_from == "south"
    assert entry.key_hash == sticky_key_hash(b"\xfe")
    # Once more: rows of a compacted ledger are compacted again.
    store = Store.open(str(root))
    append(store, encode(EntryContent([b"newer"], keys=["text"]), PREFIX))
    store.release()
    with Admin(root) as admin:
        compact(admin, TOPIC)
    with Client(root) as client:
        messages = drained(client.create_reader(TOPIC, MessageId.earliest, is_read_compacted=True))
    kept = {message.partition_key(): message for message in messages if message.partition_key()}
    assert {key: message.data() for key, message in kept.items()} == {"AP8=": b"five", "text": b"newer"}
    entry, index = kept["AP8="]._entry, kept["AP8="]._index
    assert (entry.key(index), entry.entry_fields().publish_time) == (b"\x00\xff", BATCH.publish_time)


def test_an_encrypted_entry_of_pulsar(root: Path):
    """With the private key, without it, and by what Pulsar's applications do with the ciphertext."""
    store = Store.open(str(root))
    append(store, encode_pulsar(encrypted(BATCH)))
    store.release()
    with Client(root) as client:
        keys = KeyRing("rsa")
        messages = drained(client.create_reader(TOPIC, MessageId.earliest, crypto_key_reader=keys))
        assert list(map(shown, messages[7:])) == EXPECTED[4:]
        context = messages[7].encryption_context()
        assert context is not None
        assert (context.batch_size(), context.compression_type().name, context.param()) == (3, "SNAPPY", IV)
        raw = drained(
            client.create_reader(
                TOPIC,
                MessageId.earliest,
                crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
            )
        )
        assert len(raw) == 8
        packed = AESGCM(DATA_KEY).decrypt(raw[7].encryption_context().param(), raw[7].data(), None)
        assert packed == BATCH.packed()
        batch = MessageBatch().parse_from(BATCH.payload(), 3)
        assert [message.data() for message in batch] == [b"five", b"six", b""]
    with Admin(root) as admin:
        compact(admin, TOPIC)
    with Client(root) as client:
        reader = client.create_reader(
            TOPIC, MessageId.earliest, crypto_key_reader=keys, is_read_compacted=True
        )
        assert [message.data() for message in drained(reader)][-3:] == [b"five", b"six", b""]


def test_whole_columns(root: Path):
    """Arrow has what readers get, of entries as they are stored and of an encrypted one."""
    pytest.importorskip("pyarrow")
    from embeddedpulsar.arrow import read_topic

    store = Store.open(str(root))
    append(store, encode_pulsar(encrypted(BATCH)))
    store.release()
    table = read_topic(root, TOPIC, crypto_key_reader=KeyRing("rsa"))
    rows = table.to_pylist()
    assert len(rows) == 10
    for row, wanted in zip(rows, [*EXPECTED, *EXPECTED[4:]], strict=True):
        value, key, ordering_key, own, event_time, sequence_id, is_null, index = wanted
        assert row["value"] == (None if is_null else value)
        assert (row["__key"] or b"").decode() == key
        assert (row["__orderingKey"] or b"").decode() == ordering_key
        assert dict(row["__messageProperties"]) == own
        assert (row["__eventTime"] is None) == (event_time == 0)
        assert (row["__sequenceId"], MessageId.deserialize(row["__messageId"]).batch_index()) == (
            sequence_id,
            index,
        )
    assert read_topic(root, TOPIC, ["value"], crypto_key_reader=KeyRing("rsa")).num_rows == 10


def test_a_backup_of_such_a_store(root: Path, tmp_path: Path):
    """It is one of its version, and gives the messages back."""
    with Admin(root) as admin:
        admin.backup(tmp_path / "backup")
    Admin.restore(tmp_path / "backup", tmp_path / "again")
    with Admin(tmp_path / "again") as admin:
        assert admin.format_version() == 2
    with Client(tmp_path / "again") as client:
        assert list(map(shown, drained(client.create_reader(TOPIC, MessageId.earliest)))) == EXPECTED
    assert_clean(tmp_path / "again")

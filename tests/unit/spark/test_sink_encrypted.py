"""Writes that encrypt, without Spark: what is stored, what is in files meanwhile, and who can finish."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
pytest.importorskip("cryptography", reason="the extra `crypto` is not installed")

from embeddedpulsar import Admin, Client, ConsumerType, CryptoKeyReader, InitialPosition
from embeddedpulsar.arrow import read_topic
from embeddedpulsar.exceptions import CryptoError, InvalidConfiguration, MessageTooBig
from embeddedpulsar.spark import finish_commits
from embeddedpulsar.testing import assert_clean
from tests.children import die_at
from tests.support.key_files import key_files
from tests.support.sinks import batch_of, schema_of, source, staged, write

MARK = b"a secret that no file may contain"
GUARANTEES = pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])


@pytest.fixture
def keys(tmp_path: Path) -> CryptoKeyReader:
    """A pair of keys beside the store."""
    return key_files(tmp_path, "ec")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store."""
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def encrypting(keys: CryptoKeyReader) -> dict[str, str]:
    """The options of a write that encrypts."""
    return {"encryptionKeys": "spark", "cryptoPublicKeyPath": keys.public_key_path}


def values(root: Path, topic: str, keys: CryptoKeyReader | None) -> list[Any]:
    """The values of a topic."""
    return read_topic(root, topic, ["value"], crypto_key_reader=keys).column("value").to_pylist()


def are_secret(root: Path) -> bool:
    """Whether the mark is in none of the store's files."""
    return not [path for path in root.rglob("*") if path.is_file() and MARK in path.read_bytes()]


@GUARANTEES
def test_messages_are_those_of_a_producer_that_encrypts(root: Path, keys: CryptoKeyReader, guarantee: str):
    """Keys, times, properties, null values, partitions, delays; compressed, where encryption is required."""
    with Admin(root) as admin:
        admin.topics().create_partitioned_topic("p", 2)
        admin.namespaces().set_encryption_required_status("public/default", True)
    time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    rows = {
        "value": [MARK * 9, None, MARK, b"plain"],
        "__key": [b"k1", b"k2", None, b"k4"],
        "__topic": ["p", "p", "new", "new"],
        "__eventTime": [time, None, None, time],
        "__messageProperties": [[("a", "1")], [], [], []],
        "__deliverAt": [None, None, datetime(2100, 1, 1, tzinfo=UTC), None],
    }
    write(root, rows, deliveryGuarantee=guarantee, compressionType="LZ4", **encrypting(keys))
    with Client(root) as client:
        found = {}
        for topic, kind in (("p", ConsumerType.Exclusive), ("new", ConsumerType.Shared)):
            consumer = client.subscribe(
                topic, "s", kind, initial_position=InitialPosition.Earliest, crypto_key_reader=keys
            )
            for _ in range(2 if topic == "p" else 1):
                message = consumer.receive(1000)
                assert [key.key for key in message.encryption_context().keys()] == ["spark"]
                found[message.partition_key()] = (
                    message.data(),
                    message.properties(),
                    message.event_timestamp(),
                )
    ms = int(time.timestamp() * 1000)
    assert found == {"k1": (MARK * 9, {"a": "1"}, ms), "k2": (b"", {}, 0), "k4": (b"plain", {}, ms)}
    assert set(values(root, "p", keys)) == {MARK * 9, None}
    assert set(values(root, "new", keys)) == {MARK, b"plain"}
    with pytest.raises(CryptoError, match="private key"):
        values(root, "p", None)
    assert are_secret(root)
    assert_clean(root)


@pytest.mark.parametrize(
    ("point", "stored"),
    [
        ("sink:staged", 0),
        ("sink:pinned", 0),
        ("sealing:staged", 0),
        ("sink:pending", 12),
        ("sink:publishing", 12),
        ("append:tail_stored", 12),
        ("sink:done", 12),
    ],
)
def test_killed_at(root: Path, keys: CryptoKeyReader, point: str, stored: int):
    """Before the decision nothing is stored. After it any process finishes the commit, without a key and
    where encryption is required. No file had plain rows."""
    with Admin(root) as admin:
        admin.namespaces().set_encryption_required_status("public/default", True)
    options = {"producerName": "p", "batchId": "1"} | encrypting(keys)
    tasks = [{"value": [MARK + b"%d" % i for i in range(4)], "__topic": ["t", "u", "t", "u"]}] * 3
    assert die_at(point, lambda: write(root, *tasks, **options), 1)
    assert are_secret(root)
    public = Path(keys.public_key_path)
    hidden = public.rename(public.with_suffix(".hidden"))
    finish_commits(root)
    hidden.rename(public)
    found = [one for topic in "tu" for one in (values(root, topic, keys) if stored else [])]
    assert sorted(found) == sorted([MARK + b"%d" % i for i in range(4)] * 3)[:stored]
    write(root, {"value": [b"again"], "__topic": ["t"]}, **options)
    write(root, {"value": [b"last"], "__topic": ["t"]}, **options | {"batchId": "2"})
    assert values(root, "t", keys)[6 if stored else 0 :] == ([] if stored else [b"again"]) + [b"last"]
    assert are_secret(root)
    assert_clean(root)


def test_what_dead_tasks_leave_is_not_readable(root: Path, keys: CryptoKeyReader):
    """Tasks encrypt what they stage with a key that is in their commit messages alone."""
    batch = batch_of({"value": [MARK]})
    writer = source(root, topic="t", **encrypting(keys)).writer(schema_of(batch), False)
    (message,) = staged(writer, [{"value": [MARK]}])
    (file,) = (root / "sinks").rglob("*.rows")
    assert message.file.key not in file.read_bytes()
    assert are_secret(root)
    writer.commit([message])
    assert values(root, "t", keys) == [MARK]


def test_the_largest_rows(root: Path, keys: CryptoKeyReader):
    """Entries leave room for what encryption adds; a row that leaves none is refused by its task."""
    (root / "broker.conf").write_text("maxMessageSize=4096\n")
    write(root, {"value": [b"x" * 700] * 20}, topic="t", **encrypting(keys))
    assert values(root, "t", keys) == [b"x" * 700] * 20
    with pytest.raises(MessageTooBig, match=r"maxMessageSize is 4096, of which encryption takes \d+"):
        write(root, {"value": [b"x" * 4000]}, topic="t", **encrypting(keys))
    write(root, {"value": [b"x" * 4000]}, topic="plain")
    assert len(values(root, "t", keys)) == 20


def test_a_topic_that_takes_less_than_the_store(root: Path, keys: CryptoKeyReader):
    """Its limit is looked at before the decision: nothing is stored in any topic, and nothing is left."""
    with Admin(root) as admin:
        admin.topics().create_non_partitioned_topic("small")
        admin.topics().set_max_message_size("small", 1000)
    rows = {"value": [b"x", b"x" * 2000], "__topic": ["t", "small"]}
    with pytest.raises(MessageTooBig, match="small has 2008 bytes"):
        write(root, rows, **encrypting(keys))
    assert finish_commits(root) == 0
    assert values(root, "t", keys) == []


def test_several_keys(root: Path, tmp_path: Path):
    """Each private key decrypts; the names come from the object of files if they are not given apart."""
    both = {name: key_files(tmp_path, "ec", number) for number, name in enumerate("ab")}
    paths = {name: one.public_key_path for name, one in both.items()}
    write(root, {"value": [b"1"]}, topic="t", cryptoPublicKeyPath=json.dumps(paths))
    write(root, {"value": [b"2"]}, topic="u", encryptionKeys="b", cryptoPublicKeyPath=json.dumps(paths))
    for one in both.values():
        assert values(root, "t", one) == [b"1"]
    assert values(root, "u", both["b"]) == [b"2"]
    with pytest.raises(CryptoError):
        values(root, "u", both["a"])


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"encryptionKeys": "k"}, InvalidConfiguration, "encryptionKeys needs cryptoPublicKeyPath"),
        ({"cryptoPublicKeyPath": "/k"}, InvalidConfiguration, "cryptoPublicKeyPath needs encryptionKeys"),
        ({"cryptoPublicKeyPath": '{"k": 1}'}, InvalidConfiguration, "cryptoPublicKeyPath: 1 is no path"),
        ({"cryptoPublicKeyPath": "/absent", "encryptionKeys": "k"}, CryptoError, "could not be read.*absent"),
        (
            {"cryptoPublicKeyPath": '{"a": "/absent"}', "encryptionKeys": "k"},
            CryptoError,
            "cryptoPublicKeyPath names no file for the key 'k', only for a",
        ),
    ],
)
def test_options_that_do_not_fit(root: Path, options: dict[str, str], error: type, text: str):
    """Are errors before a task runs."""
    with pytest.raises(error, match=text):
        source(root, topic="t", **options).writer(schema_of(batch_of({"value": [b"x"]})), False)

"""Whole columns of encrypted topics: with the private key they are as without encryption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from embeddedpulsar import (
    Client,
    CompressionType,
    ConsumerCryptoFailureAction,
    CryptoError,
    CryptoKeyReader,
    MessageId,
)
from embeddedpulsar import crypto as key_wrap
from embeddedpulsar.arrow import read_topic, scan_topic
from embeddedpulsar.exceptions import InvalidConfiguration
from tests.conformance.chunks import LIMIT, payload, use_small_entries
from tests.support.key_files import KeyRing, key_files

DISCARD = ConsumerCryptoFailureAction.DISCARD


@pytest.fixture
def keys(tmp_path: Path) -> CryptoKeyReader:
    """The keys of the producers."""
    return key_files(tmp_path)


def fill(root: Path, topic: str, **options: Any) -> None:
    """Messages of every kind: batched, compressed, single, plain in between."""
    with Client(root) as client:
        for compression in (CompressionType.NONE, CompressionType.ZLib):
            for batching in (True, False):
                with client.create_producer(
                    topic,
                    "p",
                    compression_type=compression,
                    batching_enabled=batching,
                    batching_max_publish_delay_ms=60_000,  # no batch is cut by time
                    **options,
                ) as producer:
                    for i in range(20):
                        producer.send_async(
                            b"x" * 100 + b"%d" % i,
                            None,
                            {"n": str(i)},
                            partition_key=f"k{i}" if i % 3 else None,
                            event_timestamp=i,
                            sequence_id=1000 - i if i == 5 else None,
                        )
        with client.create_producer(topic, "plain") as producer:
            producer.send(b"plain")


def test_columns_are_those_of_plain_messages(tmp_path: Path, keys: CryptoKeyReader):
    """Every column, table and batches, equals that of the same messages without encryption."""
    fill(tmp_path / "a", "t", encryption_key="app", crypto_key_reader=keys)
    fill(tmp_path / "b", "t")
    columns = ["value", "__key", "__eventTime", "__messageProperties", "__messageId", "__producerName"]
    columns += ["__sequenceId"]
    found = read_topic(tmp_path / "a", "t", columns, crypto_key_reader=keys)
    expected = read_topic(tmp_path / "b", "t", columns)
    assert found.num_rows == 81
    assert found.to_pylist() == expected.to_pylist()
    batches = scan_topic(tmp_path / "a", "t", columns, batch_rows=7, crypto_key_reader=keys)
    assert batches.read_all().to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("kind", ["none", "wrong"])
def test_without_the_key_there_is_an_error_with_a_remedy(tmp_path: Path, keys: CryptoKeyReader, kind: str):
    """Ciphertext is not handed out as if it were the payload; what is not encrypted can be had."""
    fill(tmp_path / "a", "t", encryption_key="app", crypto_key_reader=keys)
    reader = None if kind == "none" else key_files(tmp_path, "ec")
    for column in ("value", "__key", "__messageProperties"):
        with pytest.raises(CryptoError, match="crypto_key_reader, or the option cryptoPrivateKeyPath"):
            read_topic(tmp_path / "a", "t", [column], crypto_key_reader=reader)
    assert read_topic(tmp_path / "a", "t", ["__messageId", "__publishTime"]).num_rows == 81


def test_a_reader_lends_its_keys(tmp_path: Path, keys: CryptoKeyReader):
    """`Reader.to_arrow` decrypts with the keys of the reader."""
    with Client(tmp_path / "a") as client:
        producer = client.create_producer("t", encryption_key="app", crypto_key_reader=keys)
        producer.send(b"secret")
        reader = client.create_reader("t", MessageId.earliest, crypto_key_reader=keys)
        assert reader.to_arrow(["value"]).to_pylist() == [{"value": b"secret"}]
        bare = client.create_reader("t", MessageId.earliest)
        with pytest.raises(CryptoError):
            bare.to_arrow(["value"])


@pytest.mark.parametrize("columns", [["value", "__key"], ["__publishTime"], None])
def test_discard_leaves_out_what_cannot_be_decrypted(
    tmp_path: Path, keys: CryptoKeyReader, caplog, columns: Any
):
    """Rows are those of a reader with the same failure action, whichever columns are asked for."""
    root = tmp_path / "a"
    fill(root, "t", encryption_key="app", crypto_key_reader=keys)
    fill(root, "t", encryption_key="ec", crypto_key_reader=key_files(tmp_path, "ec"))
    with Client(root) as client:
        reader = client.create_reader(
            "t", MessageId.earliest, crypto_key_reader=keys, crypto_failure_action=DISCARD
        )
        wanted = [message.message_id().serialize() for message in reader]
        reader.seek(MessageId.earliest)
        by_reader = reader.to_arrow(columns)
    options: dict[str, Any] = {"crypto_key_reader": keys, "crypto_failure_action": DISCARD}
    found = read_topic(root, "t", columns, **options)
    assert found.num_rows == len(wanted) == 82
    assert found.equals(by_reader)
    assert read_topic(root, "t", ["__messageId"], **options).column(0).to_pylist() == wanted
    assert scan_topic(root, "t", columns, batch_rows=7, **options).read_all().equals(found)
    assert caplog.text.count("and more that cannot be decrypted") == 4  # once for each read
    assert (
        read_topic(root, "t", ["value"], crypto_failure_action=DISCARD).to_pylist()
        == [{"value": b"plain"}] * 2
    )


def test_ciphertext_is_no_column(tmp_path: Path, keys: CryptoKeyReader):
    """CONSUME is refused, with what to use instead; a reader with that action goes on as with FAIL."""
    with Client(tmp_path / "a") as client:
        client.create_producer("t", encryption_key="app", crypto_key_reader=keys).send(b"secret")
        consume = ConsumerCryptoFailureAction.CONSUME
        for read in (read_topic, scan_topic):
            with pytest.raises(InvalidConfiguration, match="use FAIL or DISCARD"):
                read(tmp_path / "a", "t", crypto_failure_action=consume)
        reader = client.create_reader("t", MessageId.earliest, crypto_failure_action=consume)
        with pytest.raises(CryptoError):
            reader.to_arrow(["value"])


def test_chunked_messages(tmp_path: Path, keys: CryptoKeyReader):
    """Whole with the key; without it, what is in the clear is the same, and DISCARD leaves them out."""
    root = tmp_path / "a"
    use_small_entries(root, 3 * LIMIT)
    with Client(root) as client:
        producer = client.create_producer(
            "t", chunking_enabled=True, encryption_key="app", crypto_key_reader=keys
        )
        for size in (10, 20 * LIMIT, 9 * LIMIT):
            producer.send(payload(size), {"a": "b"}, "key")
    with_key = read_topic(root, "t", crypto_key_reader=keys)
    assert with_key.column("value").to_pylist() == [payload(size) for size in (10, 20 * LIMIT, 9 * LIMIT)]
    assert with_key.column("__key").to_pylist() == [b"key"] * 3
    clear = ["__messageId", "__publishTime", "__sequenceId", "__producerName"]
    assert read_topic(root, "t", clear).equals(with_key.select(clear))
    for column in ("value", "__key"):
        with pytest.raises(CryptoError, match="crypto_key_reader, or the option cryptoPrivateKeyPath"):
            read_topic(root, "t", [column])
        assert read_topic(root, "t", [column], crypto_failure_action=DISCARD).num_rows == 0


def test_a_missing_key_is_looked_for_once(tmp_path: Path):
    """To find out that a data key cannot be unwrapped costs a millisecond, whatever the number of entries."""
    ring = KeyRing()
    with Client(tmp_path / "a") as client:
        for version in (1, 2):
            ring.version = version
            with client.create_producer("t", encryption_key="app", crypto_key_reader=ring) as producer:
                for _ in range(10):
                    producer.send(b"secret")
    ring.asked.clear()
    ring.is_broken = True
    found = read_topic(tmp_path / "a", "t", crypto_key_reader=ring, crypto_failure_action=DISCARD)
    assert found.num_rows == 0
    assert ring.asked == [("private", "app", "1"), ("private", "app", "2")]


def test_a_private_key_is_loaded_once(tmp_path: Path, keys: CryptoKeyReader):
    """Loading an RSA key costs a tenth of a second; every producer has data keys of its own."""
    with Client(tmp_path / "a") as client:
        for _ in range(5):
            with client.create_producer("t", encryption_key="app", crypto_key_reader=keys) as producer:
                producer.send(b"secret")
    key_wrap._private_key.cache_clear()
    assert read_topic(tmp_path / "a", "t", ["value"], crypto_key_reader=keys).num_rows == 5
    assert key_wrap._private_key.cache_info().misses == 1

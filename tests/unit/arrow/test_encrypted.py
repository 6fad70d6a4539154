"""Whole columns of encrypted topics: with the private key they are as without encryption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from embeddedpulsar import Client, CompressionType, CryptoError, CryptoKeyReader, MessageId
from embeddedpulsar.arrow import read_topic, scan_topic
from tests.support.key_files import key_files


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
                    topic, "p", compression_type=compression, batching_enabled=batching, **options
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

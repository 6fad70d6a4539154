"""Encrypted messages: only who has a private key reads them; everything else works as without."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import (
    BatchingType,
    Client,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    CryptoError,
    CryptoKeyReader,
    InitialPosition,
    MessageId,
    MessageTooBig,
    Timeout,
)
from tests.conformance.conftest import Topic, receive_all
from tests.conformance.manual_time import ManualTime
from tests.support.key_files import KeyRing, key_files, key_pair, sealing

SECRET = b"the secret of the monkey island"


@pytest.fixture
def keys(tmp_path: Path) -> CryptoKeyReader:
    """An RSA pair in two files."""
    return key_files(tmp_path)


def stored_bytes(store_path: Path) -> bytes:
    """Everything that is on disk."""
    return b"".join(
        path.read_bytes() for path in store_path.rglob("*") if path.is_file() and not path.is_fifo()
    )


@pytest.mark.parametrize("kind", ["rsa", "ec", "secp521r1"])
def test_only_the_private_key_reads(topic: Topic, store_path: Path, tmp_path: Path, kind: str):
    """A message comes out as it went in, and its payload, key and properties are nowhere on disk."""
    keys = key_files(tmp_path, kind)
    consumer = topic.consumer(crypto_key_reader=keys)
    producer = topic.producer(**sealing(keys))
    sent = producer.send(SECRET, {"customer": SECRET.decode()}, partition_key=SECRET.decode() + "-key")
    message = consumer.receive(1000)
    assert (message.data(), message.message_id()) == (SECRET, sent)
    assert message.properties() == {"customer": SECRET.decode()}
    assert message.partition_key() == SECRET.decode() + "-key"
    consumer.acknowledge(message)
    assert SECRET not in stored_bytes(store_path)


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD])
@pytest.mark.parametrize("count", [1, 2, 100])
def test_batches_are_compressed_then_encrypted(
    topic: Topic, keys: CryptoKeyReader, compression: CompressionType, count: int
):
    """A batch is encrypted as one; its messages have their ids, keys and times."""
    consumer = topic.consumer(crypto_key_reader=keys)
    with topic.producer(**sealing(keys, batching_enabled=True, compression_type=compression)) as producer:
        for i in range(count):
            producer.send_async(
                b"x" * 1000 + b"%d" % i, None, partition_key=f"k{i % 3}", event_timestamp=i + 1
            )
    messages = receive_all(consumer)
    assert [message.data()[1000:] for message in messages] == [b"%d" % i for i in range(count)]
    assert [message.partition_key() for message in messages] == [f"k{i % 3}" for i in range(count)]
    assert [message.event_timestamp() for message in messages] == list(range(1, count + 1))
    assert [message.message_id().batch_index() for message in messages] == list(range(count))
    assert {message.message_id().entry_id() for message in messages} == {0}


def test_the_context_tells_how(topic: Topic, keys: CryptoKeyReader):
    """`encryption_context` names keys, parameter, compression and sizes; plain messages have none."""
    consumer = topic.consumer(crypto_key_reader=keys)
    options = sealing(keys, batching_enabled=True, compression_type=CompressionType.ZLib)
    with topic.producer(**options, encryption_keys=["audit"]) as producer:
        for _ in range(2):
            producer.send_async(b"x" * 500, None)
    topic.publish(1)
    first, _, plain = receive_all(consumer)
    context = first.encryption_context()
    assert [key.key for key in context.keys()] == ["app", "audit"]
    assert {len(key.value) for key in context.keys()} == {256}
    assert (len(context.param()), context.algorithm()) == (12, "")
    assert (context.compression_type(), context.batch_size()) == (CompressionType.ZLib, 2)
    assert 1000 < context.uncompressed_message_size() < 1100
    assert not context.is_decryption_failed()
    assert str(context) == repr(context)
    assert str(context).startswith("EncryptionContext(algorithm=, compression_type=ZLib, ")
    assert plain.encryption_context() is None


def test_any_of_several_keys_will_do(topic: Topic, tmp_path: Path):
    """With several key names each private key opens the message."""
    ring = KeyRing()
    producer = topic.producer(encryption_key="a", encryption_keys=["b", "a"], crypto_key_reader=ring)
    producer.send(SECRET)
    assert [name for _, name, _ in ring.asked] == ["a", "b"]

    class OnlyB(KeyRing):
        def get_private_key(self, key_name: str, metadata: dict[str, str]) -> Any:
            if key_name != "b":
                raise LookupError(key_name)
            return super().get_private_key(key_name, metadata)

    consumer = topic.consumer(crypto_key_reader=OnlyB())
    assert consumer.receive(1000).data() == SECRET


def test_nothing_is_encrypted_alike(topic: Topic, keys: CryptoKeyReader):
    """Equal messages have different ciphertexts, and no initialization vector comes twice."""
    producer = topic.producer(**sealing(keys))
    for _ in range(50):
        producer.send(SECRET)
    consumer = topic.consumer(crypto_failure_action=ConsumerCryptoFailureAction.CONSUME)
    messages = receive_all(consumer)
    assert len({message.data() for message in messages}) == 50
    assert len({message.encryption_context().param() for message in messages}) == 50


@pytest.mark.in_memory
@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared, ConsumerType.Failover])
def test_every_subscription_type(topic: Topic, keys: CryptoKeyReader, kind: ConsumerType):
    """Two consumers of one subscription get everything once; keys go to one of them, which nobody decrypted
    for that."""
    options: dict[str, Any] = {"consumer_type": kind, "crypto_key_reader": keys, "receiver_queue_size": 1}
    consumers = [topic.consumer(**options) for _ in range(2)]
    with topic.producer(
        **sealing(keys, batching_enabled=True, batching_type=BatchingType.KeyBased)
    ) as producer:
        for i in range(60):
            producer.send_async(b"%d" % i, None, partition_key=f"k{i % 7}")
    got: list[list[Any]] = [[], []]
    for _ in range(60):
        for number, consumer in enumerate(consumers):
            while (message := consumer.receive_nowait()) is not None:
                got[number].append(message)
                consumer.acknowledge(message)
    assert sorted(int(message.data()) for part in got for message in part) == list(range(60))
    if kind == ConsumerType.KeyShared:
        first, second = ({message.partition_key() for message in part} for part in got)
        assert not first & second


def test_delayed_messages_wait(time: ManualTime, tmp_path: Path):
    """A dispatcher without keys knows when an encrypted message is due."""
    keys = key_files(tmp_path)
    consumer = time.client.subscribe(
        "topic", "sub", ConsumerType.Shared, crypto_key_reader=keys, initial_position=InitialPosition.Earliest
    )
    producer = time.client.create_producer("topic", **sealing(keys))
    producer.send(SECRET, deliver_at=time.now_ms() + 5000)
    assert consumer.receive_nowait() is None
    time.pass_ms(5001)
    message = consumer.receive_nowait()
    assert message is not None
    assert message.data() == SECRET


def test_negative_acknowledgement(time: ManualTime, tmp_path: Path):
    """What is given back comes again, decrypted, and counted."""
    keys = key_files(tmp_path)
    consumer = time.client.subscribe("topic", "sub", ConsumerType.Shared, crypto_key_reader=keys)
    time.client.create_producer("topic", **sealing(keys)).send(SECRET)
    message = consumer.receive(1000)
    consumer.negative_acknowledge(message)
    time.pass_ms(61_000)
    again = consumer.receive(1000)
    assert (again.data(), again.redelivery_count()) == (SECRET, 1)


def test_dead_letters_stay_encrypted(time: ManualTime, tmp_path: Path):
    """The copy in the dead letter topic is encrypted with the same keys, and never was plain on disk."""
    keys = key_files(tmp_path)
    consumer = time.client.subscribe(
        "topic",
        "sub",
        ConsumerType.Shared,
        crypto_key_reader=keys,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
        negative_ack_redelivery_delay_ms=100,
    )
    dead = time.client.subscribe("topic-sub-DLQ", "dead", crypto_key_reader=keys)
    time.client.create_producer("topic", **sealing(keys)).send(SECRET)
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(1000))
        time.pass_ms(1000)
    letter = dead.receive(1000)
    assert letter.data() == SECRET
    assert [key.key for key in letter.encryption_context().keys()] == ["app"]
    assert SECRET not in stored_bytes(time.url)


def test_retries_stay_encrypted(client: Client, topic: Topic, keys: CryptoKeyReader, store_path: Path):
    """So is the copy in the retry topic; without the public key the message is given back."""
    consumer = topic.consumer(crypto_key_reader=keys, enable_retry=True)
    producer = topic.producer(**sealing(keys))
    producer.send(SECRET)
    consumer.reconsume_later(consumer.receive(1000), 0)
    again = consumer.receive(1000)
    assert (again.data(), again.properties()["RECONSUMETIMES"]) == (SECRET, "1")
    assert again.encryption_context() is not None
    consumer.acknowledge(again)
    consumer.close()
    half = CryptoKeyReader("", keys.private_key_path)
    consumer = topic.consumer(crypto_key_reader=half, enable_retry=True)
    producer.send(SECRET + b"!")
    with pytest.raises(CryptoError, match="no public key for 'app'"):
        consumer.reconsume_later(consumer.receive(1000), 0)
    assert consumer.receive(1000).data() == SECRET + b"!"
    assert SECRET not in stored_bytes(store_path)


def test_readers_decrypt(client: Client, topic: Topic, keys: CryptoKeyReader):
    """A reader with the key reads; one without passes over, or gets ciphertext."""
    topic.publish(2, **sealing(keys))
    topic.publish(1)
    with_key = client.create_reader("topic", MessageId.earliest, crypto_key_reader=keys)
    assert [message.data() for message in with_key] == [b"hello-0", b"hello-1", b"hello-0"]
    without = client.create_reader("topic", MessageId.earliest)
    assert [message.data() for message in without] == [b"hello-0"]
    assert not without.has_message_available()
    raw = client.create_reader(
        "topic", MessageId.earliest, crypto_failure_action=ConsumerCryptoFailureAction.CONSUME
    )
    assert [len(message.data()) for message in raw] == [32, 32, 7]


def test_size_is_that_of_the_ciphertext(client: Client, topic: Topic, keys: CryptoKeyReader):
    """What encryption adds counts for ``maxMessageSize``."""
    producer = topic.producer(**sealing(keys))
    limit = 5 * 1024 * 1024
    with pytest.raises(MessageTooBig):
        producer.send(b"x" * (limit - 100))
    producer.send(b"x" * (limit - 1000))


def test_a_forked_child_has_a_key_of_its_own(topic: Topic, keys: CryptoKeyReader):
    """After a fork the child encrypts with another data key: no vector can come twice with one."""
    producer = topic.producer(**sealing(keys))
    producer.send(b"parent")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            producer.send(b"child")
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    producer.send(b"parent again")
    messages = receive_all(topic.consumer(crypto_key_reader=keys))
    wrapped = {message.data(): message.encryption_context().keys()[0].value for message in messages}
    assert set(wrapped) == {b"parent", b"child", b"parent again"}
    assert wrapped[b"parent"] == wrapped[b"parent again"] != wrapped[b"child"]


def test_a_key_that_is_missing_is_told_at_once(topic: Topic, tmp_path: Path):
    """A producer whose public key is not to be had is not made, and the topic is left alone."""
    missing = CryptoKeyReader(str(tmp_path / "none"), "")
    with pytest.raises(CryptoError, match="public key 'app' could not be read"):
        topic.producer(producer_name="p", **sealing(missing))
    (tmp_path / "none").write_bytes(b"no key")
    with pytest.raises(CryptoError, match="in PEM form"):
        topic.producer(producer_name="p", **sealing(missing))
    broken = KeyRing()
    broken.is_broken = True
    with pytest.raises(CryptoError, match="key server is down"):
        topic.producer(producer_name="p", **sealing(broken))
    assert topic.producer(producer_name="p").send(b"x").entry_id() == 0


def test_half_of_the_options_is_refused(topic: Topic, keys: CryptoKeyReader):
    """A name without a reader, or the reverse, would mean plain text: `ValueError`."""
    with pytest.raises(ValueError, match="encryption_key needs crypto_key_reader"):
        topic.producer(encryption_key="app")
    with pytest.raises(ValueError, match="crypto_key_reader needs encryption_key"):
        topic.producer(crypto_key_reader=keys)
    with pytest.raises(ValueError, match="encryption_keys is expected to be a list of str"):
        topic.producer(encryption_keys="app", crypto_key_reader=keys)
    with pytest.raises(ValueError, match="public_key_path is expected to be of type 'str'"):
        CryptoKeyReader(5, "x")  # type: ignore[arg-type]


def test_without_the_extra_the_error_says_what_to_install(
    topic: Topic, keys: CryptoKeyReader, monkeypatch: pytest.MonkeyPatch
):
    """`ImportError` with the command, from producer and consumer alike."""
    import sys

    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    for make in (lambda: topic.producer(**sealing(keys)), lambda: topic.consumer(crypto_key_reader=keys)):
        with pytest.raises(ImportError, match=r'pip install "embeddedpulsar\[crypto\]"'):
            make()


def test_keys_on_curves_wrap_by_published_schemes(topic: Topic, tmp_path: Path):
    """ECDH with an ephemeral key, HKDF over SHA-256, and RFC 3394: by hand, with `cryptography` alone."""
    from cryptography.hazmat.primitives import hashes, keywrap, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    topic.producer(**sealing(key_files(tmp_path, "ec"))).send(SECRET)
    consumer = topic.consumer(crypto_failure_action=ConsumerCryptoFailureAction.CONSUME)
    wrapped = consumer.receive(1000).encryption_context().keys()[0].value
    private: Any = serialization.load_pem_private_key(key_pair("ec", 0)[1], None)
    form = serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    own = private.public_key().public_bytes(*form)
    ephemeral, sealed = wrapped[: len(own)], wrapped[len(own) :]
    shared = private.exchange(
        ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(private.curve, ephemeral)
    )
    info = b"embeddedpulsar data key" + ephemeral + own
    key = HKDF(hashes.SHA256(), 32, None, info).derive(shared)
    assert len(keywrap.aes_key_unwrap(key, sealed)) == 32


def test_rsa_keys_wrap_as_those_of_pulsar(topic: Topic, keys: CryptoKeyReader):
    """A wrapped data key opens with OAEP over SHA-1, and the payload with AES-256-GCM, 12 bytes of vector and
    the tag behind: by hand, with `cryptography` alone."""
    import struct

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    topic.producer(**sealing(keys)).send(SECRET)
    consumer = topic.consumer(crypto_failure_action=ConsumerCryptoFailureAction.CONSUME)
    message = consumer.receive(1000)
    context = message.encryption_context()
    private: Any = serialization.load_pem_private_key(key_pair("rsa", 0)[1], None)
    data_key = private.decrypt(
        context.keys()[0].value, padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)
    )
    assert len(data_key) == 32
    plain = AESGCM(data_key).decrypt(context.param(), message.data(), context.associated_data())
    zero, length = struct.unpack_from("<ii", plain)
    assert (zero, plain[8 : 8 + length]) == (0, SECRET)


def test_receive_times_out_for_who_has_no_key(topic: Topic, keys: CryptoKeyReader):
    """Without a key there is nothing to receive."""
    consumer = topic.consumer()
    topic.publish(3, **sealing(keys))
    with pytest.raises(Timeout):
        consumer.receive(1)

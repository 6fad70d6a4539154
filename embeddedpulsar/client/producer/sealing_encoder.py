"""Encoding of messages into encrypted entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.producer.chunker import Chunker, part_limit
from embeddedpulsar.client.producer.entry_encoder import EntryEncoder, too_big
from embeddedpulsar.exceptions import MessageTooBig, PulsarException
from embeddedpulsar.format.frame import CODEC_ENCRYPTED

if TYPE_CHECKING:
    from embeddedpulsar.client.common.message_options import Options
    from embeddedpulsar.client.producer.pending_entry import PendingEntry
    from embeddedpulsar.client.producer.producer_config import ProducerConfig
    from embeddedpulsar.client.producer.producer_session import ProducerSession
    from embeddedpulsar.crypto.entry_cipher import EntryCipher
    from embeddedpulsar.format.entry import ProducerPrefix


class SealingEncoder(EntryEncoder):
    """As `EntryEncoder`, with an additional step: the encoded and compressed entry is encrypted.

    An entry that cannot be encrypted gets an error, and is not stored, so plain text is never stored.
    """

    __slots__ = ("_cipher", "_limit")

    def __init__(
        self,
        prefix: ProducerPrefix,
        codec: int,
        key_based: bool,
        max_size: int,
        cipher: EntryCipher,
        chunker: Chunker | None = None,
    ) -> None:
        super().__init__(prefix, codec, key_based, max_size, chunker)
        self._cipher = cipher
        self._limit = max_size

    def encode(self, items: list[Any], mixed: bool, first: int) -> tuple[list[PendingEntry], int]:
        """See `EntryEncoder.encode`."""
        entries, following = super().encode(items, mixed, first)
        return [self.seal(out) for out in entries], following

    def encode_one(self, value: bytes, options: Options | None, sequence_id: int) -> PendingEntry:
        """See `EntryEncoder.encode_one`."""
        out = self.seal(super().encode_one(value, options, sequence_id))
        if self._chunker is not None and isinstance(out.error, MessageTooBig) and len(value) <= self._limit:
            return self._chunker.pending_entry(
                value, options, sequence_id
            )  # the ciphertext alone exceeds the limit
        return out

    def seal(self, out: PendingEntry) -> PendingEntry:
        """Encrypt an entry, unless it is encrypted or has an error."""
        encoded = out.encoded
        if encoded is None or out.error is not None or encoded.codec == CODEC_ENCRYPTED:
            return out
        out.encoded = None
        try:
            sealed = self._cipher.seal(encoded, out.highest)
        except PulsarException as error:
            out.error = error
            return out
        out.encoded = sealed
        if sealed.size > self._limit:
            out.error = too_big("batch" if out.batched else "message", sealed.size, self._limit)
        return out


def make_encoder(prefix: ProducerPrefix, config: ProducerConfig, session: ProducerSession) -> EntryEncoder:
    """Return the encoder of a producer: one that encrypts, if the options require it.

    Raises:
        CryptoError: a public key cannot be read.
    """
    encryption = config.encryption
    limit, most = session.max_message_size, part_limit(config)
    options = (prefix, config.compression, config.key_based, limit)
    if encryption is None:
        chunker = Chunker(prefix, config.compression, limit, None, most) if config.chunking else None
        return EntryEncoder(*options, chunker)
    from embeddedpulsar.crypto.entry_cipher import EntryCipher

    topic = session.topic_name

    def on_stale(error: Exception) -> None:
        # Called by the thread that holds the producer's lock.
        session.call_later(
            0.0,
            lambda: session.log.warning(
                "The data key of %s on %s could not be exchanged, and serves on: %s",
                prefix.name,
                topic,
                error,
            ),
        )

    cipher = EntryCipher(topic, encryption.names, encryption.reader, session.monotonic, on_stale)
    chunker = Chunker(prefix, config.compression, limit, cipher.seal, most) if config.chunking else None
    return SealingEncoder(*options, cipher, chunker)

"""Encryption of a sink: plain rows are in no file, and entries are encrypted before they are decided upon.

A task encrypts what it stages with a key of its own, which travels in its commit message alone. The commit
makes the entries of it as they will be stored, encrypted for the holders of private keys. So another process
can finish the commit, and needs no key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from embeddedpulsar._engine.format.staged_rows import record_head, staged_records
from embeddedpulsar._engine.platform import clock, failpoints
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar._engine.store.sink_place import SinkPlace, staged_name
from embeddedpulsar.client.producer.staged_entry import StagedEntry, entry_terms
from embeddedpulsar.crypto.entry_cipher import EntryCipher
from embeddedpulsar.crypto.key_reader import Encryption
from embeddedpulsar.crypto.rows_cipher import RowsCipher
from embeddedpulsar.exceptions import MessageTooBig
from embeddedpulsar.spark.options import key_reader
from embeddedpulsar.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.spark.sink_commit import StagedFile

failpoints.declare("sealing:staged")


def encryption_of(options: SinkOptions) -> Encryption | None:
    """The public keys of a write; None if it does not encrypt."""
    reader = key_reader(options.public_keys, "cryptoPublicKeyPath")
    return None if reader is None else Encryption(options.encryption_keys, reader)


def with_growth(options: SinkOptions) -> SinkOptions:
    """The options with the number of bytes by which encryption makes an entry larger.

    Raises:
        ImportError: the extra ``crypto`` is not installed.
        CryptoError: a public key is not to be had.
    """
    found = encryption_of(options)
    return options if found is None else replace(options, growth=_cipher("", found).growth)


def sealed_files(
    place: SinkPlace,
    batch: int,
    files: Sequence[StagedFile],
    producers: Mapping[str, Producer[bytes]],
    base: int,
    encryption: Encryption,
    codec: int,
) -> list[StagedFile]:
    """Files with the entries of a batch as they will be stored, in place of those that its tasks staged.

    Args:
        place: of the sink.
        batch: its number.
        files: what the tasks staged.
        producers: those that will publish, by the full names of their logs.
        base: the sequence id before the first of the batch, in every log.
        encryption: the public keys.
        codec: compresses entries; 0 for none.

    Raises:
        MessageTooBig: an entry is larger than its topic takes.
    """
    ciphers = {log: _cipher(log, encryption) for log in producers}
    following = dict.fromkeys(producers, base + 1)

    def records(file: StagedFile) -> Iterator[list[Any]]:
        rows = RowsCipher(file.key)
        staged = MappedFile.open(place.file(file.name), writable=False)
        staged.rest()
        for record in staged_records(staged.view, verifies=False):
            log, count = file.logs[record.log], record.count
            first = following[log]
            following[log] = first + count
            prefix, limit = entry_terms(producers[log])
            plain = StagedEntry(
                0,
                [rows.decrypt(record.columns)],
                count,
                record.flags,
                record.key_hash,
                first,
                record.schema_version,
            )
            sealed = ciphers[log].seal(plain.encode(first, prefix, codec), first + count - 1)
            if sealed.size > limit:
                raise MessageTooBig(
                    f"{log}: an entry of {count} messages has {sealed.size} bytes with its encryption, and "
                    f"the topic takes {limit}; send less at once, or raise maxMessageSize"
                )
            parts: list[Any] = sealed.parts
            yield [record_head(record.log, count, sealed.flags, sealed.key_hash, parts), *parts]

    found = []
    for number, file in enumerate(files):
        name = staged_name(batch, number, 0)
        found.append(file._replace(name=name, size=place.stage(name, records(file)), key=b""))
    failpoints.hit("sealing:staged")
    return found


def _cipher(topic: str, encryption: Encryption) -> EntryCipher:
    return EntryCipher(topic, encryption.names, encryption.reader, clock.CLOCK.monotonic, _nothing)


def _nothing(_: Exception) -> None:
    """A data key that could not be exchanged stays in use: a batch does not take long."""

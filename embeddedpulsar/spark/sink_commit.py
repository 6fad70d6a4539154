"""The commit of a sink: what tasks staged becomes messages, all of it, once (docs/spark.md, "Writing").

One document decides. Before `pending` is written nothing of a batch is in any topic; from then on all of it
will be, by this process or by the next that commits. Messages get sequence ids in the order of the staged
files, so what was stored before an interruption is found in the logs.

Encryption of a sink: plain rows are in no file, and entries are encrypted before they are decided upon.

A task encrypts what it stages with a key of its own, which travels in its commit message alone. The commit
makes the entries of it as they will be stored, encrypted for the holders of private keys. So another process
can finish the commit, and needs no key.

Entries whose columns were laid out elsewhere, published with sequence ids that the caller chose.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from embeddedpulsar.client.client import Client
from embeddedpulsar.client.producer.bulk_publisher import BulkPublisher
from embeddedpulsar.client.producer.producer import open_producer
from embeddedpulsar.client.producer.producer_session import ProducerConfig
from embeddedpulsar.crypto import CryptoKeyReader, Encryption, EntryCipher, RowsCipher
from embeddedpulsar.damage import TOPIC_FILES, Damage, DamageHook
from embeddedpulsar.exceptions import (
    BrokerMetadataError,
    CorruptionError,
    ForeignFileError,
    MessageTooBig,
    PulsarException,
    StorageError,
)
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema.schema import BYTES
from embeddedpulsar.spark.engine import (
    CLOCK,
    CODEC_ENCRYPTED,
    FLAG_ENCRYPTED,
    EncodedEntry,
    ProducerPrefix,
    encode_columns,
    failpoints,
    record_head,
    staged_records,
    topic_directory,
    topic_incarnation,
)
from embeddedpulsar.spark.options import SinkOptions, key_reader
from embeddedpulsar.spark.sink_place import DONE, PENDING, SinkPlace, sink_key, sinks_of, staged_name
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from typing import ClassVar

    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.client.producer.publisher import Publisher


__all__ = [
    "StagedEntry",
    "end_of_log",
    "entry_terms",
    "producer_of_sealed",
    "publish_entries",
    "stored_since",
]


class StagedEntry:
    """The messages of one entry, as columns that are stored as they are. A `Portion` of `BulkPublisher`.
    With the flag of an encrypted entry, what is stored is not columns but the whole entry.

    Attributes:
        count: messages.
        numbers: which of all published messages these are.
        partition: the number of the producer that publishes it.
    """

    is_copied: ClassVar[bool] = False

    __slots__ = ("_columns", "_first", "_flags", "_key_hash", "_schema", "count", "numbers", "partition")

    def __init__(
        self,
        partition: int,
        columns: list[Any],
        count: int,
        flags: int,
        key_hash: int,
        first: int | None = None,
        schema_version: int = -1,
    ) -> None:
        self.count = count
        self.partition = partition
        self.numbers: Sequence[int] = range(count)
        self._columns = columns
        self._flags = flags
        self._key_hash = key_hash
        self._first = first
        self._schema = schema_version

    @property
    def explicit_ids(self) -> tuple[int, int, int] | None:
        """First, last and highest sequence id; None for automatic ids."""
        if self._first is None:
            return None
        last = self._first + self.count - 1
        return self._first, last, last

    def encode(self, first: int, prefix: ProducerPrefix, codec: int) -> EncodedEntry:
        """The entry; ``first`` is its first automatic sequence id. Uncompressed bytes are not copied."""
        if self._flags & FLAG_ENCRYPTED:
            (part,) = self._columns
            return EncodedEntry(
                [part],
                len(part),
                crc32(part),
                self.count,
                prefix.metadata_length,
                CODEC_ENCRYPTED,
                self._flags,
                self._key_hash,
            )
        if self._first is not None:
            first = self._first
        return encode_columns(
            self._columns,
            self.count,
            self._flags,
            first,
            self._key_hash,
            prefix,
            codec,
            self._schema if self._schema >= 0 else prefix.schema_version,
        )

    def part(self, start: int, stop: int) -> StagedEntry:
        """Refuse to be divided.

        Raises:
            MessageTooBig: always.
        """
        raise MessageTooBig(
            f"an entry of {self.count} messages was staged when maxMessageSize was larger; raise it"
        )


def publish_entries(producers: Sequence[Producer[Any]], entries: Iterable[StagedEntry], codec: int) -> int:
    """Store entries by the producers that their ``partition`` names, and wait for their durability.

    Returns:
        How many messages were stored.

    Raises:
        Exception: any error of an append, or of ``entries``; what came before it is stored.
    """

    def publisher_of(number: int) -> Publisher:
        return producers[number]._publisher.of_partition(0)

    def numbered() -> Iterator[StagedEntry]:
        done = 0
        for entry in entries:
            entry.numbers = range(done, done + entry.count)
            done += entry.count
            yield entry

    return len(BulkPublisher(publisher_of, codec).publish(numbered()))


def producer_of_sealed(core: ClientContext, topic: str, name: str | None = None) -> Producer[bytes]:
    """A producer of entries that are encrypted already, also where encryption is required."""
    config = ProducerConfig(topic, BYTES, name, encryption=Encryption((), CryptoKeyReader("", "")))
    return core.in_time(open_producer, core, config)


def entry_terms(producer: Producer[Any]) -> tuple[ProducerPrefix, int]:
    """What entries of the producer have in common, and the most bytes that one may have."""
    publisher = producer._publisher.of_partition(0)
    return publisher.prefix, publisher.max_size


def end_of_log(producer: Producer[Any]) -> int:
    """The tail word of the producer's topic: where the log ends now."""
    return int(producer._publisher.of_partition(0).session.ledger.tail)


def stored_since(producer: Producer[Any], floor_word: int) -> int:
    """The highest sequence id stored under the producer's name behind a tail word; -1 for none."""
    session = producer._publisher.of_partition(0).session
    return session.highest_stored(producer.producer_name(), session.ledger.tail, floor_word)


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
    encryption = encryption_of(options)
    # An entry that just fits would not fit once it is encrypted, so tasks cut entries smaller by that much.
    return options if encryption is None else replace(options, growth=_cipher("", encryption).growth)


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
    # An entry is authenticated with the full name of its log and its sequence ids, so it can be encrypted
    # only when both are known: here, and not by the tasks.
    ciphers = {log: _cipher(log, encryption) for log in producers}
    # The ids that the publishing below will give, in the same order of files and records.
    following = dict.fromkeys(producers, base + 1)

    def records(file: StagedFile) -> Iterator[list[Any]]:
        rows = RowsCipher(file.key)
        staged = place.mapped(file.name)
        # The checksums are not verified: AES-GCM authenticates what it decrypts.
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
            # Sealed with the last sequence id of the entry, which deduplication reads without a key.
            sealed = ciphers[log].seal(plain.encode(first, prefix, codec), first + count - 1)
            # Tasks cut entries by the limit of then; a policy may have lowered it since.
            if sealed.size > limit:
                raise MessageTooBig(
                    f"{log}: an entry of {count} messages has {sealed.size} bytes with its encryption, and "
                    f"the topic takes {limit}; send less at once, or raise maxMessageSize"
                )
            parts: list[Any] = sealed.parts
            yield [record_head(record.log, count, sealed.flags, sealed.key_hash, parts), *parts]

    sealed = []
    # Numbered by file and not by task: two tasks may have the same number in different attempts.
    for number, file in enumerate(files):
        name = staged_name(batch, number, 0)
        # The key of a task's file is dropped here; it was never written to a file.
        sealed.append(file._replace(name=name, size=place.stage(name, records(file)), key=b""))
    # A kill here leaves these files and no `pending`: the batch is not decided, Spark commits it again, and
    # the next commit removes them.
    failpoints.hit("sealing:staged")
    return sealed


def _cipher(topic: str, encryption: Encryption) -> EntryCipher:
    return EntryCipher(topic, encryption.names, encryption.reader, CLOCK.monotonic, _nothing)


def _nothing(_: Exception) -> None:
    """A data key that could not be exchanged stays in use: a batch does not take long."""


failpoints.declare(
    *("sink:locked", "sink:pinned", "sink:pending", "sink:publishing", "sink:published", "sink:done"),
    *("sink:unpinned", "sink:finished", "sink:cleared"),
)
_REMEDY: Final = "to give up the rest of the batch, remove the file pending beside it"


class StagedFile(NamedTuple):
    """What one task staged, as its commit message says.

    Attributes:
        name: of the file in the sink's directory; empty if the task had no rows.
        size: its bytes.
        logs: full names of the logs that its records name by number.
        key: with which its records are encrypted; empty if they are not. It is never written to a file.
    """

    name: str
    size: int
    logs: tuple[str, ...]
    key: bytes = b""


class SinkIdentity(NamedTuple):
    """Whose batches are numbered.

    Attributes:
        producer: name of the producer.
        run: what the numbers count in.
        keeps: whether the last number is remembered: it may come again.
    """

    producer: str
    run: str
    keeps: bool


class SinkCommit:
    """Makes messages of one batch's staged files. Callers: one thread of the driver.

    Args:
        root: of the store.
        identity: of the sink.
        durability: level of the producers.
        codec: compresses entries; 0 for none.
        encryption: the public keys; None if entries are not encrypted.
    """

    def __init__(
        self,
        root: str,
        identity: SinkIdentity,
        durability: str,
        codec: int,
        encryption: Encryption | None = None,
    ) -> None:
        self._root: Final = root
        self._identity: Final = identity
        self._durability: Final = durability
        self._codec: Final = codec
        self._encryption: Final = encryption
        self._place: Final = SinkPlace(root, sink_key(identity.producer, identity.run))

    def commit(self, batch: int, files: Sequence[StagedFile]) -> int:
        """Publish a batch, unless that was done before.

        Returns:
            How many messages were stored; 0 for a batch that was stored before.

        Raises:
            ProducerBusy: another process publishes under the producer's name.
            Exception: any error of a producer. If the batch was begun, the next commit finishes it.
        """
        # A task without rows staged nothing.
        files = [file for file in files if file.name]
        # Others first, without waiting for those that are at work: a commit that a dead driver left is
        # finished by the next one of any sink.
        finish_commits(self._root, but=self._place.key)

        def work() -> int:
            failpoints.hit("sink:locked")
            # Documents that a killed process has half written; under the lock, none is being written.
            self._place.discard_unfinished()
            # The commit that this sink itself left behind; with it `done` is up to date.
            stored = _finish(self._root, self._place)
            done = self._place.read(DONE)
            last = -1 if done is None else int(done["batch"])
            # A number that is not above the last one was stored: Spark repeats the last batch after a
            # restart. The next batch continues the sequence ids of the last.
            if batch > last:
                stored = self._begin(batch, files, 0 if done is None else int(done["sequence"]))
            elif not stored:
                # If `_finish` has stored something, it was this very batch, begun by a driver that died.
                _log().warning("batch %d of %s was stored before", batch, self._identity.producer)
            # Files of attempts that lost, and of batches with lower numbers.
            self._place.discard(self._place.staged(batch))
            # A job without a number never commits again, so nothing of it is remembered.
            if not self._identity.keeps and not self._place.staged():
                self._place.remove()
            failpoints.hit("sink:cleared")
            return stored

        return self._place.locked(work)

    def abort(self, batch: int) -> None:
        """Remove what was staged for a batch that is given up, unless its commit was begun."""
        place = self._place

        def work() -> None:
            # With `pending` the batch is decided, whatever Spark thinks of it: the files are needed to finish
            # it.
            if place.read(PENDING) is None:
                place.discard(place.staged(batch))
                if not self._identity.keeps:
                    place.remove()

        # A commit of the sink that is at work has the lock, and clears away itself.
        place.try_locked(work)

    def _begin(self, batch: int, files: Sequence[StagedFile], base: int) -> int:
        # The order is what makes the commit safe: pins, entries, flush, `pending`, messages, `done`. A kill
        # before `pending` leaves nothing in any topic, and a kill after it a commit that the next one
        # finishes.
        place, is_durable = self._place, self._durability != "process"
        names = sorted({log for file in files for log in file.logs})
        # Files have their own numbers of logs; the plan has one list for all.
        numbers = {name: number for number, name in enumerate(names)}
        with Client(self._root, durability=self._durability) as client:
            seals = self._encryption is not None
            producers = [_producer(client, name, self._identity.producer, seals) for name in names]
            # 1. The ends of the logs, behind which the batch will be, pinned: no trimming takes what tells
            # how far it came. A crash leaves pins that expire.
            logs = []
            for name, producer in zip(names, producers, strict=True):
                directory = topic_directory(self._root, TopicName.parse(name))
                # Read before anything is published: what of this producer is behind it belongs to this batch.
                floor = end_of_log(producer)
                place.pin(directory, floor)
                logs.append([name, topic_incarnation(directory), floor])
                # Ids above all that were ever used under the name, in every log: then one base does for all,
                # and the ids of a repeated commit are the same.
                base = max(base, producer.last_sequence_id())
            failpoints.hit("sink:pinned")
            if self._encryption is not None:
                targets = dict(zip(names, producers, strict=True))
                files = sealed_files(place, batch, files, targets, base, self._encryption, self._codec)
            # `pending` must not outlive the rows that it names in a power loss, so these are on the disk
            # before it is written.
            if is_durable:
                place.flush(file.name for file in files)
            plan = {
                "producer": self._identity.producer,
                "run": self._identity.run,
                "batch": batch,
                "base": base,
                "durability": self._durability,
                "codec": self._codec,
                "keeps": self._identity.keeps,
                "sealed": seals,
                "logs": logs,
                "files": [[file.name, file.size, [numbers[log] for log in file.logs]] for file in files],
            }
            # 2. The decision. From here on the batch will be stored.
            place.write(PENDING, plan, durable=is_durable)
            failpoints.hit("sink:pending")
            # 3. The messages, in all topics.
            return _publish(self._root, place, plan, producers, [base] * len(names), verifies=False)


def finish_commits(root: str, *, but: str = "", report: DamageHook | None = None) -> int:
    """Finish the commits that were begun by processes that ended.

    Args:
        root: of the store.
        but: the key of a sink that is left out.
        report: called with a document of a sink that is damaged; None to log it.

    Returns:
        How many messages were stored.
    """
    stored = 0
    for place in sinks_of(root):
        if place.key == but or not os.path.exists(place.file(PENDING)):
            continue

        # Bound now, since the loop goes on.
        def work(place: SinkPlace = place) -> None:
            nonlocal stored
            stored += _finish(root, place)

        try:
            # A lock that is taken belongs to a process that is at work on it.
            place.try_locked(work)
        except (PulsarException, OSError) as error:
            # A sink that cannot be finished must not keep others from it, nor the commit at hand: it is
            # reported, and stays.
            if report is not None and isinstance(error, (CorruptionError, ForeignFileError)):
                report(_damage(place, error))
                continue
            _log().warning("%s: a commit that was begun is not finished: %s", place.path, error)
    return stored


def _damage(place: SinkPlace, error: StorageError) -> Damage:
    return Damage(
        error.path or place.path,
        offset=error.offset or 0,
        reason=error.reason,
        kind=TOPIC_FILES,
        done="a commit that was begun is not finished, and keeps its rows",
        remedy=error.remedy,
    )


def _finish(root: str, place: SinkPlace) -> int:
    """Do what is left of a commit that was begun. Under the lock of the sink.

    Returns:
        How many messages were stored.
    """
    plan = place.read(PENDING)
    if plan is None:
        return 0
    done = place.read(DONE)
    # Killed between `done` and the removal of `pending`: all messages are there, and only the clearing away
    # is left.
    if done is not None and done["batch"] >= plan["batch"]:
        _end(root, place, plan)
        return 0
    with Client(root, durability=plan["durability"]) as client:
        seals = plan.get("sealed", False)
        producers = [_producer(client, name, plan["producer"], seals) for name, _, _ in plan["logs"]]
        # How far the commit came in each log: the highest id under the producer's name behind the end that
        # was recorded.
        stored = [
            _stored(root, plan["base"], log, producer)
            for log, producer in zip(plan["logs"], producers, strict=True)
        ]
        # The staged rows were written by another process, perhaps before a crash of the machine, so their
        # checksums are verified.
        return _publish(root, place, plan, producers, stored, verifies=True)


def sealed_producer(client: Client, topic: str, name: str | None = None) -> Producer[bytes]:
    """A producer of the client for entries that are encrypted already."""
    producer = producer_of_sealed(client._core, topic, name)
    client._keep(producer)
    return producer


def _producer(client: Client, topic: str, name: str, seals: bool) -> Producer[bytes]:
    if seals:
        # Encrypted already: a topic that requires encryption must let the producer in without a key of its
        # own.
        return sealed_producer(client, topic, name)
    try:
        return client.create_producer(topic, name)
    except BrokerMetadataError as error:
        # Such a topic refuses a producer without encryption, in words of producers; the options of Spark are
        # meant.
        error.add_note("a write by Spark encrypts with the options encryptionKeys and cryptoPublicKeyPath")
        raise


def _stored(root: str, base: int, log: list[Any], producer: Producer[bytes]) -> int:
    """The last sequence id of the batch that is in a log already; the one before its first if none is."""
    name, incarnation, floor = log
    if topic_incarnation(topic_directory(root, TopicName.parse(name))) != incarnation:
        # Nothing of the batch is in the new life of the topic.
        return base  # deleted and made again
    # `stored_since` is -1 where the producer has stored nothing behind the end.
    return max(base, stored_since(producer, floor))


def _publish(
    root: str,
    place: SinkPlace,
    plan: dict[str, Any],
    producers: Sequence[Producer[bytes]],
    stored: list[int],
    *,
    verifies: bool,
) -> int:
    """Store what is not stored yet, and end the commit."""
    following = [plan["base"] + 1] * len(producers)
    count = publish_entries(producers, _entries(place, plan, following, stored, verifies), plan["codec"])
    failpoints.hit("sink:published")
    # `following` are ids behind the last of each log. `done` has the highest one, where the next batch
    # begins.
    sequence = max([plan["base"], *(each - 1 for each in following)])
    # After the messages and before `pending` goes. A kill before it repeats the publishing, which finds all
    # of them stored; a kill after it only the clearing away.
    place.write(
        DONE,
        {"producer": plan["producer"], "run": plan["run"], "batch": plan["batch"], "sequence": sequence},
        durable=plan["durability"] != "process",
    )
    failpoints.hit("sink:done")
    _end(root, place, plan)
    return count


def _end(root: str, place: SinkPlace, plan: dict[str, Any]) -> None:
    for name, _, _ in plan["logs"]:
        # Pins first: one whose `pending` is gone stays until the topic is trimmed the next time.
        place.unpin(topic_directory(root, TopicName.parse(name)))
    failpoints.hit("sink:unpinned")
    place.discard([PENDING])
    failpoints.hit("sink:finished")
    # From here on the sink has no commit. Staged files that a kill leaves are removed by the next one.
    place.discard(place.staged(plan["batch"]))
    if not plan["keeps"]:
        place.remove()


def _entries(
    place: SinkPlace, plan: dict[str, Any], following: list[int], stored: list[int], verifies: bool
) -> Iterator[StagedEntry]:
    """The entries that are not stored yet, with their sequence ids; ``following`` are the next ones."""
    for name, size, logs in plan["files"]:
        file = place.mapped(name)
        # The map refers to the staged file, and the entries to the map: rows are copied once, into the
        # segment.
        # A file that is shorter lost rows: nothing is published of it rather than a part.
        if file.size != size:
            raise CorruptionError(
                path=file.path, reason=f"it has {file.size} bytes where {size} were staged", remedy=_REMEDY
            )
        for record in staged_records(file.view, verifies=verifies):
            number = logs[record.log]
            first = following[number]
            # Ids count over all records, those that are stored already too: they decide which these are.
            following[number] = first + record.count
            if first > stored[number]:
                # Entries are stored whole, so the id of the first message decides for all of them.
                failpoints.hit("sink:publishing")
                yield StagedEntry(
                    number,
                    [record.columns],
                    record.count,
                    record.flags,
                    record.key_hash,
                    first,
                    record.schema_version,
                )


def _log() -> logging.Logger:
    return logging.getLogger("embeddedpulsar.spark")

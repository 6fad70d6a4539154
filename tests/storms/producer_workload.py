"""What the processes of a storm over the producers of one topic do: `producer_storm`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.enums import InitialPosition, ProducerAccessMode
from embeddedpulsar.exceptions import AlreadyClosed, ProducerBusy, ProducerFenced
from embeddedpulsar.message_id import BEFORE_FIRST, MessageId, make
from embeddedpulsar.results import Result
from embeddedpulsar.testing.trial_store import check_store
from tests.storms import storm_archive
from tests.storms.storm_pages import Page
from tests.storms.storm_payload import Mark, make_payload
from tests.storms.storm_workload import Role, Stored

TOPIC: Final = "storm"
SHARED_NAME: Final = "writer"
_SETTINGS: Final = """
brokerDeduplicationEnabled={deduplicates}
brokerDeduplicationEntriesInterval=50
brokerDeduplicationSnapshotIntervalSeconds=1
managedLedgerMaxEntriesPerLedger=300
"""
_ARCHIVE: Final = "archive"
_STAY_S: Final = {
    ProducerAccessMode.Shared: 0.3,
    ProducerAccessMode.Exclusive: 0.03,
    ProducerAccessMode.WaitForExclusive: 0.03,
    ProducerAccessMode.ExclusiveWithFencing: 0.06,
}
_PAUSE_S: Final = 0.004
_MOST_LEDGERS_LEFT: Final = 60
_MOST_IN_A_BATCH: Final = 20
_MOST_REPEATED: Final = 3


class StoredEntry(NamedTuple):
    """One entry as the log has it."""

    name: str
    epoch: int
    sequence_ids: list[int]
    payloads: list[bytes]


class ProducerWorkload:
    """Producers of one topic, each with a numbered source that it publishes from the last number on that the
    topic remembers. The topic is trimmed all the time; what was in it is in the archive.

    Args:
        root: of the store.
        mode: how they share the topic. With fencing all of them have one name and one source.
        deduplicates: whether the topic drops duplicates; without, a source begins behind what was answered.
    """

    def __init__(self, root: str, mode: ProducerAccessMode, *, deduplicates: bool) -> None:
        self._root = root
        self._mode = mode
        self._deduplicates = deduplicates

    def name(self, member: int) -> str:
        """The name a member produces under."""
        is_common = self._mode == ProducerAccessMode.ExclusiveWithFencing and self._deduplicates
        return SHARED_NAME if is_common else f"producer-{member}"

    def prepare(self) -> None:
        with open(f"{self._root}/broker.conf", "w", encoding="utf-8") as file:
            file.write(_SETTINGS.format(deduplicates=str(self._deduplicates).lower()))
            file.write(storm_archive.SETTINGS)
        client = Client(self._root)
        client.subscribe(TOPIC, _ARCHIVE, initial_position=InitialPosition.Earliest).close()
        client.close()

    def produce(self, role: Role) -> None:
        client = Client(self._root)
        rng = role.random()
        while not role.page.is_stopped:
            kind = rng.randrange(4)
            producer = self._attach(client, role, is_batching=kind == 3)
            if producer is not None:
                self._publish(role, producer, kind, rng)
        client.close()

    def _attach(self, client: Client, role: Role, *, is_batching: bool) -> Producer[bytes] | None:
        while not role.page.is_stopped:
            role.page.move(role.member)
            try:
                return client.create_producer(
                    TOPIC,
                    self.name(role.member),
                    access_mode=self._mode,
                    batching_enabled=is_batching,
                    batching_max_publish_delay_ms=1000,
                )
            except (ProducerBusy, ProducerFenced):
                sleep(_PAUSE_S)
        return None

    def _publish(self, role: Role, producer: Producer[bytes], kind: int, rng: random.Random) -> None:
        """Publish from where the topic stands, for a while or until thrown out."""
        page, member = role.page, role.member
        following = producer.last_sequence_id() + 1
        if not self._deduplicates:
            following = page.stored(member)
        elif following < page.stored(member):
            raise AssertionError(f"{page.stored(member)} were stored, only {following} are remembered")
        leave_at = perf_counter() + rng.expovariate(1 / _STAY_S[self._mode])
        try:
            if kind == 1:  # carelessly: some of what is stored once more
                self._repeat(role, producer, following, rng)
            while not page.is_stopped and perf_counter() < leave_at:
                following = self._send_some(role, producer, following, kind, rng)
                page.set_stored(member, max(page.stored(member), following))
                page.move(member)
            producer.close()
        except (ProducerFenced, AlreadyClosed):
            if self._mode == ProducerAccessMode.Shared:
                raise
            producer.close()
            sleep(rng.uniform(0, 2 * _STAY_S[self._mode]))

    def _repeat(self, role: Role, producer: Producer[bytes], following: int, rng: random.Random) -> None:
        if not self._deduplicates:
            return
        for number in range(max(1, following - rng.randint(0, _MOST_REPEATED)), following):
            answer = producer.send(_payload(role, number), sequence_id=number)
            if answer.entry_id() >= 0:
                raise AssertionError(f"{number} was stored again, at {answer}")

    def _send_some(
        self, role: Role, producer: Producer[bytes], following: int, kind: int, rng: random.Random
    ) -> int:
        if kind == 3:
            failures: list[Result] = []

            def answered(result: Result, _: MessageId) -> None:
                if result is not Result.Ok:
                    failures.append(result)

            count = rng.randint(1, _MOST_IN_A_BATCH)
            for number in range(following, following + count):
                producer.send_async(_payload(role, number), answered, sequence_id=number)
            producer.flush()
            if failures:
                raise ProducerFenced(str(failures[0]))
            return following + count
        options: dict[str, Any] = {"properties": {"kind": "slow"}} if kind == 2 else {}
        if kind:
            options["sequence_id"] = following
        producer.send(_payload(role, following), **options)
        return following + 1

    def consume(self, role: Role) -> None:
        raise NotImplementedError("there are only producers in this storm")

    # -- what was there ----------------------------------------------------------------------------

    def archive(self, page: Page) -> bool:
        """Write down every entry, then acknowledge it, so that the topic is trimmed all the time."""
        client = Client(self._root)
        consumer: Consumer[bytes] = client.subscribe(TOPIC, _ARCHIVE)
        ledger = client._core.store.use_topic(TOPIC).topic.ledger
        cursor = ledger.cursor(BEFORE_FIRST, inclusive=False)
        with open(f"{self._root}.archive", "w", encoding="ascii") as file:
            while True:
                is_draining = page.is_draining
                views = cursor.read(256, 1 << 20, 1 << 22)
                for view in views:
                    payloads = [payload.hex() for payload in view.values()]
                    line = [view.producer_name, view.producer_epoch, list(view.sequence_ids()), payloads]
                    file.write(json.dumps(line) + "\n")
                if views:
                    consumer.acknowledge_cumulative(make(views[-1].ledger_id, views[-1].entry_id, -1, -1, 0))
                elif is_draining:
                    break
                else:
                    sleep(_PAUSE_S)
        client.close()
        return True

    def read_log(self) -> Iterator[Stored]:
        raise NotImplementedError("see read_entries")

    def read_entries(self) -> Iterator[StoredEntry]:
        """Everything that ever was in the topic, entry by entry."""
        with open(f"{self._root}.archive", encoding="ascii") as file:
            for line in file:
                name, epoch, ids, payloads = json.loads(line)
                yield StoredEntry(name, epoch, ids, [bytes.fromhex(payload) for payload in payloads])

    def audit(self) -> list[str]:
        client = Client(self._root)
        topic = client._core.store.use_topic(TOPIC).topic
        names, left, most = topic.producers(), len(topic.ledger.segments()), _MOST_LEDGERS_LEFT
        client._core.store.peers.sweep()  # of those that were killed
        client.close()
        problems = [f"{name} is still connected" for name in names]
        if left > most:
            problems.append(f"nothing was trimmed: {left} ledgers are left")
        return problems + [str(problem) for problem in check_store(self._root).problems]


def _payload(role: Role, number: int) -> bytes:
    return make_payload(Mark(role.member, role.life, number), 100)

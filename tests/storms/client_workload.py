"""What the processes of a kill storm do, over the public client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from embeddedpulsar._engine.log.log_check import check_topic
from embeddedpulsar._engine.platform.timing import sleep
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.enums import ConsumerType, InitialPosition
from embeddedpulsar.exceptions import Timeout
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.results import Result
from tests.storms import storm_archive
from tests.storms.storm_archive import StormArchive
from tests.storms.storm_pages import (
    ACKNOWLEDGED,
    ACKNOWLEDGED_UP_TO,
    ATTACHED,
    RECEIVED,
    Page,
    Receipts,
)
from tests.storms.storm_payload import Mark, make_payload
from tests.storms.storm_workload import Role, Stored, sizes

TOPIC: Final = "storm"
_SETTINGS: Final = f"managedLedgerMaxEntriesPerLedger=300\n{storm_archive.SETTINGS}"
_POLL_MS: Final = 300
_SENDS_BETWEEN_FLUSHES: Final = 200
_CUMULATIVE_EVERY: Final = 20


class ClientWorkload:
    """Even producers send one by one, odd ones in batches; even consumers acknowledge each message, odd ones
    cumulatively. Every consumer has an Exclusive subscription of its own, under its own name in every life.

    The topic is trimmed all the time; the whole log is in the archive.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._archive = StormArchive(root, TOPIC)

    def prepare(self) -> None:
        with open(f"{self._root}/broker.conf", "w", encoding="utf-8") as file:
            file.write(_SETTINGS)
        client = Client(self._root)
        self._archive.prepare(client)
        client.close()

    # -- producers ----------------------------------------------------------------------------------------

    def produce(self, role: Role) -> None:
        client = Client(self._root)
        is_batching = bool(role.member % 2)
        producer: Producer[bytes] = client.create_producer(
            TOPIC,
            producer_name=f"producer-{role.member}",
            batching_enabled=is_batching,
            batching_max_publish_delay_ms=2,
            max_pending_messages=500,
            block_if_queue_full=True,
        )
        if is_batching:
            self._send_batches(role, producer)
        else:
            self._send_each(role, producer)
        producer.close()
        client.close()

    def _send_each(self, role: Role, producer: Producer[bytes]) -> None:
        page, member, rng = role.page, role.member, role.random()
        sequence = page.stored(member)
        while not page.is_stopped:
            if not role.may_go_on():
                sleep(0.0002)
                continue
            producer.send(make_payload(Mark(member, role.life, sequence), sizes(rng)))
            sequence += 1
            page.set_stored(member, sequence)
            page.move(member)

    def _send_batches(self, role: Role, producer: Producer[bytes]) -> None:
        page, member, rng = role.page, role.member, role.random()
        first = sequence = page.stored(member)
        answers = [first]
        failures: list[Result] = []

        def answered(result: Result, _: MessageId) -> None:
            if result is not Result.Ok:
                failures.append(result)
                return
            # Answers come in the order of the sends.
            answers[0] += 1
            page.set_stored(member, answers[0])
            page.move(member)

        while not page.is_stopped:
            if not role.may_go_on():
                producer.flush()
                sleep(0.0002)
                continue
            producer.send_async(make_payload(Mark(member, role.life, sequence), sizes(rng) // 10), answered)
            sequence += 1
            if not sequence % _SENDS_BETWEEN_FLUSHES:
                producer.flush()
            if failures:
                raise AssertionError(f"a send failed with {failures[0]}")
        producer.flush()

    # -- consumers ----------------------------------------------------------------------------------------

    def consume(self, role: Role) -> None:
        client = Client(self._root)
        receipts = Receipts(role.diary, role.life)
        consumer: Consumer[bytes] = client.subscribe(
            TOPIC,
            f"subscription-{role.member}",
            ConsumerType.Exclusive,
            initial_position=InitialPosition.Earliest,
            batch_index_ack_enabled=True,
            receiver_queue_size=200,
            ack_group_time_ms=0,
        )
        receipts.write(ATTACHED)
        rng = role.random()
        last: Message[bytes] | None = None
        while True:
            is_draining = role.page.is_draining
            try:
                message = consumer.receive(timeout_millis=_POLL_MS)
            except Timeout:
                if last is not None and role.member % 2:
                    self._acknowledge_up_to(consumer, receipts, last)
                    last = None
                if is_draining:
                    break
                continue
            receipts.write(RECEIVED, *_place(message.message_id()))
            role.page.move(role.member)
            if role.member % 2:
                last = message
                if rng.randrange(_CUMULATIVE_EVERY) == 0:
                    self._acknowledge_up_to(consumer, receipts, message)
            else:
                consumer.acknowledge(message)
                receipts.write(ACKNOWLEDGED, *_place(message.message_id()))
        consumer.close()
        client.close()

    @staticmethod
    def _acknowledge_up_to(consumer: Consumer[bytes], receipts: Receipts, message: Message[bytes]) -> None:
        consumer.acknowledge_cumulative(message)
        receipts.write(ACKNOWLEDGED_UP_TO, *_place(message.message_id()))

    # -- the end ------------------------------------------------------------------------------------------

    def archive(self, page: Page) -> bool:
        self._archive.write(page)
        return True

    def read_log(self) -> Iterator[Stored]:
        return self._archive.read()

    def audit(self) -> list[str]:
        topics = f"{self._root}/topics"
        return self._archive.judge()[1] + [
            str(problem)
            for name in sorted(os.listdir(topics))
            for problem in check_topic(f"{topics}/{name}").problems
        ]


def _place(message_id: MessageId) -> tuple[int, int, int]:
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()

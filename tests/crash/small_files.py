"""A store that has every kind of small file, and what is done with it when one of them is damaged.

The store is built once, closed, and copied for each case. A case damages one file of the copy.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from embeddedpulsar import Admin, Client, ConsumerType, Damage, InitialPosition, MessageId
from embeddedpulsar._engine.log import trimming
from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar._engine.store.care.store_check import StoreReport, check_store
from embeddedpulsar._engine.store.care.store_repair import RepairReport, repair_store
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar._engine.store.topic_compaction import LongRunningProcessStatus
from embeddedpulsar.exceptions import PulsarException, Timeout
from embeddedpulsar.policy_values import OffloadPolicies
from embeddedpulsar.schema import StringSchema
from embeddedpulsar.spark.sink_place import DONE, PENDING, SinkPlace
from tests.storms.store_corruption import believe
from tests.support.store_copies import copy_store

TOPIC: Final = "persistent://public/default/orders"
NAMESPACE: Final = "public/default"
SENT: Final = tuple(f"order {number}" for number in range(14))
SUBSCRIPTIONS: Final = ("billing", "reader", "earliest")
"""The last one is a reader of everything."""
ACKNOWLEDGED: Final = frozenset(SENT[number] for number in (0, 1, 3))
_SETTINGS: Final = (
    "managedLedgerMaxEntriesPerLedger=5\nmanagedLedgerMaxSizePerLedgerMbytes=1\n"
    "retentionCheckIntervalInSeconds=3600\nttlDurationDefaultInSeconds=1\n"
)
_COMMIT: Final = {
    "producer": "p",
    "run": "r",
    "batch": 1,
    "sequence": 1,
    "base": 1,
    "logs": [],
    "files": [],
    "durability": "process",
    "codec": 0,
    "keeps": True,
}
"""A commit that was finished, but for the removal of its documents."""
_WAIT_S: Final = 60
_PATIENCE_MS: Final = 20_000


def _noise(data: bytes) -> bytes:
    return random.Random(len(data)).randbytes(len(data))


DAMAGES: Final[dict[str, Callable[[bytes], bytes | None]]] = {
    "zeroed": lambda data: bytes(len(data)),
    "flipped": lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 0x55]) + data[len(data) // 2 + 1 :]
    ),
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "noise": _noise,
    "directory": lambda data: None,
}
"""What becomes of the bytes of a file; None for a directory in its place."""


def build(root: Path) -> None:
    """A topic with policies, schemas, a compacted and two offloaded ledgers, one of which is away."""
    root.mkdir()
    (root / "broker.conf").write_text(_SETTINGS)
    with Client(root) as client, Admin(root) as admin:
        topics = admin.topics()
        admin.namespaces().set_retention(NAMESPACE, -1, -1)
        client.subscribe(TOPIC, "billing", ConsumerType.Shared, schema=StringSchema()).close()
        topics.set_retention(TOPIC, -1, -1)
        topics.set_message_ttl(TOPIC, 0)
        producer = client.create_producer(TOPIC, producer_name="p", schema=StringSchema())
        _publish(producer, SENT[:7])
        consumer = client.subscribe(TOPIC, "billing", ConsumerType.Shared, schema=StringSchema())
        for _ in range(4):
            message = consumer.receive(1000)
            if message.value() in ACKNOWLEDGED:
                consumer.acknowledge(message)
        consumer.close()
        topics.compact(TOPIC)
        _wait(lambda: topics.compaction_status(TOPIC))
        client.subscribe(
            TOPIC, "reader", is_read_compacted=True, initial_position=InitialPosition.Earliest
        ).close()
        _offload(admin, root, lag_ms=0)
        _publish(producer, SENT[7:])
        _offload(admin, root, lag_ms=10**9)
        topics.create_partitioned_topic("parts", 2)
    _compact_journals(root)
    _stage_a_commit(root)


def _publish(producer: object, values: tuple[str, ...]) -> None:
    for value in values:
        producer.send(value, partition_key=value)  # type: ignore[attr-defined]


def _offload(admin: Admin, root: Path, *, lag_ms: int) -> None:
    topics = admin.topics()
    location = str(root.parent / "cold")
    topics.set_offload_policies(TOPIC, OffloadPolicies(location, offload_deletion_lag_in_millis=lag_ms))
    assert topics.offload(TOPIC)
    _wait(lambda: topics.offload_status(TOPIC))
    topics.trim_topic(TOPIC)


def _wait(status: Callable[[], LongRunningProcessStatus]) -> None:
    until = timing.perf_counter() + _WAIT_S
    while (found := status()).status == "RUNNING":
        assert timing.perf_counter() < until
        timing.sleep(0.01)
    assert found.status == "SUCCESS", found


def _compact_journals(root: Path) -> None:
    """Snapshots, with the generation before them, and commands after them."""
    store = Store.open(root)
    try:
        use = store.use_topic(TOPIC)
        shared = use.topic.subscription("billing")._existing()
        shared.transact(lambda _: shared._journal.compact(SYSTEM_CLOCK.wall_ms()))
        use.release()
    finally:
        store.release()


def _stage_a_commit(root: Path) -> None:
    place = SinkPlace(str(root), "0" * 32)
    place.make()
    for name in (PENDING, DONE):
        place.write(name, _COMMIT, durable=False)
    (topic,) = root.glob("topics/*-orders")
    trimming.pin_for_commit(str(topic), 1, place.key, place.file(PENDING), SYSTEM_CLOCK.wall_ms())


def small_files(root: Path) -> list[str]:
    """All files of a store but the segments, and what belongs to processes."""
    found = (str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    return sorted(name for name in found if not name.startswith("clients") and not name.endswith(".log"))


def copy(original: Path, root: Path) -> None:
    """Copy a store, whose control words are believed as if it were the original."""
    copy_store(original, root)
    for path in [*root.rglob("ctl"), root / "store.ctl"]:
        believe(str(path))


def damage(path: Path, kind: str) -> None:
    """Damage a file."""
    data = DAMAGES[kind](path.read_bytes())
    if data is None:
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(data)


class Use(NamedTuple):
    """What a program got from a store: by subscription; what was refused; and what each opening was told."""

    received: dict[str, set[str]]
    refusals: list[str]
    reports: list[list[Damage]]


def use(root: Path, *, with_admin: bool) -> Use:
    """Let the store remove what it may, and receive what every subscription gets, without acknowledging."""
    found = Use({}, [], [])

    def attempt(call: Callable[[], object]) -> None:
        try:
            call()
        except PulsarException as e:
            found.refusals.append(str(e))

    def of_admin() -> None:
        found.reports.append([])
        with Admin(root, on_damage=found.reports[-1].append) as admin:
            for call in _operations(admin):
                attempt(call)

    def of_client() -> None:
        found.reports.append([])
        with Client(root, on_damage=found.reports[-1].append) as client:
            for name in SUBSCRIPTIONS:
                attempt(lambda name=name: found.received.update({name: set(_receive(client, name))}))
            attempt(lambda: client.create_producer("parts").close())

    if with_admin:
        attempt(of_admin)
    attempt(of_client)
    return found


def _receive(client: Client, name: str) -> Iterator[str]:
    if name == "earliest":
        with client.create_reader(TOPIC, MessageId.earliest) as reader:
            yield from (message.data().decode() for message in reader)
        return
    kind = ConsumerType.Shared if name == "billing" else ConsumerType.Exclusive
    consumer = client.subscribe(
        TOPIC,
        name,
        kind,
        is_read_compacted=name == "reader",
        initial_position=InitialPosition.Earliest,
    )
    try:
        missing = unacknowledged(name)
        with contextlib.suppress(Timeout):
            while missing:  # a ledger that is away is fetched meanwhile
                missing.discard(value := consumer.receive(_PATIENCE_MS).data().decode())
                yield value
    finally:
        consumer.close()


def unacknowledged(name: str) -> set[str]:
    """What a subscription has to get."""
    return set(SENT) - (ACKNOWLEDGED if name == "billing" else set())


def _operations(admin: Admin) -> Iterator[Callable[[], object]]:
    topics = admin.topics()
    yield lambda: topics.get_stats(TOPIC)
    yield lambda: topics.get_internal_stats(TOPIC)
    yield lambda: topics.get_subscriptions(TOPIC)
    yield lambda: topics.get_list(NAMESPACE)
    yield lambda: admin.schemas().get_schema_info(TOPIC)
    yield lambda: admin.activity().look()
    yield lambda: admin.why_kept(TOPIC)
    yield lambda: topics.expire_messages_for_all_subscriptions(TOPIC, 10**6)
    yield lambda: topics.compact(TOPIC)
    yield lambda: topics.offload(TOPIC)
    yield lambda: topics.trim_topic(TOPIC)
    yield lambda: topics.compaction_status(TOPIC)
    yield lambda: topics.offload_status(TOPIC)


def check(root: Path) -> StoreReport:
    """Check a closed store."""
    return check_store(root, is_closed=False)


def repair(root: Path) -> RepairReport | str:
    """Repair a store; the text of the error if that is refused."""
    try:
        return repair_store(str(root))
    except PulsarException as e:
        return str(e)

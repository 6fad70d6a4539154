"""Stores with one subscription whose files are damaged at rest, and what may happen to them then.

A history is made once, closed, and copied for each case. A case damages one file of the subscription in the
copy, does what a service or an operator would do next, and subscribes again. Whatever the damage and the
order, every message that was not acknowledged is delivered, and the subscription was listed all the time.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from embeddedpulsar import Admin, Client, MessageId
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar._engine.store.care.store_backup import restore_store
from embeddedpulsar._engine.store.care.store_repair import repair_store
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar.exceptions import PulsarException, StorageError
from tests.storms.store_corruption import believe
from tests.support.store_copies import copy_store

TOPIC: Final = "persistent://public/default/orders"
SENT: Final = 40
_SETTINGS: Final = "managedLedgerMaxEntriesPerLedger=5\nretentionCheckIntervalInSeconds=3600\n"


class History(NamedTuple):
    """A closed store, and the messages that its subscription has not acknowledged."""

    root: Path
    unacknowledged: frozenset[bytes]


class Case(NamedTuple):
    """One damage to one file, and what is done next.

    Attributes:
        history: its name.
        file: the name of the file in the directory of the subscription.
        damage: one of `DAMAGES`.
        at: where in the file.
        is_believed: whether the control words are of this boot and place, as in the store itself.
        then: one of `ACTIONS`.
        has_words: whether there is a control file.
    """

    history: str
    file: str
    damage: str
    at: int
    is_believed: bool
    then: str
    has_words: bool = True


# -- histories -----------------------------------------------------------------------------------------------


def _publish(client: Client) -> None:
    producer = client.create_producer(TOPIC)
    for number in range(SENT):
        producer.send(b"order %d" % number)


def _plain(root: Path) -> set[bytes]:
    """Acknowledged from the beginning, and some further on."""
    with Client(root) as client:
        consumer = client.subscribe(TOPIC, "billing")
        _publish(client)
        messages = [consumer.receive(1000) for _ in range(14)]
        gone = [messages[number] for number in (0, 1, 2, 3, 4, 5, 6, 9, 12)]
        for message in gone:
            consumer.acknowledge(message)
    return {message.data() for message in gone}


def _rewound(root: Path) -> set[bytes]:
    """Acknowledged, and put back to what is stored then."""
    _plain(root)
    with Client(root) as client, Admin(root) as admin:
        consumer = client.subscribe(TOPIC, "billing")
        for _ in range(20):
            message = consumer.receive(1000)
            consumer.acknowledge(message)
        consumer.close()
        admin.topics().reset_cursor(TOPIC, "billing", MessageId.earliest)
        consumer = client.subscribe(TOPIC, "billing")
        gone = set()
        for _ in range(3):
            message = consumer.receive(1000)
            consumer.acknowledge(message)
            gone.add(message.data())
    return gone


def _compacted(root: Path) -> set[bytes]:
    """With a snapshot, the generation before it, and commands after it."""
    gone = _plain(root)
    store = Store.open(root)
    try:
        use = store.use_topic(TOPIC)
        shared = use.topic.subscription("billing")._existing()
        shared.transact(lambda _: shared._journal.compact(SYSTEM_CLOCK.wall_ms()))
        use.release()
    finally:
        store.release()
    with Client(root) as client:
        consumer = client.subscribe(TOPIC, "billing")
        for _ in range(2):
            message = consumer.receive(1000)
            consumer.acknowledge(message)
            gone.add(message.data())
    return gone


HISTORIES: Final[dict[str, Callable[[Path], set[bytes]]]] = {
    "plain": _plain,
    "rewound": _rewound,
    "compacted": _compacted,
}


def make(parent: Path) -> dict[str, History]:
    """All histories, below a directory."""
    found = {}
    for name, build in HISTORIES.items():
        root = parent / name
        root.mkdir()
        (root / "broker.conf").write_text(_SETTINGS)
        gone = build(root)
        found[name] = History(root, frozenset(_stored(root) - gone))
    return found


def _stored(root: Path) -> set[bytes]:
    """What was not trimmed meanwhile."""
    with Client(root) as client, client.create_reader(TOPIC, MessageId.earliest) as reader:
        return {message.data() for message in reader}


def copy(history: History, root: Path, *, is_believed: bool) -> None:
    """Copy a store; its control words are believed as if it were the original, or not."""
    copy_store(history.root, root)
    if is_believed:
        for path in [*root.rglob("ctl"), root / "store.ctl"]:
            believe(str(path))


# -- damages -------------------------------------------------------------------------------------------------


def _flip(data: bytearray, at: int) -> None:
    data[at] ^= 0xFF


def _zero(data: bytearray, at: int) -> None:
    data[at] = 0


def _bit(data: bytearray, at: int) -> None:
    data[at] ^= 1 << at % 8


def _sector(data: bytearray, at: int) -> None:
    start = at // 512 * 512
    for place in range(start, min(start + 512, len(data))):
        data[place] ^= 0xA5


def _noise(data: bytearray, at: int) -> None:
    data[:] = random.Random(at).randbytes(len(data))


def _zeroed(data: bytearray, at: int) -> None:
    data[at:] = bytes(len(data) - at)


def _cut(data: bytearray, at: int) -> None:
    del data[at:]


IN_PLACE: Final[dict[str, Callable[[bytearray, int], None]]] = {
    "flip": _flip,
    "zero": _zero,
    "bit": _bit,
    "sector": _sector,
    "noise": _noise,
    "zeroed": _zeroed,
}
DAMAGES: Final = (*IN_PLACE, "cut", "missing")


def damage(path: Path, case: Case) -> None:
    """Damage the file of a case, in place."""
    if case.damage == "missing":
        path.unlink()
        return
    data = bytearray(path.read_bytes())
    if case.damage == "cut":
        os.truncate(path, case.at)
        return
    IN_PLACE[case.damage](data, case.at)
    with open(path, "r+b") as file:
        file.write(data)


# -- what happens then ---------------------------------------------------------------------------------------


def _quietly(call: Callable[[], object]) -> None:
    """An error of the package is fine: it says what is in the way."""
    try:
        call()
    except PulsarException:
        pass


def _nothing(root: Path) -> Path:
    return root


def _publish_and_trim(root: Path) -> Path:
    with Client(root, on_damage=lambda _: None) as client:
        client.create_producer(TOPIC).send(b"one more")
        with Admin(root, on_damage=lambda _: None) as admin:
            _quietly(lambda: admin.topics().trim_topic(TOPIC))
    return root


def _look(root: Path) -> Path:
    with Admin(root, on_damage=lambda _: None) as admin:
        topics = admin.topics()
        assert topics.get_subscriptions(TOPIC) == ["billing"], "it is not listed"
        assert "billing" in topics.get_stats(TOPIC).subscriptions, "it has no statistics"
        assert "billing" in topics.get_internal_stats(TOPIC).cursors, "it has no cursor"
        _quietly(lambda: topics.trim_topic(TOPIC))
    return root


def _repair(root: Path) -> Path:
    with Admin(root, on_damage=lambda _: None) as admin:
        admin.check()
    repair_store(str(root))
    return _publish_and_trim(root)


def _restore(root: Path) -> Path:
    with Admin(root, on_damage=lambda _: None) as admin:
        admin.backup(root.with_name("backup"))
    restore_store(str(root.with_name("backup")), str(root.with_name("restored")))
    return _publish_and_trim(root.with_name("restored"))


ACTIONS: Final[dict[str, Callable[[Path], Path]]] = {
    "subscribe": _nothing,
    "publish and trim": _publish_and_trim,
    "look": _look,
    "repair": _repair,
    "restore": _restore,
}


def delivered(root: Path) -> set[bytes]:
    """What the application gets when it subscribes again, as it always does."""
    with Client(root, on_damage=lambda _: None) as client:
        consumer = client.subscribe(TOPIC, "billing")
        found = set()
        while (message := consumer.receive_nowait()) is not None:
            found.add(message.data())
            consumer.acknowledge(message)
    return found


def run(case: Case, histories: dict[str, History], workspace: Path) -> str:
    """Carry a case out in an empty directory; returns what is wrong, or nothing."""
    history = histories[case.history]
    root = workspace / "store"
    copy(history, root, is_believed=case.is_believed)
    (place,) = root.glob("topics/*/subscriptions/*")
    damage(place / case.file, case)
    if not case.has_words:
        (place / "ctl").unlink()
    try:
        root = ACTIONS[case.then](root)
        missing = history.unacknowledged - delivered(root)
    except (AssertionError, StorageError, Exception) as e:
        return f"{case}: {type(e).__name__}: {e}"
    finally:
        for name in ("store", "backup", "restored"):
            shutil.rmtree(workspace / name, ignore_errors=True)
    return f"{case}: {len(missing)} of {len(history.unacknowledged)} lost" if missing else ""


def files_of(history: History) -> dict[str, int]:
    """The files of the subscription, each with its length up to the last byte that is used."""
    (place,) = history.root.glob("topics/*/subscriptions/*")
    found = {}
    for path in sorted(place.iterdir()):
        if path.name != "lock" and path.is_file():
            found[path.name] = len(path.read_bytes().rstrip(b"\0")) + 8
    return found


def cases(histories: dict[str, History]) -> Iterator[Case]:
    """Every byte of every file, with every damage, believed or not, and every thing that may happen then."""
    for name, history in histories.items():
        for file, size in files_of(history).items():
            length = min(size, os.path.getsize(next(history.root.glob(f"topics/*/subscriptions/*/{file}"))))
            for then in ACTIONS:
                for is_believed in (True, False):
                    # In a copy, a journal that is missing is that of a subscription that ended.
                    if is_believed or not file.startswith("journal"):
                        yield Case(name, file, "missing", 0, is_believed, then)
                    if file != "ctl":
                        yield Case(name, file, "cut", 0, is_believed, then, has_words=False)
                        yield Case(name, file, "zeroed", 0, is_believed, then, has_words=False)
                    for at in range(length):
                        yield from (
                            Case(name, file, kind, at, is_believed, then)
                            for kind in DAMAGES
                            if kind != "missing" and (kind not in ("noise", "sector") or not at % 512)
                        )

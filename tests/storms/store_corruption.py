"""Corruption storms over whole stores: everything that is not a segment, through the public client.

A store with two topics and two subscriptions, part of whose messages are acknowledged, is built once. One of
them was put back, and has a snapshot, the journal before it, and commands behind it. Every case damages one
file of a copy, and a client opens it, subscribes, receives, acknowledges and sends. Whatever the damage: no
error but the library's own, no message that was not sent, and none lost that was not acknowledged.
Acknowledged ones may come again.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from embeddedpulsar._engine.format.control import (
    CONTROL_HEADER_SIZE,
    pack_control_header,
    parse_control_header,
)
from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.subscription.attachment.active_attachment import note_start
from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.client.client import Client
from embeddedpulsar.enums import InitialPosition
from embeddedpulsar.exceptions import PulsarException, StorageError, Timeout
from embeddedpulsar.message_id import BEFORE_FIRST
from embeddedpulsar.testing.trial_store import check_store
from tests.storms.damages import Damage, damage_file

_SETTINGS: Final = "managedLedgerMaxSizePerLedgerMbytes=1\nmanagedLedgerMaxEntriesPerLedger=50\n"
_SENT: Final = 120
_ACKNOWLEDGED: Final = 70
_TIMEOUT_MS: Final = 2_000

# Kind -> the file in the store. Damage to one of the first group may make store or topic refuse to open.
_MAY_REFUSE: Final = {
    "store.meta": "store.meta",
    "catalog": "catalog",
    "topic.meta": "topics/*-one/topic.meta",
    "policies": "topics/*-one/policies",
    "namespace policies": "tenants/ns-*-default",
}
_MUST_WORK: Final = {
    "store.ctl": "store.ctl",
    "topic ctl": "topics/*-one/ctl",
    "topic journal": "topics/*-one/journal.*",
    "subscription ctl": "topics/*-one/subscriptions/*-sub/ctl",
    "subscription journal": "topics/*-one/subscriptions/*-sub/journal.*",
    "rewound ctl": "topics/*-one/subscriptions/*-rewound/ctl",
    "rewound journal": "topics/*-one/subscriptions/*-rewound/journal.2",
    "rewound older journal": "topics/*-one/subscriptions/*-rewound/journal.1",
    "rewound snapshot": "topics/*-one/subscriptions/*-rewound/snapshot.2",
    "start of compacted": "topics/*-one/subscriptions/*-rewound/compacted-start",
}
_WIPED: Final = ("subscription journal", "rewound journal")
"""Of these, a part of the cases finds nothing but zeros, or nothing at all, with or without control words."""
FILES: Final = _MAY_REFUSE | _MUST_WORK
KINDS: Final = tuple(FILES)


class Case(NamedTuple):
    """One damaged copy of the store. `is_believed`: as if damaged in place, in this boot."""

    root: str
    kind: str
    is_believed: bool
    damage: Damage

    @property
    def subscription(self) -> str:
        """Which one is used."""
        return "rewound" if self.kind.startswith(("rewound", "start")) else "sub"

    @property
    def may_refuse(self) -> bool:
        """Whether opening may end in an error of the library."""
        return self.kind in _MAY_REFUSE or (self.is_believed and self.kind.endswith("ctl"))

    def __str__(self) -> str:
        return f"{self.kind}, {'believed' if self.is_believed else 'to be recovered'}, {self.damage}"


class Summary(NamedTuple):
    """What a storm found: cases, stores that refused to open, messages that came again."""

    cases: int
    refused: int
    redelivered: int
    violations: list[str]


def storm(
    cases: int, seed: int, workspace: str, *, progress: Callable[[int, int], None] | None = None
) -> Summary:
    """Run `cases` cases of every kind of file; `workspace` is an empty directory."""
    original = os.path.join(workspace, "store")
    sent = build(original)
    total = refused = redelivered = 0
    violations: list[str] = []
    for kind in KINDS:
        for number in range(cases):
            rng = random.Random(f"{seed}/{kind}/{number}")
            case = make_case(original, kind, os.path.join(workspace, f"case-{number}"), rng)
            found, received = judge(case, sent)
            violations += [f"seed {seed}, case {number}: {case}: {line}" for line in found]
            total += 1
            refused += received is None
            redelivered += len(set(received or ()) & set(sent[:_ACKNOWLEDGED]))
            shutil.rmtree(case.root)
            if progress is not None and not number % 50:
                progress(total, len(violations))
    return Summary(total, refused, redelivered, violations)


def build(root: str) -> list[bytes]:
    """Make a closed store; the payloads of its first topic, some of them acknowledged."""
    os.makedirs(root)
    Path(root, "broker.conf").write_text(_SETTINGS, encoding="utf-8")
    client = Client(root)
    consumer = client.subscribe("one", "sub")
    producer = client.create_producer("one", producer_name="p")
    other = client.create_producer("two")
    sent = [b"message %d" % number for number in range(_SENT)]
    for payload in sent:
        producer.send(payload)
        other.send(b"elsewhere")
    for number in range(_ACKNOWLEDGED):
        message = consumer.receive(_TIMEOUT_MS)
        if number == _ACKNOWLEDGED - 5:
            consumer.acknowledge_cumulative(message)
        elif number > _ACKNOWLEDGED - 5 or number % 2:
            consumer.acknowledge(message)
    _rewind(client)
    client.close()
    with Admin(root) as admin:
        admin.topics().set_retention("one", -1, -1)
        admin.namespaces().set_retention("public/default", -1, -1)
    return sent


def _rewind(client: Client) -> None:
    """Make the other subscription: it stands where the first one does, and was further on before."""
    consumer = client.subscribe("one", "rewound", initial_position=InitialPosition.Earliest)
    first = consumer.receive(_TIMEOUT_MS)
    for number in range(1, _ACKNOWLEDGED + 20):
        message = consumer.receive(_TIMEOUT_MS)
        if number == _ACKNOWLEDGED - 1:
            last = message
    consumer.acknowledge_cumulative(message)
    use = client._core.store.use_topic("persistent://public/default/one")
    try:
        shared = use.topic.subscription("rewound")._existing()
        shared.transact(lambda _: shared._journal.compact(timing.CLOCK.wall_ms()))
        note_start(shared.directory, BEFORE_FIRST)
    finally:
        use.release()
    consumer.seek(first.message_id())
    consumer.acknowledge_cumulative(last)


def make_case(original: str, kind: str, root: str, rng: random.Random) -> Case:
    """Copy the original and damage one file of the copy."""
    shutil.copytree(original, root)
    is_believed = rng.random() < 0.5
    if is_believed:
        for path in [*Path(root).rglob("ctl"), Path(root, "store.ctl")]:
            believe(str(path))
    (path,) = Path(root).glob(FILES[kind])
    if kind in _WIPED and rng.random() < 0.2:
        return Case(root, kind, is_believed, _wipe(path, rng))
    return Case(root, kind, is_believed, damage_file(str(path), rng))


def _wipe(path: Path, rng: random.Random) -> Damage:
    """Leave nothing of a file: zeros, or nothing at all; without the control words, too, or with them."""
    size = path.stat().st_size
    what = rng.choice(("zeros", "empty"))
    path.write_bytes(bytes(size) if what == "zeros" else b"")
    if rng.random() < 0.5:
        path.with_name("ctl").unlink()
        what += ", no control words"
    return Damage(what, ((0, size),))


def believe(path: str) -> None:
    """Make the words of a copied ctl believed: as if it were the file it was copied from."""
    with open(path, "r+b") as file:
        header = parse_control_header(file.read(CONTROL_HEADER_SIZE))
        status = os.fstat(file.fileno())
        file.seek(0)
        file.write(
            pack_control_header(
                header._replace(boot_id=timing.boot_id(), device=status.st_dev, inode=status.st_ino)
            )
        )


def judge(case: Case, sent: list[bytes]) -> tuple[list[str], list[bytes] | None]:
    """Use the damaged store; what is wrong, and what was received (None: it refused to open)."""
    found: list[str] = []
    received: list[bytes] | None = None
    try:
        check_store(case.root, is_closed=False)
        client = Client(case.root)
        try:
            received = []
            _use(client, case.subscription, set(sent[_ACKNOWLEDGED:]), received)
        finally:
            client.close()
        check_store(case.root, is_closed=False)
    except (StorageError, Timeout) as e:
        if not case.may_refuse:
            found.append(f"{type(e).__name__}: {e}")
            found += _missing(sent, received or [])
        return found + _invented(sent, received or []), None if not received else received
    except PulsarException as e:
        if not case.may_refuse:
            found.append(f"{type(e).__name__}: {e}")
    except Exception as e:
        found.append(f"{type(e).__name__} is not ours: {e}")
    else:
        if not case.may_refuse or case.kind in _MAY_REFUSE:
            found += _missing(sent, received or [])
    return found + _invented(sent, received or []), received


def _use(client: Client, subscription: str, expected: set[bytes], received: list[bytes]) -> None:
    """Receive until all that must come has come, acknowledge it, send one more and receive that."""
    consumer = client.subscribe("one", subscription)
    left = set(expected)
    last = b"one more"
    producer = client.create_producer("one", producer_name="p")
    producer.send(last)
    left.add(last)
    while left:
        message = consumer.receive(_TIMEOUT_MS)
        received.append(message.data())
        left.discard(message.data())
        consumer.acknowledge(message)
    client.create_producer("two").send(b"elsewhere")


def _missing(sent: list[bytes], received: list[bytes]) -> list[str]:
    missing = set(sent[_ACKNOWLEDGED:]) - set(received)
    return [f"{len(missing)} unacknowledged messages did not come, {min(missing)!r} ..."] if missing else []


def _invented(sent: list[bytes], received: list[bytes]) -> list[str]:
    known = {*sent, b"one more"}
    return [f"received {payload!r:.60}, which nobody sent" for payload in received if payload not in known]

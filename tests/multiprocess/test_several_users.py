"""Users of one store: whose its files are, what a group may do, and what a stranger is told."""

from __future__ import annotations

import codecs
import contextlib
import os
import shutil
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Client, ConsumerType, InitialPosition, Timeout
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.store.policies.admitting import DEDUPLICATION
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar.exceptions import AccessDeniedError, ConsumerBusy, ForeignFileError, ProducerBusy
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import ForkedChild, in_child

pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can run children as other users"
)

ALICE, BOB, STRANGER, STAFF = 4701, 4702, 4703, 4700


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can reach."""
    made = Path(tempfile.mkdtemp(prefix="several-users-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(autouse=True, scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Everything is imported: the other users may not be able to read the interpreter's own files."""
    root = tmp_path_factory.mktemp("loading") / "store"
    use(root, b"hello")
    with Client(root) as client:
        assert isinstance(refusal(root / "store.meta" / "x"), str)
        client.create_producer("t")
    codecs.lookup("ascii")


def become(uid: int, *groups: int, umask: int = 0o022) -> None:
    """Go on as another user, in this process."""
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.umask(umask)


def as_user(uid: int, action: Callable[[], object], *groups: int, umask: int = 0o022) -> str:
    """Run ``action`` in a child that is another user's."""

    def run() -> object:
        if uid:
            become(uid, *groups, umask=umask)
        else:
            os.umask(umask)
        try:
            return action()
        except BaseException:
            traceback.print_exc()
            raise

    return in_child(run)


def store_for(place: Path, uid: int, gid: int, mode: int) -> Path:
    """An empty directory for a store."""
    root = place / "store"
    root.mkdir()
    os.chown(root, uid, gid)
    root.chmod(mode)
    return root


def use(root: Path, text: bytes) -> str:
    """Write and read with everything that makes files, in small ledgers; returns what was received."""
    client = Client(root, durability="flush")
    store = Store.open(root)
    producer = client.create_producer("t")
    got = []
    for kind in (ConsumerType.Exclusive, ConsumerType.Shared):
        consumer = client.subscribe("t", kind.name, kind, initial_position=InitialPosition.Earliest)
        producer.send(text)
        while True:
            try:
                message = consumer.receive(50)
            except Timeout:
                break
            got.append(message.data().decode())
            consumer.acknowledge(message)
    store.use_topic("t").topic.ledger.roll()
    producer.send(b"after the roll")
    client.create_producer("t", "of-" + text.decode(), initial_sequence_id=7).send(b"x")
    store.set_policy("public/default", DEDUPLICATION, True)
    store.release()
    client.close()
    return ",".join(sorted(set(got)))


def wrong_rights(root: Path, uid: int, gid: int, directory: int, file: int) -> list[str]:
    """What does not have this owner (any if -1), group and mode."""
    bad = []
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        wanted = directory if stat.S_ISDIR(status.st_mode) else file
        if uid not in (-1, status.st_uid) or status.st_gid != gid or stat.S_IMODE(status.st_mode) != wanted:
            bad.append(f"{path} {status.st_uid}:{status.st_gid} {stat.S_IMODE(status.st_mode):o}")
    return bad


@pytest.mark.parametrize("order", [(0, ALICE), (ALICE, 0), (ALICE, 0, ALICE), (0, ALICE, 0)])
def test_a_run_as_root_leaves_the_store_to_its_owner(place: Path, order: tuple[int, ...]):
    """Whoever runs first, every file is the owner's, so each goes on where the other stopped."""
    root = store_for(place, ALICE, ALICE, 0o700)
    for turn, uid in enumerate(order):
        name = b"u%d" % turn
        assert name.decode() in as_user(uid, lambda name=name: use(root, name))
        assert wrong_rights(root, ALICE, ALICE, 0o700, 0o600) == []
    assert_clean(root)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o777])
def test_a_group_shares_a_store(place: Path, umask: int):
    """Producers and consumers of two users of one group, whatever their umask, and root between them."""
    root = store_for(place, ALICE, STAFF, 0o2770)
    for turn, uid in enumerate((ALICE, BOB, 0, BOB, ALICE)):
        name = b"u%d" % turn
        assert name.decode() in as_user(uid, lambda name=name: use(root, name), STAFF, umask=umask)
        assert wrong_rights(root, -1, STAFF, 0o2770, 0o660) == []
    assert_clean(root)


@pytest.mark.parametrize("mode", [0o770, 0o2770])
def test_users_of_a_group_wake_each_other_and_see_each_other_die(place: Path, mode: int):
    """At the same time: doorbells and locks of one user can be used by the other."""
    root = store_for(place, ALICE, STAFF, mode)
    kept: list[object] = []  # what is dropped is closed

    def consume() -> str:
        become(ALICE, STAFF)
        client = Client(root)
        consumer = client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
        producer = client.create_producer("t", "the name")
        producer.send(b"ready")
        kept.extend((client, producer))
        return consumer.receive(5000).data().decode()

    child = ForkedChild(consume)
    try:
        assert child.ready() == "ready"

        def follow() -> str:
            become(BOB, STAFF)
            client = Client(root)
            with pytest.raises(ConsumerBusy):
                client.subscribe("t", "s")
            with pytest.raises(ProducerBusy):
                client.create_producer("t", "the name")
            client.create_producer("t").send(b"from bob")
            os.write(signal_end, b"x")
            consumer = None
            while consumer is None:
                with contextlib.suppress(ConsumerBusy):
                    consumer = client.subscribe("t", "s")
            got = [consumer.receive(5000).data() for _ in range(2)]
            client.close()
            return got[-1].decode()

        wait_end, signal_end = os.pipe()
        second = ForkedChild(follow)
        os.close(signal_end)
        assert os.read(wait_end, 1) == b"x"
        child.end()
        assert second.ready() == "from bob"
        second.end()
        os.close(wait_end)
    finally:
        child.end()
    with Client(root):  # clears away what the killed left
        pass
    assert wrong_rights(root, -1, STAFF, mode, 0o660) == []


def test_every_maker_of_a_lock_gives_it_its_rights_before_its_name(place: Path):
    """Two users make the same locks at once: neither meets one that it may not open."""
    root = store_for(place, ALICE, STAFF, 0o2770)

    def make(uid: int) -> Callable[[], str]:
        def run() -> str:
            become(uid, STAFF, umask=0o077)
            for number in range(200):
                FileLock(root / f"{number}.lock").close()
            return "made"

        return run

    children = [ForkedChild(make(uid)) for uid in (ALICE, BOB, ALICE, BOB)]
    try:
        assert [child.ready() for child in children] == ["made"] * 4
    finally:
        for child in children:
            child.end()
    assert sorted(path.name for path in root.iterdir()) == sorted(f"{n}.lock" for n in range(200))
    assert wrong_rights(root, -1, STAFF, 0o2770, 0o660) == []


def refusal(root: Path) -> str:
    """The text of the error of opening a store and using it."""
    try:
        client = Client(root)
        client.create_producer("t").send(b"x")
    except (AccessDeniedError, ForeignFileError, OSError) as error:
        return str(error)
    return "not refused"


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755, 0o2770])
def test_a_stranger_is_told_whose_the_store_is(place: Path, mode: int):
    """The error names the directory, its owner, this user, and what to do; nothing is left."""
    root = store_for(place, ALICE, STAFF, mode)
    as_user(ALICE, lambda: use(root, b"hello"), STAFF)
    before = sorted(root.rglob("*"))
    text = as_user(STRANGER, lambda: refusal(root))
    assert str(root) in text
    assert f"user id {ALICE}" in text
    assert str(STRANGER) in text
    assert "chgrp" in text
    assert sorted(root.rglob("*")) == before


def test_a_store_of_root_is_refused_with_the_reason(place: Path):
    """A store that root made for itself is not another user's, who learns why."""
    root = place / "store"
    use(root, b"hello")
    text = as_user(ALICE, lambda: refusal(root))
    assert f"{root} belongs to user id 0" in text
    assert "mode 0700" in text
    assert f"runs as user id {ALICE}" in text


def test_one_file_that_is_not_the_users_is_named(place: Path):
    """A file that something else gave away is named with its owner, whatever call meets it."""
    root = store_for(place, ALICE, ALICE, 0o700)
    as_user(ALICE, lambda: use(root, b"hello"))
    for name in ("lock", "ctl", "journal.1"):
        (path,) = root.glob(f"topics/*-t/{name}")
        os.chown(path, 0, 0)
        text = as_user(ALICE, lambda: refusal(root))
        assert text.count(str(path)) == 2  # what could not be done, and whose it is
        assert f"{path} belongs to user id 0" in text
        os.chown(path, ALICE, ALICE)
    assert "again" in as_user(ALICE, lambda: use(root, b"again"))

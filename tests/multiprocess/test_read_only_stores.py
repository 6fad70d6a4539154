"""Looking at a store without the right to write: what is shown, that nothing changes, what is refused."""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition, MessageId, schema
from embeddedpulsar._engine.format.frame import SLOT_SIZE, SLOTS_OFFSET
from embeddedpulsar.arrow import read_topic
from embeddedpulsar.cli.program import run
from embeddedpulsar.exceptions import (
    AccessDeniedError,
    PulsarException,
    ReadOnlyStoreError,
    StorageError,
    Timeout,
    TopicNotFound,
)
from embeddedpulsar.functions import FunctionConfig
from embeddedpulsar.policy_values import ResourceGroup
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import ForkedChild, in_child

ALICE, STRANGER = 4801, 4802
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can run children as other users")
_SENT, _ACKED = 20, 5

LOOKS: dict[str, tuple[Sequence[str], str]] = {
    "list": (("topics", "list"), "orders"),
    "stats": (("topics", "stats", "orders", "--json"), "msgInCounter"),
    "stats-internal": (("topics", "stats-internal", "orders"), "ledgers"),
    "partitioned-stats": (("topics", "partitioned-stats", "flights"), "partitions"),
    "why-kept": (("topics", "why-kept", "orders"), "work"),
    "peek": (("topics", "peek-messages", "orders", "-s", "work", "-n", "2"), "order 5"),
    "examine": (("topics", "examine-messages", "orders"), "order 19"),
    "last-message-id": (("topics", "last-message-id", "orders"), ":"),
    "subscriptions": (("subscriptions", "list", "orders"), "work"),
    "namespaces": (("namespaces", "list"), "public/default"),
    "tail": (("tail", "orders", "-n", "3"), "order 18"),
    "top": (("top", "--once", "--json", "--interval", "0.1"), "orders"),
    "who": (("who",), ""),
    "check": (("check",), "Everything is whole"),
    "functions": (("functions", "list"), ""),
    "dlq": (("dlq", "list", "orders", "work"), ""),
}


def digest(root: Path) -> dict[str, object]:
    """Everything that there is of a store: names, rights, times and bytes."""
    found: dict[str, object] = {}
    for path in sorted((root, *root.rglob("*"))):
        status = path.lstat()
        fields = (status.st_mode, status.st_uid, status.st_ino, status.st_nlink, status.st_mtime_ns)
        content = hashlib.sha1(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(root))] = (*fields, status.st_ctime_ns, status.st_size, content)
    return found


def call(root: Path, *arguments: str) -> tuple[int, str, str]:
    """A command on a store: its status, output and error output."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = run(["--store", str(root), *arguments])
    return status, out.getvalue(), err.getvalue()


def fill(root: Path, client: Client) -> None:
    """Twenty orders, of which five are acknowledged; and a partitioned topic."""
    consumer = client.subscribe("orders", "work", initial_position=InitialPosition.Earliest)
    producer = client.create_producer("orders", "shop")
    for number in range(_SENT):
        producer.send(b"order %d" % number, partition_key=f"k{number}")
    for _ in range(_ACKED):
        consumer.acknowledge(consumer.receive(5000))
    with Admin(root) as admin:
        admin.topics().create_partitioned_topic("flights", 2)
    flights = client.create_producer("flights")
    for number in range(4):
        flights.send(b"flight %d" % number)
    consumer.close()


@pytest.fixture(scope="module", autouse=True)
def loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Everything is imported: other users may not be able to read the interpreter's own files."""
    root = tmp_path_factory.mktemp("loading") / "store"
    with Client(root) as client:
        fill(root, client)
    for arguments, _ in LOOKS.values():
        call(root, "--read-only", *arguments)
    shown(root, read_only=True)
    refusals(root, read_only=True)
    read_topic(root, "orders")
    copied = root.with_name("copy")
    shutil.copytree(root, copied)
    shown(copied, read_only=True)
    (copied / "store.meta").unlink()
    with pytest.raises(StorageError):
        Admin(copied, read_only=True)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can reach."""
    made = Path(tempfile.mkdtemp(prefix="read-only-"))
    made.chmod(0o755)
    yield made
    for path in (made, *made.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(made)


# -- in which way the right is missing ---------------------------------------------------------------------


def as_user(uid: int) -> None:
    """Go on as another user, in this process."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def mount_read_only(root: Path) -> Path:
    """A read-only mount of a directory, which this process alone sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    target = root.with_name("mounted")
    target.mkdir(exist_ok=True)
    steps = [
        lambda: libc.unshare(0x20000),  # CLONE_NEWNS
        lambda: libc.mount(b"none", b"/", None, 0x44000, None),  # MS_REC | MS_PRIVATE
        lambda: libc.mount(os.fsencode(root), os.fsencode(target), None, 0x1000, None),  # MS_BIND
        lambda: libc.mount(b"none", os.fsencode(target), None, 0x1021, None),  # and remounted read-only
    ]
    for step in steps:
        if step():
            raise OSError(ctypes.get_errno(), "cannot mount")
    return target


def on_mount(root: Path) -> Path:
    return mount_read_only(root)


def as_stranger(root: Path) -> Path:
    as_user(STRANGER)
    return root


def by_modes(root: Path) -> Path:
    """In a store without any right to write. Root ignores such rights, so it goes on as the owner."""
    if IS_ROOT:
        as_user(ALICE)
    return root


def as_asked(root: Path) -> Path:
    return root


def can_mount() -> bool:
    """Whether this process may mount."""
    if not IS_ROOT:
        return False
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "store").mkdir()
        try:
            in_child(lambda: mount_read_only(Path(directory) / "store"))
        except AssertionError:
            return False
    return True


WAYS: dict[str, Callable[[Path], Path]] = {
    "mount": on_mount,
    "user": as_stranger,
    "modes": by_modes,
    "asked": as_asked,
}


def skip_unless_possible(way: str) -> None:
    if way == "mount" and not can_mount():
        pytest.skip("this process may not mount")
    if way == "user" and not IS_ROOT:
        pytest.skip("only root can run children as other users")


def looking(way: str, root: Path, action: Callable[[Path], object]) -> str:
    """What ``action`` returns, as text, in a child without the right to write."""
    return in_child(lambda: action(WAYS[way](root)))


# -- in which state the store is ---------------------------------------------------------------------------


def make_store(place: Path, state: str, way: str) -> tuple[Path, Callable[[], object]]:
    """A store in a state, and what ends the process that uses it."""
    root = place / "store"
    root.mkdir(mode=0o755)
    root.chmod(0o755)
    (root / "broker.conf").write_text("managedLedgerMaxSizePerLedgerMbytes=1\n")  # quick to copy

    def used() -> str:
        client = Client(root)
        fill(root, client)
        client._left_open = client.create_producer("orders", "living")  # type: ignore[attr-defined]
        client._held = client.subscribe("orders", "held", ConsumerType.Shared)  # type: ignore[attr-defined]
        globals()["_kept"] = client
        return "used"

    end: Callable[[], object] = int
    if state in ("live", "killed"):
        child = ForkedChild(used)
        assert child.ready() == "used"
        end = child.end
        if state == "killed":
            child.end()
    else:
        with Client(root) as client:
            fill(root, client)
    if state == "copied":
        shutil.copytree(root, place / "copy")
        shutil.rmtree(root)
        (place / "copy").rename(root)
    if way == "modes":
        for path in (root, *root.rglob("*")):
            if IS_ROOT:
                os.chown(path, ALICE, ALICE)
            path.chmod(0o555 if path.is_dir() else 0o444)
    return root, end


STATES = ("closed", "live", "killed", "copied")
PAIRS = [(way, state) for way in WAYS for state in STATES if (way, state) != ("modes", "live")]


@pytest.mark.parametrize(("way", "state"), PAIRS)
def test_the_store_is_shown_and_nothing_changes(place: Path, way: str, state: str):
    """Every command, `Admin`, readers and tables give what the store holds, whoever writes to it. What would
    change it is refused. Not a byte, a name or a time of it changes."""
    skip_unless_possible(way)
    root, end = make_store(place, state, way)
    read_only = True if way == "asked" else None
    options = ["--read-only"] if read_only else []
    try:
        before = digest(root)

        def look(at: Path) -> str:
            results = {name: call(at, *options, *arguments) for name, (arguments, _) in LOOKS.items()}
            return json.dumps([results, shown(at, read_only=read_only), refusals(at, read_only=read_only)])

        results, found, refused = json.loads(looking(way, root, look))
        assert digest(root) == before
    finally:
        end()
    check_output(results, way, state)
    assert found["read"] == [f"order {number}" for number in range(_SENT)]
    assert found["rows"] == _SENT
    assert found["peeked"] == [f"order {number}" for number in range(_ACKED, _SENT)]
    assert found["flights"] == 4
    assert len(found["unrecovered"]) == (3 if state == "copied" else 0)
    for name, (kind, text) in refused.items():
        assert kind == "ReadOnlyStoreError", (name, kind, text)
        assert root.name in text or "mounted" in text, (name, text)
        assert "; " in text, (name, text)  # a remedy
    if way != "modes":
        with Client(root) as client:
            assert client.create_reader("orders", MessageId.earliest).read_next().data() == b"order 0"
        assert_clean(root)


def check_output(results: dict[str, tuple[int, str, str]], way: str, state: str) -> None:
    """The commands succeeded, and say what they should."""
    for name, (_, expected) in LOOKS.items():
        status, out, err = results[name]
        assert status == 0, (name, out, err)
        assert expected in out, (name, out, err)
        assert "Traceback" not in err, (name, err)
        if name != "check" and way != "asked":
            assert err.startswith("read-only: "), (name, err)
    _, out, err = results["stats"]
    is_noted = "orders" in err and "figures may be behind" in err
    assert is_noted == (state == "copied"), err
    stats = json.loads(out)
    assert stats["msgInCounter"] == _SENT
    assert stats["subscriptions"]["work"]["msgBacklog"] == _SENT - _ACKED
    living = [one["producerName"] for one in stats["publishers"]]
    assert living == (["living"] if state == "live" else [])
    top = json.loads(results["top"][1])
    assert top["processes"] == (1 if state == "live" else 0)


def shown(root: Path, *, read_only: bool | None) -> dict[str, object]:
    """What a process without the right to write sees."""
    found: dict[str, object] = {}
    with Admin(root, read_only=read_only) as admin, Client(root, read_only=read_only) as client:
        assert admin.is_read_only
        reader = client.create_reader("orders", MessageId.earliest)
        found["read"] = [message.data().decode() for message in iter_available(reader)]
        peeked = admin.topics().peek_messages("orders", "work", 100)
        found["peeked"] = [message.data().decode() for message in peeked]
        found["flights"] = len(list(iter_available(client.create_reader("flights", MessageId.earliest))))
        found["rows"] = read_topic(root, "orders").num_rows
        assert len(admin.activity().look().topics) == 3
        assert not admin.check().damage
        found["unrecovered"] = admin.unrecovered()
        with pytest.raises(TopicNotFound):
            client.create_reader("no-such-topic", MessageId.earliest)
    return found


def iter_available(reader) -> Iterator:
    while reader.has_message_available():
        yield reader.read_next()


def refusals(root: Path, *, read_only: bool | None) -> dict[str, tuple[str, str]]:
    """The kind and the text of the error of each call that would change the store."""
    found = {}
    with Admin(root, read_only=read_only) as admin, Client(root, read_only=read_only) as client:
        topics, namespaces = admin.topics(), admin.namespaces()
        message_id = topics.get_last_message_id("orders")
        calls: dict[str, Callable[[], object]] = {
            "produce": lambda: client.create_producer("orders"),
            "produce to a new topic": lambda: client.create_producer("new"),
            "produce to partitions": lambda: client.create_producer("flights"),
            "consume": lambda: client.subscribe("orders", "work"),
            "consume with a new subscription": lambda: client.subscribe("orders", "other"),
            "consume shared": lambda: client.subscribe("flights", "other", ConsumerType.Shared),
            "create": lambda: topics.create_non_partitioned_topic("new"),
            "create partitions": lambda: topics.create_partitioned_topic("new", 3),
            "grow": lambda: topics.update_partitioned_topic("flights", 5),
            "delete": lambda: topics.delete("orders", force=True),
            "delete partitions": lambda: topics.delete_partitioned_topic("flights"),
            "subscribe": lambda: topics.create_subscription("orders", "other", MessageId.latest),
            "unsubscribe": lambda: topics.delete_subscription("orders", "work"),
            "skip": lambda: topics.skip_messages("orders", "work", 1),
            "skip all": lambda: topics.skip_all_messages("orders", "work"),
            "reset": lambda: topics.reset_cursor("orders", "work", MessageId.earliest),
            "expire": lambda: topics.expire_messages("orders", "work", 1),
            "terminate": lambda: topics.terminate_topic("orders"),
            "trim": lambda: topics.trim_topic("orders"),
            "truncate": lambda: topics.truncate("orders"),
            "roll": lambda: topics.roll_ledger("orders"),
            "compact": lambda: topics.compact("orders"),
            "offload": lambda: topics.trigger_offload("orders", message_id),
            "policy of a topic": lambda: topics.set_message_ttl("orders", 60),
            "policy of a namespace": lambda: namespaces.set_message_ttl("public/default", 60),
            "namespace": lambda: namespaces.create_namespace("public/other"),
            "tenant": lambda: admin.tenants().create_tenant("other"),
            "setting": lambda: admin.brokers().update_dynamic_configuration(
                "subscribeThrottlingRatePerConsumer", "7"
            ),
            "purge": lambda: admin.dead_letters("orders", "work", "flights-partition-0").purge(),
            "schema": lambda: admin.schemas().create_schema("orders", schema.StringSchema()),
            "delete schemas": lambda: admin.schemas().delete_schema("orders"),
            "function": lambda: admin.functions().create_function(
                FunctionConfig("json.dumps", inputs=["orders"], output="texts")
            ),
            "resource group": lambda: admin.resource_groups().create_resource_group("g", ResourceGroup()),
            "repair": lambda: admin.repair(),
        }
        for name, change in calls.items():
            try:
                change()
                found[name] = ("not refused", "")
            except PulsarException as error:
                found[name] = (type(error).__name__, str(error))
    return found


def test_a_copy_without_the_words_of_the_store(place: Path):
    """A copy may lack ``store.ctl`` and the control words of topics; what the other files hold is shown."""
    root, _ = make_store(place, "copied", "asked")
    for path in (root / "store.ctl", *root.glob("topics/*/ctl")):
        path.unlink()
    before = digest(root)
    with Admin(root, read_only=True) as admin, Client(root, read_only=True) as client:
        reader = client.create_reader("orders", MessageId.earliest)
        assert len(list(iter_available(reader))) == _SENT
        assert admin.topics().get_stats("orders").subscriptions["work"].msg_backlog == _SENT - _ACKED
        assert len(admin.check().damage) == 1  # of the store's words
    assert digest(root) == before


@pytest.mark.parametrize("way", ["mount", "user", "asked"])
def test_a_living_store_is_followed(place: Path, way: str):
    """A reader and statistics that are open see what its owner goes on to store, and the owner sees nothing
    of them: no name in the directory of processes, no waiter, no lock."""
    skip_unless_possible(way)
    root = place / "store"
    root.mkdir(mode=0o755)
    root.chmod(0o755)
    go, told = os.pipe()
    with Client(root) as client:
        producer = client.create_producer("orders")
        producer.send(b"first")
        names = sorted(os.listdir(root / "clients"))

        def follow() -> str:
            at = WAYS[way](root)
            read_only = True if way == "asked" else None
            own, admin = Client(at, read_only=read_only), Admin(at, read_only=read_only)
            reader = own.create_reader("orders", MessageId.earliest)
            assert reader.read_next(5000).data() == b"first"
            assert admin.topics().get_stats("orders").msg_in_counter == 1
            os.write(told, b"x")
            got = reader.read_next(20_000).data().decode()
            counted = admin.topics().get_stats("orders").msg_in_counter
            attached = [one.kind for topic in admin.activity().look().topics for one in topic.attached]
            return f"{got} {counted} {attached}"

        child = ForkedChild(follow)
        try:
            assert os.read(go, 1) == b"x"
            assert sorted(os.listdir(root / "clients")) == names
            producer.send(b"second")
            assert child.ready() == "second 2 ['producer']"
            assert sorted(os.listdir(root / "clients")) == names
            with Admin(root) as admin:
                admin.topics().delete("orders", force=True)  # nobody holds it
        finally:
            child.end()
            os.close(go)
            os.close(told)
    assert_clean(root)


@needs_root
@pytest.mark.parametrize("mode", [0o700, 0o750, 0o711])
def test_a_private_store_names_owner_and_remedy(place: Path, mode: int):
    """`Admin` and commands say whose the directory is, and what to do; nothing is made."""
    root = place / "store"
    with Client(root) as client:
        fill(root, client)
    for path in (root, *root.rglob("*")):
        os.chown(path, ALICE, ALICE)
    root.chmod(mode)
    before = digest(root)

    def look() -> str:
        as_user(STRANGER)
        results = [call(root, *LOOKS[name][0])[::2] for name in ("stats", "top", "tail", "list", "check")]
        try:
            Admin(root)
        except AccessDeniedError as error:
            results.append((1, str(error)))
        try:
            Admin(root, read_only=True)
        except AccessDeniedError as error:
            results.append((1, str(error)))
        return json.dumps(results)

    results = json.loads(in_child(look))
    assert len(results) == 7
    for status, text in results:
        assert status and str(root) in text and f"user id {ALICE}" in text and "chmod" in text, text
        assert "Traceback" not in text
    assert digest(root) == before


@needs_root
def test_an_unreadable_file_is_named_and_the_rest_is_shown(place: Path):
    """A topic of which a file may not be read is reported with owner and remedy; the others are shown."""
    root = place / "store"
    root.mkdir(mode=0o755)
    root.chmod(0o755)
    with Client(root) as client:
        fill(root, client)
    with Admin(root) as admin:
        shut = next(one for one in (root / "topics").iterdir() if "orders" in one.name)
        assert admin.topics().get_stats("orders").msg_in_counter == _SENT
    (shut / "ctl").chmod(0o600)

    def look() -> str:
        as_user(STRANGER)
        with Admin(root) as admin:
            seen = admin.activity().look()
            return json.dumps([len(seen.topics), [tuple(one) for one in seen.unread]])

    topics, unread = json.loads(in_child(look))
    assert topics == 2
    [(name, text)] = unread
    assert name.endswith("orders") and str(shut / "ctl") in text and "user id 0" in text and "chmod" in text


def test_a_copy_that_is_opened_meanwhile_is_followed(place: Path):
    """A topic that was found in its files is looked at anew once a process has recovered it."""
    root, _ = make_store(place, "copied", "asked")
    with Admin(root, read_only=True) as admin:
        assert admin.topics().get_stats("orders").msg_in_counter == _SENT
        assert admin.unrecovered()
        with Client(root) as client:
            client.create_producer("orders").send(b"more")
            assert admin.topics().get_stats("orders").msg_in_counter == _SENT + 1
            assert admin.unrecovered() == []
    assert_clean(root)


def test_both_ways_in_one_process(place: Path):
    """An `Admin` that only looks and a client that writes are side by side; neither takes the other's way."""
    root = place / "store"
    with Client(root) as client, Admin(root, read_only=True) as looking_on:
        producer = client.create_producer("orders")
        producer.send(b"one")
        assert looking_on.topics().get_stats("orders").msg_in_counter == 1
        with pytest.raises(ReadOnlyStoreError):
            looking_on.topics().delete("orders", force=True)
        with Admin(root) as admin:
            assert not admin.is_read_only
        producer.send(b"two")
        assert looking_on.topics().get_stats("orders").msg_in_counter == 2
    assert_clean(root)


def test_in_a_forked_child(place: Path):
    """The child of a process that only looks goes on looking."""
    root, _ = make_store(place, "closed", "asked")
    before = digest(root)
    with Admin(root, read_only=True) as admin:
        assert admin.topics().get_stats("orders").msg_in_counter == _SENT
        counted = in_child(lambda: admin.topics().get_stats("orders").msg_in_counter)
        assert counted == str(_SENT)
    assert digest(root) == before


def test_a_damaged_index_is_derived_in_memory(place: Path):
    """What the index would say is found in the log; the index stays as it is."""
    root, _ = make_store(place, "closed", "asked")
    [index] = [path for path in root.rglob("*.idx") if "orders" in str(path)]
    content = bytearray(index.read_bytes())
    content[SLOTS_OFFSET : SLOTS_OFFSET + _SENT * SLOT_SIZE] = bytes(_SENT * SLOT_SIZE)
    index.write_bytes(content)
    before = digest(root)
    found = []
    with Admin(root, read_only=True, on_damage=found.append) as admin:
        assert admin.topics().get_stats("orders").subscriptions["work"].msg_backlog == _SENT - _ACKED
        assert admin.topics().examine_message("orders", "latest", 2).data() == b"order 18"
    assert found and "read-only" in str(found[0])
    assert digest(root) == before


def test_what_is_no_store(place: Path):
    """Nothing is made where there is nothing; the error names the place."""
    for action in (lambda: Admin(place / "none", read_only=True), lambda: Client(place, read_only=True)):
        with pytest.raises(StorageError, match=str(place)):
            action()
    with pytest.raises(ValueError, match="memory"):
        Admin("memory://x", read_only=True)
    assert list(place.iterdir()) == []


@needs_root
def test_files_alone_without_the_right(place: Path):
    """A directory that may be written to, with files that may not: the store is looked at, and the reason
    names the file."""
    root, _ = make_store(place, "closed", "modes")
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    before = digest(root)

    def look() -> str:
        as_user(ALICE)
        with Admin(root) as admin:
            return f"{admin.topics().get_stats('orders').msg_in_counter} {admin.read_only_reason}"

    text = in_child(look)
    assert text.startswith(f"{_SENT} ") and "lock" in text and "Permission denied" in text
    assert digest(root) == before


def test_modes_without_any_right_to_write_hold_for_root_too(place: Path):
    """Root may write where the modes say that nobody may; a store is only looked at there."""
    root, _ = make_store(place, "copied", "modes")
    before = digest(root)
    with Admin(root) as admin:
        assert admin.is_read_only and "mode 0555" in admin.read_only_reason
        assert admin.topics().get_stats("orders").msg_in_counter == _SENT
    with pytest.raises(AccessDeniedError, match="chmod"):
        Admin(root, read_only=False)
    assert digest(root) == before


def test_commands_that_run_or_repair(place: Path):
    """Workers of functions and repairs need the right to write; a backup and a plan of a repair do not."""
    root, _ = make_store(place, "closed", "asked")
    before = digest(root)
    for arguments in (["repair"], ["functions", "run"], ["produce", "orders", "-m", "x"]):
        status, _, err = call(root, "--read-only", *arguments)
        assert status and "read" in err and "Traceback" not in err
    status, _, err = call(root, "--read-only", "backup", str(place / "backup"))
    assert status == 0, err
    assert call(root, "--read-only", "repair", "--dry-run")[0] == 0
    assert digest(root) == before
    Admin.restore(place / "backup", place / "restored")
    assert shown_messages(place / "restored") == _SENT


def shown_messages(root: Path) -> int:
    with Admin(root, read_only=True) as admin:
        return admin.topics().get_stats("orders").msg_in_counter


def test_a_terminated_topic_of_a_copy(place: Path):
    """That nothing can be published any more is known by the journal, where the words are not true."""
    root = place / "store"
    root.mkdir()
    (root / "broker.conf").write_text("managedLedgerMaxSizePerLedgerMbytes=1\n")
    with Client(root) as client, Admin(root) as admin:
        client.create_producer("orders").send(b"last")
        client.create_producer("non-persistent://public/default/now").send(b"gone")
        admin.topics().terminate_topic("orders")
    shutil.copytree(root, place / "copy")
    with Admin(place / "copy", read_only=True) as admin:
        assert admin.topics().get_internal_stats("orders").state == "Terminated"
        assert admin.topics().get_stats("non-persistent://public/default/now").msg_in_counter == 0


@needs_root
def test_stopped_owner(place: Path):
    """A process that is stopped inside of the store holds up nobody who looks."""
    root, end = make_store(place, "live", "user")
    pid = end.__self__.pid  # type: ignore[attr-defined]
    os.kill(pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        text = in_child(lambda: (as_user(STRANGER), call(root, *LOOKS["stats"][0]))[1])
        assert "living" in text
        assert time.monotonic() - begun < 10
    finally:
        os.kill(pid, signal.SIGCONT)
        end()


def test_a_reader_waits_with_a_timeout(place: Path):
    """Without news a reader of such a store raises `Timeout`, as any other."""
    root, _ = make_store(place, "closed", "asked")
    with Client(root, read_only=True) as client:
        reader = client.create_reader("orders", MessageId.latest)
        with pytest.raises(Timeout):
            reader.read_next(120)

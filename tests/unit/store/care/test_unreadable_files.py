"""What cannot be read is not damage: it stops whatever needs it, names itself, and is read once it can be."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, MessageId
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.store.care.store_check import check_store
from embeddedpulsar._engine.store.care.store_repair import repair_store
from embeddedpulsar.cli.check import main as check_command
from embeddedpulsar.exceptions import PulsarException, StorageOSError
from embeddedpulsar.testing import assert_clean
from tests.support.disks.faulty_disk import FaultyDisk
from tests.support.store_copies import copy_store

SENT = 12
ERRNOS = {
    errno.errorcode[code]: code
    for code in (
        errno.EACCES,
        errno.EPERM,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ELOOP,
        errno.ESTALE,
        errno.ENXIO,
    )
}
FILES = {
    "first segment": "topics/*/*1.log",
    "tail segment": "topics/*/*3.log",
    "topic journal": "topics/*/journal.1",
    "subscription journal": "topics/*/subscriptions/*/journal.1",
    "subscription ctl": "topics/*/subscriptions/*/ctl",
    "topic ctl": "topics/*/ctl",
    "topic.meta": "topics/*/topic.meta",
    "catalog": "catalog",
}
SEGMENTS = ("first segment", "tail segment")
FAILURES = [
    (file, name) for file in FILES for name in ERRNOS if file in SEGMENTS or name in ("EACCES", "EIO")
]
"""Every error at the segments, two errors at the other files."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with three ledgers, and a subscription that has acknowledged nothing."""
    root = tmp_path_factory.mktemp("original") / "store"
    root.mkdir()
    (root / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=5\n")
    with Client(root) as client:
        client.subscribe("orders", "billing").close()
        producer = client.create_producer("orders")
        for number in range(SENT):
            producer.send(b"order %d" % number)
    return root


def use(root: Path) -> list[bytes]:
    """What an application does when it starts."""
    with Client(root) as client:
        client.create_producer("orders").close()
        with client.create_reader("orders", MessageId.earliest) as reader:
            read = [message.data() for message in reader]
        consumer = client.subscribe("orders", "billing")
        got = [message.data() for message in iter(consumer.receive_nowait, None)]
        assert got == read
    return got


def trim(root: Path) -> None:
    with Admin(root) as admin:
        admin.topics().trim_topic("orders")


def back_up(root: Path) -> None:
    with Admin(root) as admin:
        admin.backup(root.with_name("backup"))


NEEDS: dict[str, Callable[[Path], object]] = {
    "use": use,
    "trim": trim,
    "backup": back_up,
    "repair": lambda root: repair_store(str(root)),
}


@pytest.mark.parametrize(("file", "name"), FAILURES)
def test_a_file_that_cannot_be_opened(root: Path, file: str, name: str):
    """Nothing takes it for damaged or missing, and nothing is lost when it can be opened again."""
    (path,) = root.glob(FILES[file])
    code = ERRNOS[name]
    with disk.use(FaultyDisk()) as faulty:
        assert isinstance(faulty, FaultyDisk)
        faulty.fail("open_file", 1, code, times=10**6, path=str(path))
        report = check_store(root, is_closed=False)
        assert not report.damage
        assert str(path) in {problem.path for problem in report.unverified}
        assert all(problem.remedy and "repair" not in problem.remedy for problem in report.unverified)
        for need in NEEDS.values():
            text = _refusal(need, root)
            assert not text or any(one in text for one in (path.name, "descriptors", str(path.parent))), text
    assert sorted(use(root)) == sorted(b"order %d" % number for number in range(SENT))
    assert_clean(root)


def test_a_read_that_fails_half_way(root: Path):
    """An I/O error in the middle of a recovery's scan ends the recovery; the next one finds everything."""
    with disk.use(FaultyDisk()) as faulty:
        assert isinstance(faulty, FaultyDisk)
        number = 0
        while True:
            number += 1
            faulty.heal()
            before = faulty.count
            copy = copy_store(root, root.with_name(f"copy-{number}"))
            faulty.fail("pread", number, errno.EIO, times=1)
            try:
                use(copy)
            except (PulsarException, OSError):
                pass
            else:
                reads = sum(call == "pread" for call, _ in faulty.log[before:])
                if number > reads:
                    break
            faulty.heal()
            assert len(use(copy)) == SENT, f"after the failure of read {number}"
            shutil.rmtree(copy)
            number += 2  # every third


@pytest.mark.parametrize("call", ["open_file", "pread"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ELOOP])
def test_a_backup_that_cannot_be_read(root: Path, code: int, call: str):
    """A restore names the file, leaves nothing, and succeeds once it can be read; a backup likewise."""
    with Admin(root) as admin:
        backup, target = root.with_name("backup"), root.with_name("restored")
        with disk.use(FaultyDisk()) as faulty:
            assert isinstance(faulty, FaultyDisk)
            faulty.fail(call, 1, code, times=10**6, path="0001.log")
            with pytest.raises(PulsarException, match=r"0001\.log|descriptors"):
                admin.backup(backup)
        admin.backup(backup)
    copy = max(backup.glob("objects/**/*"), key=lambda path: path.is_file() and path.stat().st_size)
    with disk.use(FaultyDisk()) as faulty:
        assert isinstance(faulty, FaultyDisk)
        faulty.fail(call, 1, code, times=10**6, path=copy.name)
        with pytest.raises((PulsarException, OSError)) as caught:
            Admin.restore(backup, target)
        assert isinstance(caught.value, PulsarException)
        assert copy.name in str(caught.value) or "descriptors" in str(caught.value)
    assert not target.exists()
    Admin.restore(backup, target)
    assert len(use(target)) == SENT
    assert_clean(target)


def test_the_check_on_the_command_line(root: Path, capsys: pytest.CaptureFixture[str]):
    """The file, the reason and the remedy; no word of damage or repair, and an exit status that is not 0."""
    (path,) = root.glob(FILES["first segment"])
    with disk.use(FaultyDisk()) as faulty:
        assert isinstance(faulty, FaultyDisk)
        faulty.fail("open_file", 1, errno.EACCES, times=10**6, path=str(path))
        assert check_command([str(root)]) == 1
    text = capsys.readouterr().out
    assert path.name in text and "to do: " in text and "unreadable" in text
    assert "to do: repair" not in text and "damaged place" not in text and "whole" not in text


def test_a_repair_stops_before_it_changes_anything(root: Path):
    """Damage beside it waits: what is derived without a file that is whole could replace it."""
    (path,) = root.glob(FILES["first segment"])
    (index,) = root.glob("topics/*/*2.idx")
    index.unlink()
    before = sorted(str(one) for one in root.rglob("*"))
    with disk.use(FaultyDisk()) as faulty:
        assert isinstance(faulty, FaultyDisk)
        faulty.fail("open_file", 1, errno.EIO, times=10**6, path=str(path))
        with pytest.raises(StorageOSError, match="nothing was repaired"):
            repair_store(str(root))
        assert repair_store(str(root), is_dry_run=True).left
    assert sorted(str(one) for one in root.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
@pytest.mark.parametrize("file", ["first segment", "tail segment", "subscription journal"])
def test_the_file_of_another_user(original: Path, file: str):
    """A store that was copied with other rights for one file: after chown everything is read."""
    import tempfile

    if _as_other("-c", "import embeddedpulsar").returncode:
        pytest.skip("the other user may not run this interpreter, or read the package")
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        os.chmod(base, 0o777)
        root = copy_store(original, Path(base, "store"))
        _give(root, 65534)
        (path,) = root.glob(FILES[file])
        os.chown(path, 0, 0)
        path.chmod(0o600)
        for command in ("check", "repair --yes", "topics peek-messages orders -s billing"):
            done = _as_other("-m", "embeddedpulsar", "--store", str(root), *command.split())
            assert done.returncode, f"{command}: {done.stdout}"
            assert path.name in done.stdout + done.stderr
        _give(root, 65534)
        script = (
            "import sys, embeddedpulsar as pulsar\n"
            "with pulsar.Client(sys.argv[1]) as client:\n"
            "    with client.create_reader('orders', pulsar.MessageId.earliest) as reader:\n"
            "        print(len([None for message in reader if message.data().startswith(b'order')]))\n"
        )
        done = _as_other("-c", script, str(root))
        assert done.stdout.strip() == str(SENT), done.stderr


def _refusal(need: Callable[[Path], object], root: Path) -> str:
    try:
        need(root)
    except (PulsarException, OSError) as e:
        return str(e)
    return ""


def _give(root: Path, user: int) -> None:
    for path in (root, *root.rglob("*")):
        os.chown(path, user, user)


def _as_other(*command: str) -> subprocess.CompletedProcess[str]:
    drop = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable)
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"}
    return subprocess.run(
        (*drop, *command), capture_output=True, text=True, env=environment, timeout=120, check=False
    )

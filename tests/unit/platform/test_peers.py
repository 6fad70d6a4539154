"""Ringing and probing other processes; leases and orphans."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.platform import descriptors, lease
from embeddedpulsar._engine.platform.doorbell import FifoDoorbell, PollingDoorbell
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.peers import _OPEN_BELLS_MAX, Peers
from embeddedpulsar.exceptions import DescriptorLimitError


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Mailbox]:
    """This process's own mailbox."""
    mailbox = Mailbox.create(tmp_path)
    yield mailbox
    mailbox.close()


@pytest.fixture
def peers(tmp_path: Path, box: Mailbox) -> Iterator[Peers]:
    """The peers as seen by it."""
    found = Peers(tmp_path, box)
    yield found
    found.close()


@pytest.mark.parametrize("kind", [FifoDoorbell, PollingDoorbell])
def test_ring_wakes_another(tmp_path: Path, peers: Peers, kind: type[FifoDoorbell] | type[PollingDoorbell]):
    """A ring arrives at doorbells of both kinds."""
    other = Mailbox(kind.create(str(tmp_path)))
    assert other.wait(0, 0) == 0
    assert peers.ring(other.uuid)
    assert other.wait(0, 5) != 0
    other.close()


def test_ringing_oneself_needs_no_descriptor(peers: Peers, box: Mailbox):
    """Producer and consumer in one process: the ring only raises the generation."""
    seen = box.generation
    assert peers.ring(box.uuid) and box.generation != seen
    assert not peers._bells


def test_a_full_doorbell_is_a_rung_doorbell(tmp_path: Path, peers: Peers):
    """EAGAIN is success: the owner has 64 KiB of rings to look at, one more changes nothing."""
    other = Mailbox.create(tmp_path)
    for _ in range(65536 + 10):
        if not peers.ring(other.uuid):
            pytest.fail("a full FIFO was taken for a dead one")
    assert other.wait(0, 5) != 0
    seen = other.generation
    assert other.wait(seen, 0) == seen, "one look empties it"
    other.close()


@pytest.mark.parametrize("kind", [FifoDoorbell, PollingDoorbell])
def test_ringing_the_dead_says_so(
    tmp_path: Path, peers: Peers, kind: type[FifoDoorbell] | type[PollingDoorbell]
):
    """Whether its doorbell was open already or not: False, and the descriptor is given back."""
    other = Mailbox(kind.create(str(tmp_path)))
    assert peers.ring(other.uuid)
    other.close()
    assert not peers.ring(other.uuid)
    assert not peers._bells
    assert not peers.ring(other.uuid)
    assert not peers.ring(os.urandom(16))


def test_a_fifo_without_a_reader_is_dead(tmp_path: Path, peers: Peers):
    """ENXIO: the FIFO of a killed process, which nobody swept yet."""
    orphan = os.urandom(16)
    os.mkfifo(lease.lease_path(str(tmp_path), orphan))
    assert not peers.ring(orphan)
    assert not peers.is_alive(orphan)


def test_ringing_the_dead_under_default_sigpipe_does_not_kill(tmp_path: Path, peers: Peers):
    """Command-line tools restore the default action of SIGPIPE; a peer that just died must not end them."""
    other = Mailbox.create(tmp_path)
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        assert peers.ring(other.uuid)
        other.close()
        assert not peers.ring(other.uuid)
        assert signal.SIGPIPE not in signal.sigpending()
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_is_alive_asks_the_kernel(tmp_path: Path, peers: Peers, box: Mailbox):
    """Alive while the lease is held; the probe leaves no descriptor and does not disturb the owner."""
    other = Mailbox.create(tmp_path)
    assert peers.is_alive(box.uuid) and peers.is_alive(other.uuid)
    other.close()
    assert not peers.is_alive(other.uuid)


def test_a_lease_that_cannot_be_examined_is_an_error(tmp_path: Path, peers: Peers):
    """Neither "alive" nor "dead" would be honest about a symbolic link put in its place."""
    uuid = os.urandom(16)
    os.symlink("/dev/null", lease.lease_path(str(tmp_path), uuid))
    with pytest.raises(OSError):
        peers.is_alive(uuid)
    assert not peers.ring(uuid)


def test_a_device_or_directory_in_place_of_a_lease_is_never_written_to(tmp_path: Path, peers: Peers):
    """Only FIFOs and plain files are rung."""
    uuid = os.urandom(16)
    os.mkdir(lease.lease_path(str(tmp_path), uuid))
    assert not peers.ring(uuid)


def test_open_doorbells_are_bounded(tmp_path: Path, peers: Peers):
    """Beyond 64 the least recently rung is closed; it can be rung again."""
    if descriptors.limit() < 5 * _OPEN_BELLS_MAX:
        pytest.skip("as many doorbells as one process never has need more descriptors")
    others = [Mailbox.create(tmp_path) for _ in range(_OPEN_BELLS_MAX + 2)]
    for other in others:
        assert peers.ring(other.uuid)
    assert len(peers._bells) == _OPEN_BELLS_MAX and others[0].uuid not in peers._bells
    assert peers.ring(others[0].uuid)
    for other in others:
        assert other.wait(0, 5) != 0
        other.close()


def test_sweep_removes_orphans_only(tmp_path: Path, peers: Peers, box: Mailbox):
    """Doorbells of both kinds whose lease is free go; the living, and files that are none of ours, stay."""
    other = Mailbox.create(tmp_path)
    polling = Mailbox(PollingDoorbell.create(str(tmp_path)))
    for make in (os.mkfifo, lambda path: open(path, "wb").close()):
        make(lease.lease_path(str(tmp_path), os.urandom(16)))
    (tmp_path / "readme").write_text("not a lease")
    assert peers.sweep() == 2
    left = {other.uuid.hex(), polling.uuid.hex(), box.uuid.hex(), "readme"}
    assert set(os.listdir(tmp_path)) == left
    other.close()
    polling.close()


def test_a_newcomer_whose_fifo_was_swept_makes_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Between mkfifo and flock a newcomer looks like an orphan; the lock and the name together tell it."""
    swept: list[bool] = []
    real = lease.try_hold

    def sweep_first(fd: int, path: str) -> bool:
        if len(swept) < 2:
            swept.append(lease.remove_if_orphan(path))
        return real(fd, path)

    monkeypatch.setattr(lease, "try_hold", sweep_first)
    box = Mailbox.create(tmp_path)
    assert swept == [True, True]
    assert os.listdir(tmp_path) == [box.uuid.hex()]
    assert lease.is_held(lease.lease_path(str(tmp_path), box.uuid))
    box.close()


def test_a_newcomer_whose_fifo_is_just_being_probed_makes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The lock of a prober lasts a microsecond; nobody knows the new name yet, so another one does as
    well."""
    real, held = lease.try_hold, []

    def probe_first(fd: int, path: str) -> bool:
        if held:
            return real(fd, path)
        held.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        fcntl.flock(held[0], fcntl.LOCK_SH)
        return real(fd, path)

    monkeypatch.setattr(lease, "try_hold", probe_first)
    box = Mailbox.create(tmp_path)
    assert os.listdir(tmp_path) == [box.uuid.hex()]
    os.close(held[0])
    box.close()


def test_running_out_of_descriptors_declares_nobody_dead(
    tmp_path: Path, peers: Peers, box: Mailbox, monkeypatch: pytest.MonkeyPatch
):
    """EMFILE while ringing: somebody else is woken; while probing or watching: an error, not a death."""
    other = Mailbox.create(tmp_path)
    told: list[bytes] = []

    def refuse(*_: object, **__: object) -> int:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(os, "open", refuse)
    assert not peers.ring(other.uuid)
    with pytest.raises(OSError):
        peers.is_alive(other.uuid)
    with pytest.raises(OSError):
        box.watch(other.uuid, told.append)
    with pytest.raises(DescriptorLimitError):
        peers.sweep()
    monkeypatch.undo()
    assert peers.ring(other.uuid) and peers.is_alive(other.uuid)
    box.wait(box.generation, 0)
    assert told == []
    other.close()


def test_a_directory_that_is_missing_has_nobody_to_ring_or_sweep(tmp_path: Path):
    """A cleaner removed it, and no process has made it again yet."""
    clients = tmp_path / "clients"
    clients.mkdir()
    mailbox = Mailbox.create(clients)
    peers = Peers(clients, mailbox)
    os.unlink(lease.lease_path(str(clients), mailbox.uuid))
    clients.rmdir()
    peers.ring_all()
    assert peers.sweep() == 0
    peers.close()
    mailbox.close()

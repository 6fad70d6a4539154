"""Which process holds a lock, as far as the system tells: for people who look, never for a decision."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from embeddedpulsar.platform import descriptors, nofollow
from embeddedpulsar.platform.processes import lease
from embeddedpulsar.records import NamedTuple

_ID_SIZE: Final = 16


class ProcessFacts(NamedTuple):
    """A process. `pid` is 0 and `program` empty where the system does not tell: outside of Linux, or in
    another container."""

    pid: int = 0
    program: str = ""


_FEW: Final = 3


def described(holders: Sequence[lease.Holder], own: bytes, clients: str) -> str:
    """Where the first of those are that are attached, for the text of an error.

    Args:
        holders: what is attached.
        own: the lease of this process.
        clients: the directory of the leases. It is read only if one is of another process.

    Example:
        >>> from embeddedpulsar.platform.processes import lease
        >>> one, two = lease.Holder("a", b"1" * 16, "MainThread"), lease.Holder("b", b"2" * 16)
        >>> described([one, two], b"1" * 16, "")
        "'a' by the thread 'MainThread' of this very process, 'b' by another process"
    """
    few = holders[:_FEW]
    is_here = all(one.client_uuid == own for one in few)
    processes = {} if is_here else lease_holders(clients)
    texts = []
    for name, uuid, thread in few:
        process = processes.get(uuid, ProcessFacts())
        if uuid == own:
            place = f"the thread {thread!r} of this very process" if thread else "this very process"
        elif process.pid:
            place = f"process {process.pid}" + (f" ({process.program})" if process.program else "")
        else:
            place = "another process"
        texts.append(f"{name!r} by {place}")
    more = len(holders) - len(few)
    return ", ".join(texts) + (f" and {more} more" if more else "")


def lease_holders(clients: str, is_alive: Callable[[bytes], bool] | None = None) -> dict[bytes, ProcessFacts]:
    """The processes that live, by the ids of their leases in a directory; reads ``/proc/locks``.

    The lease of a process that was killed stays until another one removes it; it is left out.

    Args:
        clients: the directory.
        is_alive: whether the process of a lease lives, as `Peers.is_alive`; by default its lease tells, which
            needs the right to write to it.
    """
    holders = _holders()
    found: dict[bytes, ProcessFacts] = {}
    for name in descriptors.names_in(clients) if os.path.isdir(clients) else ():
        try:
            uuid, path = bytes.fromhex(name), os.path.join(clients, name)
            status = nofollow.status(path)
            is_lease = len(uuid) == _ID_SIZE
            if not is_lease or not (lease.is_held(path) if is_alive is None else is_alive(uuid)):
                continue
        except (ValueError, OSError):
            continue  # a leftover, or gone meanwhile
        pid = _holder_of(status, holders)
        found[uuid] = ProcessFacts(pid, _program(pid) if pid else "")
    return found


def _holder_of(status: os.stat_result, holders: Mapping[tuple[int, int], int]) -> int:
    """The pid of the process that holds a lock on a file; 0 if it is unknown.

    Inodes of different file systems may be equal. Some (btrfs, overlayfs) show other devices in
    ``/proc/locks`` than in a file's status: there no lock has the device of the file, and the inode alone is
    compared.
    """
    if any(device == status.st_dev for device, _ in holders):
        return holders.get((status.st_dev, status.st_ino), 0)
    found = {pid for (_, inode), pid in holders.items() if inode == status.st_ino}
    return found.pop() if len(found) == 1 else 0


def _holders() -> dict[tuple[int, int], int]:
    """The pids of those that hold an exclusive ``flock``, by the device and the inode of the file."""
    found: dict[tuple[int, int], int] = {}
    try:
        with open("/proc/locks", encoding="ascii") as file:
            lines = file.read().splitlines()
    except OSError:
        return found
    for line in lines:
        fields = line.split()  # "7: FLOCK ADVISORY WRITE 4711 08:01:393217 0 EOF"; waiters have "->"
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[3] == "WRITE":
            major, minor, inode = fields[5].split(":")
            found[os.makedev(int(major, 16), int(minor, 16)), int(inode)] = int(fields[4])
    return found


def _program(pid: int) -> str:
    """The program of a process and its first words, without the interpreter's options."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            parts = [part.decode(errors="replace") for part in file.read().split(b"\0") if part]
    except OSError:
        return ""
    if not parts:
        return ""
    rest = parts[1:]
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
    if rest and rest[0] == "-c":
        rest = ["-c"]
    elif rest and rest[0] != "-m":
        rest = [os.path.basename(rest[0])]
    return " ".join([os.path.basename(parts[0]), *rest[:2]])

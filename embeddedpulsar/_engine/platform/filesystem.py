"""The directory of a store: whether it may live there, whether others may write to it, and its lease.

Locks and maps are shared between the processes of one machine. On a network file system they are not, or only
seemingly, so a store there is refused unless the caller insists. A user that writes a mapped file may crash
every process that maps it; a directory that other users may write to is refused as well, as ssh does with its
keys.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import sys
from collections.abc import Iterable

from embeddedpulsar._engine.platform import access, descriptors, disk, nofollow
from embeddedpulsar.exceptions import ForeignFileError, NetworkFilesystemError, StorageError, StorageOSError
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

MOUNTS_PATH: Final = "/proc/self/mountinfo"
PRIVATE: Final = 0o700

_NETWORK: Final = frozenset(
    "9p acfs afpfs afs beegfs ceph cifs coda davfs fhgfs ftp fusefs gfs gfs2 glusterfs gpfs lustre "
    "macfuse ncp ncpfs nfs nfs4 ocfs2 orangefs osxfuse p9fs panfs prl_fs psshfs pvfs2 smb2 smb3 smbfs "
    "sshfs vboxsf vboxvfs virtiofs vmhgfs webdav".split()
)
_ESCAPES: Final = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))
_IN_ENGLISH: Final = {"PATH": "/sbin:/bin:/usr/sbin:/usr/bin", "LC_ALL": "C"}
_MOUNTS_STEP: Final = 1 << 16
_MOST_TYPES: Final = 64
_FLAGS: Final = struct.Struct("@l")  # of the machine: an argument of a call
_GET_FLAGS: Final = 2 << 30 | _FLAGS.size << 16 | ord("f") << 8 | 1  # FS_IOC_GETFLAGS
_SET_FLAGS: Final = 1 << 30 | _FLAGS.size << 16 | ord("f") << 8 | 2  # FS_IOC_SETFLAGS
_NO_COPY_ON_WRITE: Final = 0x0080_0000
_types: Final[dict[tuple[int, int, int], str | None]] = {}


class NotWritableError(StorageError):
    """The file system is mounted read-only."""


class OtherOwnerError(ForeignFileError):
    """The directory is another user's, who does not share it for writing."""


def is_network_type(kind: str) -> bool:
    """Whether files of a file system of type ``kind`` may be used from several machines.

    >>> is_network_type("nfs4"), is_network_type("fuse.sshfs"), is_network_type("ext4")
    (True, True, False)
    """
    return kind in _NETWORK or kind.startswith(("fuse.", "fusefs."))


def filesystem_type(path: str, mounts: str | None = None) -> str | None:
    """The type of the file system that holds ``path`` (which need not exist); None where this is unknown."""
    # By the device first, without parsing. It fails for a file system whose files have other devices
    # than its mount (btrfs subvolumes, overlayfs); then all mount points are compared.
    if mounts is None:
        try:
            mounts = os.fsdecode(_read_mounts())
        except OSError as e:
            # "Unknown" would let a store on NFS pass, so a shortage is an error and not an answer.
            if descriptors.is_shortage(e):
                raise
            return _type_by_program(path)
        kind = _type_of_device(path, mounts)
        if kind is not None:
            return kind
    # The longest mount point that contains the path, as the kernel resolves it.
    wanted = os.path.realpath(path)
    best, kind = "", None
    for line in mounts.splitlines():
        mount, dash, right = line.partition(" - ")
        fields = mount.split(" ")
        if not dash or len(fields) < 5:
            continue
        mount_point = _unescape(fields[4])
        # Of several mounts on one point the last one hides the others.
        if _is_within(wanted, mount_point) and len(mount_point) >= len(best):
            best, kind = mount_point, right.split(" ")[0]
    return kind


def _type_by_program(path: str) -> str | None:
    """The type where there is no ``/proc``: of the mounts that the program of that name prints."""
    import subprocess  # here and not above: 10 ms, and never needed on Linux

    try:
        answer = subprocess.run(["mount"], capture_output=True, check=True, timeout=10, env=_IN_ENGLISH)
    except (OSError, subprocess.SubprocessError):
        return None
    return type_of_mount(os.path.realpath(path), os.fsdecode(answer.stdout))


def type_of_mount(path: str, mounts: str) -> str | None:
    r"""The type of the file system of a canonical path, of what the program ``mount`` prints.

    >>> type_of_mount("/Volumes/x/y", "/dev/disk3 on / (apfs, local)\nh:/x on /Volumes/x (nfs, asyncio)")
    'nfs'
    >>> type_of_mount("/home/a", "/dev/wd0a on / type ffs (local)")
    'ffs'
    """
    best, kind = "", None
    for line in mounts.splitlines():
        # A name may have blanks and parentheses: the options are behind the last one.
        what, parenthesis, options = line.rpartition(" (")
        _, on, place = what.partition(" on ")
        if not parenthesis or not on:
            continue
        point, is_named, name = place.rpartition(" type ")  # NetBSD and OpenBSD name the type there
        if not is_named:
            point, name = place, options.rstrip(")").partition(",")[0]
        if _is_within(path, point) and len(point) >= len(best):
            best, kind = point, name.strip()
    return kind


def _read_mounts() -> bytes:
    fd = descriptors.opening(f"cannot open {MOUNTS_PATH}", os.open, MOUNTS_PATH, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, _MOUNTS_STEP), b""))
    finally:
        os.close(fd)


def _type_of_device(path: str, mounts: str) -> str | None:
    """The type by the device of ``path``, which nearly always has a mount: a third of the time that a
    comparison of all mount points takes."""
    try:
        device = os.stat(path).st_dev
    except OSError:
        return None
    # The third field is "major:minor". The same text may stand in a later field, so its place in the
    # line is verified.
    at = mounts.find(f" {os.major(device)}:{os.minor(device)} ")
    start, end = mounts.rfind("\n", 0, at) + 1, mounts.find("\n", at)
    _, dash, right = mounts[at:end].partition(" - ")
    is_third_field = at >= 0 and mounts.count(" ", start, at) == 1
    return right.split(" ", 1)[0] if is_third_field and dash else None


def _remembered_type(path: str, status: os.stat_result | None) -> str | None:
    """As `filesystem_type`; of a directory that did not change since it was asked, this takes a tenth of the
    time. Its number and the time of its change tell it from one that was mounted there since."""
    if status is None:
        return filesystem_type(path)
    place = status.st_dev, status.st_ino, status.st_ctime_ns
    # Bounded and cleared whole: a process opens few directories, and a miss costs one read of the
    # mounts.
    if place not in _types:
        if len(_types) >= _MOST_TYPES:
            _types.clear()
        _types[place] = filesystem_type(path)
    return _types[place]


def _unescape(text: str) -> str:
    for escape, character in _ESCAPES:
        text = text.replace(escape, character)
    return text


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def check_writable_filesystem(
    path: str, allow_network: bool = False, status: os.stat_result | None = None
) -> None:
    """Refuse a store on a file system where locks and maps are not shared.

    Args:
        path: of the store.
        allow_network: whether the caller insists.
        status: of the directory, if it is there.

    Raises:
        NetworkFilesystemError: the type is a network file system's and ``allow_network`` is false.
        StorageError: the file system is mounted read-only.
    """
    _check_system()
    _check_network(path, allow_network, status)
    present = path if status is not None else _existing_parent(path)
    if hasattr(os, "statvfs") and os.statvfs(present).f_flag & os.ST_RDONLY:
        raise NotWritableError(
            f"the file system of {path} is mounted read-only",
            remedy="remount it, or copy the store elsewhere",
        )


def _check_system() -> None:
    """Refuse a system whose maps of files are not coherent with what is written to them."""
    if sys.platform.startswith("openbsd"):
        raise StorageError(
            "OpenBSD keeps what is stored through a map of a file apart from what is written to the file, "
            "and a store uses both",
            remedy="use Linux, macOS, FreeBSD or NetBSD",
        )


def _check_network(path: str, allow_network: bool, status: os.stat_result | None = None) -> None:
    kind = _remembered_type(path, status)
    # A type that is unknown is allowed: most are local, and a refusal without a reason could not be
    # acted upon.
    if kind is not None and is_network_type(kind) and not allow_network:
        raise NetworkFilesystemError(
            f"{path} lies on a file system of type {kind}, where file locks and memory maps are not shared "
            "between machines",
            remedy="use a local directory, or pass allow_network_fs=True if one machine alone opens it",
        )


def _existing_parent(path: str) -> str:
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def lease_root(path: str, *, allow_network: bool = False) -> tuple[str, DirectoryLease]:
    """The `nofollow.canonical` path of the directory of a store, and the open directory.

    Whether it may be used, whether it must be made, and the errors are as of `prepare_root`.
    """
    # The common case takes one opening: the directory is there and the kernel says its path.
    # `prepare_root` is for a directory that is missing, or that cannot be opened; it raises the error
    # that says which.
    fd, root = -1, ""
    try:
        fd, root = descriptors.opening(f"cannot open {path}", nofollow.open_root, path)
    except OSError as e:
        if descriptors.is_shortage(e):
            raise
    if not root:
        if fd >= 0:
            os.close(fd)
        root = prepare_root(path, allow_network=allow_network)  # or it says what is wrong
        return root, DirectoryLease.open(root)
    lease = DirectoryLease(fd)
    try:
        _check_root(root, lease.status, allow_network)
    except BaseException:
        lease.close()
        raise
    return root, lease


def prepare_root(path: str, *, create: bool = True, allow_network: bool = False) -> str:
    """Make sure that ``path`` is a directory a store may live in, and return its `nofollow.canonical` path.

    A new directory (and each missing parent) gets mode 0700. A link that leads to a directory is followed.

    Raises:
        FileNotFoundError: absent, and ``create`` is false.
        ForeignFileError: not a directory, owned by another user, or writable by every user.
        AccessDeniedError: this process may not use it.
        NetworkFilesystemError: see `check_writable_filesystem`.
    """
    root = nofollow.canonical(path)
    try:
        status = os.stat(root)
    except FileNotFoundError:
        check_writable_filesystem(root, allow_network)
        if not create:
            raise
        make_directories(root)
        status = os.stat(root)
    _check_root(root, status, allow_network)
    return root


def _check_root(root: str, status: os.stat_result, allow_network: bool) -> None:
    # The kind of the file system first: its message is the one that explains failures of the rest.
    check_writable_filesystem(root, allow_network, status)
    if not stat.S_ISDIR(status.st_mode):
        raise ForeignFileError(f"{root} is not a directory", remedy="choose another path for the store")
    check_owner(root, status)
    disk.check_access(root)
    if not status.st_mode & access.WRITE_BITS:  # root may write there all the same; its modes say not to
        raise access.access_denied(f"cannot write to the store {root}", root, errno.EACCES)


def readable_root(path: str, allow_network: bool = False) -> str:
    """Make sure that ``path`` is a directory that this process may read, and return its `nofollow.canonical`
    path. Nothing is made.

    Raises:
        FileNotFoundError: absent.
        ForeignFileError: not a directory, or writable by every user.
        AccessDeniedError: this process may not read it.
        NetworkFilesystemError: see `check_writable_filesystem`.
    """
    root = nofollow.canonical(path)
    status = os.stat(root)
    _check_network(root, allow_network, status)
    if not stat.S_ISDIR(status.st_mode):
        raise ForeignFileError(f"{root} is not a directory", remedy="name the directory of a store")
    disk.check_access(root, to_read=True)
    _check_not_for_all(root, status)
    return root


def make_directories(path: str, mode: int | None = PRIVATE) -> None:
    """Create ``path`` and its missing parents. What is there stays as it is. Safe to race.

    The names are on the disk when this returns: a power loss that took them would take all that is flushed
    below.

    Args:
        path: absolute.
        mode: of what is made; None for the rights of the directory above.
    """
    missing = []
    # Missing parents from the bottom up, then made from the top down. Another process may make any of
    # them meanwhile.
    while not os.path.isdir(path):
        missing.append(path)
        parent = os.path.dirname(path)
        if parent == path:
            break
        path = parent
    for directory in reversed(missing):
        try:
            disk.DISK.mkdir(directory, mode)
        except FileExistsError as e:
            if not os.path.isdir(directory):
                raise ForeignFileError(
                    f"{directory} is not a directory", remedy="choose another path for the store"
                ) from e
        # The directory above was there a moment ago. It was removed, or its file system takes none,
        # as /proc.
        except FileNotFoundError as e:
            parent = os.path.dirname(directory)
            if not os.path.isdir(parent):
                raise  # it was removed meanwhile
            reason = f"cannot create {directory}: the file system of {parent} takes no directories"
            remedy = "choose a path on a disk for the store"
            raise StorageOSError(reason=reason, remedy=remedy, errno=errno.ENOENT) from e
        with contextlib.suppress(PermissionError):  # one may add to a directory that one cannot open
            disk.DISK.fsync_dir(os.path.dirname(directory))


def overwrite_in_place(root: str) -> None:
    """Have a new directory of a store on btrfs overwrite its files where they are, as other file systems do.

    Else btrfs puts each page that is written again in another place of the disk. On a full one it has none,
    and the process that stored into a mapped page gets SIGBUS. Files and directories that are made in it from
    now on have the attribute, too (``lsattr`` shows C). btrfs then keeps no checksums of them: the store has
    its own.
    """
    if sys.platform != "linux" or _remembered_type(root, os.stat(root)) != "btrfs":
        return
    fd = descriptors.opening(f"cannot open {root}", nofollow.open_directory, root, os.O_RDONLY)
    try:
        # Refused to who does not own the directory: then all is as in a store that was made before.
        with contextlib.suppress(OSError):
            (flags,) = _FLAGS.unpack(fcntl.ioctl(fd, _GET_FLAGS, bytes(_FLAGS.size)))
            fcntl.ioctl(fd, _SET_FLAGS, _FLAGS.pack(flags | _NO_COPY_ON_WRITE))
    finally:
        os.close(fd)


def check_owner(path: str, status: os.stat_result) -> None:
    """Refuse a directory that others than its users may write to.

    Its users are its owner, root, and the group that its owner shares it with.
    """
    if not hasattr(os, "getuid"):
        return  # Windows: access is by ACL, and the default one is private
    # The owner, root, and members of a group with which the owner shares it are its users. A
    # directory of root's is not refused here: whether this user may write there,
    # `disk.check_access` tells.
    if os.geteuid() not in (0, status.st_uid) and status.st_uid != 0 and not _is_shared_with_us(status):
        raise OtherOwnerError(
            f"{path} belongs to user id {status.st_uid}, this process runs as {os.geteuid()}",
            remedy="open the store as its owner, let the owner share it with a group of this user "
            f"(chgrp GROUP {path}; chmod 2770 {path}, before the store is made), or choose another path",
        )
    _check_not_for_all(path, status)


def _check_not_for_all(path: str, status: os.stat_result) -> None:
    # With the sticky bit (/tmp) others may add names and not replace those of the store.
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise ForeignFileError(
            f"{path} is writable by every user, and any of them could crash or forge the store",
            remedy=f"chmod o-w {path}",
        )


def check_directories(root: str, lease: DirectoryLease, names: Iterable[str]) -> None:
    """Refuse a store in which something else lies where these directories are; see `check_below`."""
    for name in names:
        # Relative to the open root and without following a link: what is refused is what later calls
        # would have used.
        try:
            status = os.stat(name, dir_fd=lease.fd, follow_symlinks=False)
        except FileNotFoundError:
            continue
        check_below(lease.status, f"{root}{os.sep}{name}", status)


def check_below(root: os.stat_result, path: str, status: os.stat_result) -> None:
    """Refuse what is in the place of a directory of a store and does not belong to it.

    A directory belongs to a store if its owner is that of the root, root, or this user; or if its group is
    the root's: a member of the group that shares a store may not give directories to its owner.

    Args:
        root: of the directory of the store.
        path: of the directory.
        status: of it.

    Raises:
        StorageOSError: it is a symbolic link, or something else than a directory.
        ForeignFileError: it is another user's.
    """
    if not stat.S_ISDIR(status.st_mode):
        if stat.S_ISLNK(status.st_mode):
            raise nofollow.link_error(path)
        raise StorageOSError(
            path=path,
            reason="it is no directory",
            remedy="it does not belong to the store: move it away, and run a repair of the store",
            errno=errno.ENOTDIR,
        )
    is_own = (
        status.st_uid in (root.st_uid, 0) or status.st_gid == root.st_gid or status.st_uid == os.geteuid()
    )
    is_free_for_all = root.st_mode & stat.S_IWOTH  # with the sticky bit: no user owns it for the others
    if not is_own and not is_free_for_all:
        raise ForeignFileError(
            path=path,
            reason=f"it belongs to user id {status.st_uid}, group id {status.st_gid}, and the store to "
            f"user id {root.st_uid}, group id {root.st_gid}",
            remedy="move it away, or give it to the owner of the store: "
            f"chown -R {root.st_uid}:{root.st_gid} {path}",
        )


def _is_shared_with_us(status: os.stat_result) -> bool:
    return bool(status.st_mode & stat.S_IWGRP) and status.st_gid in (os.getegid(), *os.getgroups())


class DirectoryLease:
    """``flock`` on a directory: shared by the processes that use it, exclusive for one that removes it.

    The open descriptor also keeps the inode number of the directory from being given to another one, so that
    (device, inode) identifies it while it is in use.

    Attributes:
        fd: the descriptor; for calls made right after `open`, for the process may close it later, or fork.
        status: of the directory, when it was opened.
        device, inode: the identity of the directory.
    """

    __slots__ = ("device", "fd", "inode", "status")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.status: Final = os.fstat(fd)
        self.device: Final = self.status.st_dev
        self.inode: Final = self.status.st_ino

    @classmethod
    def open(cls, path: str) -> DirectoryLease:
        """Open ``path``, a canonical one."""
        return cls(descriptors.opening(f"cannot open {path}", nofollow.open_directory, path, os.O_RDONLY))

    @property
    def key(self) -> tuple[int, int]:
        return self.device, self.inode

    def try_shared(self) -> bool:
        """Show that this process uses the directory. False while another one removes it."""
        return self._try(fcntl.LOCK_SH)

    def try_exclusive(self) -> bool:
        """Whether this process is the only one that uses it; from then on no other one can. If not, a shared
        hold of this process is lost."""
        return self._try(fcntl.LOCK_EX)

    def _try(self, mode: int) -> bool:
        # ``flock`` converts the hold of this descriptor, and not atomically: a failed conversion to
        # exclusive has given the shared hold up.
        try:
            fcntl.flock(self.fd, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close the directory; in a forked child the parent's hold stays. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

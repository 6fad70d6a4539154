"""Where a version of Python and what the tests need are: an interpreter of this machine, or a root directory
with Debian's unstable packages."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

REPOSITORY = Path(__file__).resolve().parents[2]
MIRROR = "http://deb.debian.org/debian"
INSTALL = ("-m", "pip", "install", "--quiet", "--no-compile")
# Those that come with Python before 3.14 know no groups of dependencies.
PIP = ("--upgrade", "pip>=25.1")
WHAT = ("--editable", ".[spark,compression,crypto,cli]", "--group", "dev")
# What Spark needs is not among them, and neither is PostgreSQL: their tests are left out.
PACKAGES = ("ca-certificates", "g++", "gcc", "git", "libffi-dev", "make", "procps", "util-linux")


class Place(Protocol):
    """Runs programs with one version of Python."""

    def run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run Python in the repository; what it prints is shown, and returned."""
        ...


class Installed:
    """An interpreter of this machine, with a virtual environment of its own in the repository."""

    def __init__(self, python: str) -> None:
        path = shutil.which(os.path.expanduser(python))
        if path is None:
            sys.exit(f"there is no {python} on this machine; --debian makes a root that has one")
        asked = (path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
        answer = subprocess.run(asked, capture_output=True, text=True)
        if answer.returncode:
            # A shim of pyenv is there for versions that are installed but not chosen.
            sys.exit(f"{path} does not run; name an interpreter by its path:\n{answer.stderr}")
        version = answer.stdout.strip()
        self._python = REPOSITORY / f".venv-{version}" / "bin" / "python"
        stamp = self._python.parent / "installed"
        if not _is_newer(stamp):
            subprocess.run((path, "-m", "venv", str(self._python.parents[1])), check=True)
            for what in (PIP, WHAT):
                subprocess.run((str(self._python), *INSTALL, *what), cwd=REPOSITORY, check=True)
            stamp.touch()

    def run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run Python in the repository; what it prints is shown, and returned."""
        return _shown((str(self._python), *arguments), REPOSITORY)


class OtherUnix:
    """This interpreter by the rules of another Unix (`tests.support.other_unix`).

    A virtual environment of its own, which has all packages of the present one, loads the rules in every
    process that begins, whatever its environment is.
    """

    def __init__(self, profile: str, directory: Path | None = None) -> None:
        self.profile = profile
        top = directory or REPOSITORY / "build" / f"unix-{profile}"
        venv.EnvBuilder(symlinks=True, clear=True).create(top)
        self.python = top / "bin" / "python"
        place = Path(sysconfig.get_path("purelib", vars={"base": str(top)}))
        packages = sysconfig.get_path("purelib")
        (place / "0.pth").write_text(f"import site; site.addsitedir({packages!r})\n")
        rules = REPOSITORY / "tests" / "support" / "other_unix.py"
        start = (
            "import sys, importlib.util as u",
            f"s = u.spec_from_file_location('tests.support.other_unix', {str(rules)!r})",
            "m = sys.modules[s.name] = u.module_from_spec(s)",
            "s.loader.exec_module(m)",
            f"m.apply({profile!r})",
        )
        # The directory is read twice where it has a second name, as on Debian.
        once = f"exec({'; '.join(start)!r}) if 'tests.support.other_unix' not in sys.modules else None"
        (place / "1.pth").write_text(f"import sys; {once}\n")
        for script in Path(sys.executable).parent.iterdir():
            if not (top / "bin" / script.name).exists() and script.is_file():
                text = script.read_bytes().replace(os.fsencode(sys.executable), os.fsencode(self.python), 1)
                (top / "bin" / script.name).write_bytes(text)
                (top / "bin" / script.name).chmod(0o755)

    def run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run Python in the repository; what it prints is shown, and returned."""
        return _shown((str(self.python), *arguments), REPOSITORY)


class DebianRoot:
    """A root directory with Debian's unstable packages, made when it is not there.

    Needs root, and the program ``debootstrap``.

    The repository is at its own path inside. All mounts are those of the command that needs them: they end
    with it, however it ends.
    """

    def __init__(self, root: Path, version: str) -> None:
        if os.geteuid() != 0:
            sys.exit("only root may make a root directory and run programs in it; use sudo")
        if shutil.which("debootstrap") is None:
            sys.exit("debootstrap is missing: apt-get install debootstrap")
        self._root = root.resolve()
        self._python = f"/venvs/{version}/bin/python"
        if not (self._root / "made").exists():
            self._make()
        if not (self._root / f"usr/bin/python{version}").exists():
            self._install(f"python{version}", f"python{version}-venv", f"python{version}-dev")
        stamp = self._root / f"venvs/{version}/installed"
        if not _is_newer(stamp):
            self._inside(f"/usr/bin/python{version} -m venv /venvs/{version}").check_returncode()
            # Certificates and indexes of the machine's own configuration are not those of the root.
            command = shlex.join((self._python, *INSTALL, *WHAT))
            self._inside(f"env -u PIP_CERT -u PIP_FIND_LINKS {command}").check_returncode()
            stamp.touch()

    def run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run Python in the repository; what it prints is shown, and returned."""
        return self._inside(shlex.join((self._python, *arguments)))

    def _make(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ("debootstrap", "--variant=minbase", "sid", str(self._root), MIRROR), check=True, cwd="/"
        )
        # The release file of an archived mirror is out of date.
        options = 'Acquire::Check-Valid-Until "false";\nAPT::Install-Recommends "false";\n'
        (self._root / "etc/apt/apt.conf.d/99tests").write_text(options)
        self._install(*PACKAGES)
        (self._root / "venvs").mkdir(exist_ok=True)
        (self._root / "made").touch()

    def _install(self, *packages: str) -> None:
        install = f"DEBIAN_FRONTEND=noninteractive apt-get install -y -q {shlex.join(packages)}"
        self._inside(f"apt-get update -q && {install}").check_returncode()

    def _inside(self, command: str) -> subprocess.CompletedProcess[str]:
        root = shlex.quote(str(self._root))
        # The directory of Git is elsewhere in a second worktree.
        asked = ("git", "rev-parse", "--path-format=absolute", "--git-common-dir")
        common = subprocess.run(
            asked, capture_output=True, text=True, cwd=REPOSITORY, check=True
        ).stdout.strip()
        shared = [str(REPOSITORY)] + ([common] if Path(common).parent != REPOSITORY else [])
        mounts = [
            # A root is a mount point, as tests of file systems expect.
            f"mount --bind {root} {root}",
            f"mount -t proc proc {root}/proc",
            f"mount --rbind /dev {root}/dev",
            f"cp /etc/resolv.conf {root}/etc/resolv.conf",
        ]
        for path in map(shlex.quote, shared):
            mounts += [f"mkdir -p {root}{path}", f"mount --bind {path} {root}{path}"]
        inner = f"cd {shlex.quote(str(REPOSITORY))} && export PYTHONDONTWRITEBYTECODE=1 && {command}"
        script = " && ".join([*mounts, f"exec chroot {root} bash -c {shlex.quote(inner)}"])
        return _shown(("unshare", "--mount", "bash", "-c", script), Path("/"))


def _is_newer(stamp: Path) -> bool:
    """Whether what the tests need was installed since it changed."""
    project = REPOSITORY / "pyproject.toml"
    return stamp.exists() and stamp.stat().st_mtime >= project.stat().st_mtime


def _shown(command: Sequence[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a program and show what it prints as it comes; return it, too."""
    lines = []
    with subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return subprocess.CompletedProcess(command, process.returncode, "".join(lines))

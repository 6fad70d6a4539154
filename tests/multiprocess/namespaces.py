"""Commands that run a process in namespaces of its own, and why a test that needs them is skipped."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pytest

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def _allowed(command: list[str]) -> list[str]:
    try:
        answer = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare command")
    if answer.returncode:
        pytest.skip(f"this kernel, or user, has no such namespaces: {answer.stderr.strip()}")
    return command


def other_boot_id(directory: Path) -> list[str]:
    """A container that shows a boot id of its own; ``directory`` is for a file that says which."""
    path = directory / f"boot-{uuid.uuid4()}"
    path.write_text(f"{uuid.uuid4()}\n")
    script = f'mount --bind "{path}" {_BOOT_ID} && exec "$@"'
    return _allowed(["unshare", "--mount", "sh", "-c", script, "sh"])


def other_time(offset_s: int) -> list[str]:
    """A container whose monotonic clocks differ from the machine's by so many seconds."""
    return _allowed(["unshare", "--time", "--monotonic", str(offset_s), "--boottime", str(offset_s)])


def other_pids() -> list[str]:
    """A container with pids of its own; killed with its parent."""
    return _allowed(["unshare", "--pid", "--fork", "--kill-child=SIGKILL"])

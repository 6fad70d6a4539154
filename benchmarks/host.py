"""The machine and the versions a result was measured with."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "embeddedpulsar",
    "pulsar-client",
    "pyzmq",
    "redis",
    "nats-py",
    "lmdb",
    "persist-queue",
    "lmdb-queue",
    "localqueue",
    "honker",
    "nobroker",
    "pulsar-lite",
    "pyarrow",
    "pyspark",
)


def describe(place: Path) -> dict[str, Any]:
    """Host facts for the results file; `place` is where the data of the run lie."""
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "python": sys.version.split()[0],
        "filesystem": _filesystem(place),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "servers": {name: _first_line(name, "--version") for name in ("redis-server", "nats-server")},
        "commit": _first_line("git", "rev-parse", "--short", "HEAD"),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_line(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return None
    return done.stdout.partition("\n")[0].strip() or None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return platform.processor()
    return platform.processor()


def _filesystem(place: Path) -> str:
    best = ("", "unknown")
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return "unknown"
    for line in mounts:
        _device, where, kind = line.split()[:3]
        if str(place.resolve()).startswith(where) and len(where) > len(best[0]):
            best = (where, kind)
    return best[1]

"""A sample of the suite passes by the rules of other Unixes: see `tests.support.other_unix`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pythons.places import REPOSITORY, OtherUnix
from tests.pythons.runs import UNIX_SAMPLE
from tests.support.other_unix import DESCRIPTORS, PLATFORMS, PROFILES

pytestmark = pytest.mark.linux("what is taken away")


@pytest.mark.parametrize("profile", PROFILES)
def test_a_sample_passes(tmp_path: Path, profile: str):
    """Units of the platform, behaviour, several processes, and kills."""
    place = OtherUnix(profile, tmp_path / "python")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = [
        "-q",
        "--sample",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path / 'tests'}",
    ]
    done = subprocess.run(
        [place.python, "-m", "pytest", *options, *UNIX_SAMPLE],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("profile", PROFILES)
def test_every_process_is_one_of_it(tmp_path: Path, profile: str):
    """Also one with an empty environment that heeds no variables; this one stays as it is."""
    place = OtherUnix(profile, tmp_path)
    script = """if True:
        import os, resource, select, sys
        import embeddedpulsar as pulsar
        has = [hasattr(os, "memfd_create"), hasattr(select, "epoll"), bool(getattr(select, "kqueue", None))]
        print(sys.platform, *has, resource.getrlimit(resource.RLIMIT_NOFILE)[0], os.path.exists("/proc/self"))
        from embeddedpulsar._engine.platform import descriptors, doorbell
        from embeddedpulsar._engine.store import store_root
        print(descriptors._in_use() != "", doorbell._CAN_LOCK_FIFOS, store_root._places()[0])
    """
    done = subprocess.run(
        [place.python, "-I", "-c", script], env={}, capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    has_queue = profile != "plain"
    assert first.split() == [PLATFORMS[profile], "False", "False", str(has_queue), str(DESCRIPTORS), "True"]
    assert second.split() == ["True", "False", "/tmp"]
    assert sys.platform == "linux" and hasattr(os, "memfd_create")

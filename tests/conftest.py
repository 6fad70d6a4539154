"""Fixtures every test may use."""

from __future__ import annotations

import gc
import shutil
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import sample, slowest

ROOT = Path(__file__).resolve().parent.parent

# Folders and files whose tests take seconds.
LONG_FIRST = {
    *("crash", "docs", "extending", "property", "test_packaging.py", "test_tidy.py", "test_layering.py"),
    *("test_descriptor_budget.py", "test_non_persistent_killed.py", "test_read_only_stores.py"),
    *("test_backup_beside_processes.py", "test_namespaces.py", "test_unreadable_files.py"),
}

# One fixed profile, so that a run today and a run tomorrow draw the same examples; `make storm` draws more.
settings.register_profile(
    "fixed", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "storm", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")

# Started in the background by a shell, the tests inherit an ignored SIGINT, and so would every child they
# send a Ctrl-C to. A handler is not inherited: what is started from here on can be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the Makefile."""
    sample.add_option(parser)
    slowest.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """What they do."""
    slowest.configure(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take a sample, where one is asked for. Long tests come first, so that no worker is left with one at the
    end. Skip the tests marked `spark` where there is no Java, and those of what another system lacks."""
    sample.take(config, items)
    items.sort(key=lambda item: not LONG_FIRST & set(item.nodeid.partition("::")[0].split("/")))
    if sys.platform != "linux":
        for item in items:
            for mark in item.iter_markers("linux"):
                item.add_marker(pytest.mark.skip(reason=f"Linux alone has {mark.args[0]}"))
    if shutil.which("java") is None:
        for item in items:
            if "spark" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no java on the PATH"))


def pytest_collection_finish() -> None:
    """Take the modules and the tests, 200,000 objects, out of later garbage collections: many tests collect,
    to see that nothing is left, and each of those would take 0.2 s."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def project_root() -> Path:
    """The directory of the project."""
    return ROOT

"""The plug-in of pytest: fixtures for the tests of applications (docs/testing.md).

A top-level module that imports nothing of the library at load. pytest loads its plug-ins before a tool that
measures coverage starts, and in every run, also in those that use no fixture of this module.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from embeddedpulsar import Admin, Client
    from embeddedpulsar.testing import ManualClock

_KINDS = ("memory", "directory")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of the configuration file."""
    parser.addini(
        "pulsar_store", "where pulsar_store makes its stores: memory or directory", default="memory"
    )
    parser.addini(
        "patch_pulsar",
        "import pulsar gives embeddedpulsar in the whole run, so that modules of tests may import it",
        type="bool",
        default=False,
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and replace ``pulsar`` for the whole run if the configuration says so."""
    config.addinivalue_line(
        "markers",
        "pulsar_store(kind, **settings): the store of the test: memory or directory, and the settings of its "
        "broker.conf",
    )
    # For the whole run, since modules of tests import `pulsar` when they are collected, before any fixture.
    if config.getini("patch_pulsar"):
        from embeddedpulsar.testing import patched_pulsar

        patch = ExitStack()
        patch.enter_context(patched_pulsar())
        config.add_cleanup(patch.close)


@pytest.fixture
def pulsar_store(request: pytest.FixtureRequest) -> Iterator[str | Path]:
    """What a client of the store of this test is given: a URL, or the path of a directory.

    Where it lies is said by the marker ``pulsar_store``, or by the option of that name. After the test,
    clients that are still open are closed, and a directory is checked.
    """
    from embeddedpulsar.testing import trial_store

    # A fixture that is asked for in another order would replace the clock of a store that is open already.
    if "pulsar_clock" in request.fixturenames:
        request.getfixturevalue("pulsar_clock")  # in use before the store is opened
    kind, settings = _wanted(request)
    path = request.getfixturevalue("tmp_path") / "store" if kind == "directory" else None
    with trial_store(path, **settings) as store:
        yield store


def _wanted(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    marker = request.node.get_closest_marker("pulsar_store")
    settings = dict(marker.kwargs) if marker is not None else {}
    # The kind by name or by position, then the option of the configuration file.
    kind = settings.pop("kind", None) or (marker.args[0] if marker is not None and marker.args else None)
    if kind is None:
        kind = request.config.getini("pulsar_store")
    if kind not in _KINDS:
        raise pytest.UsageError(f"pulsar_store is {kind!r}; write one of {', '.join(_KINDS)}")
    return kind, settings


@pytest.fixture
def pulsar_client(pulsar_store: str | Path) -> Iterator[Client]:
    """A client of the store, closed after the test."""
    from embeddedpulsar import Client

    client = Client(pulsar_store)
    yield client
    # Not `close`, which raises if the test has closed the client itself.
    client.shutdown()


@pytest.fixture
def pulsar_admin(pulsar_store: str | Path) -> Iterator[Admin]:
    """An administrator of the store, closed after the test."""
    from embeddedpulsar import Admin

    with Admin(pulsar_store) as admin:
        yield admin


@pytest.fixture
def pulsar_clock() -> Iterator[ManualClock]:
    """The clock of the store, which stands still until the test calls ``advance``.

    Delays, acknowledgement timeouts, retention and times to live of hours are over at once.
    """
    from embeddedpulsar.testing import ManualClock

    with ExitStack() as in_use:
        yield in_use.enter_context(ManualClock())


@pytest.fixture
def patch_pulsar(pulsar_store: str | Path) -> Iterator[Any]:
    """``import pulsar`` gives embeddedpulsar, and clients of ``pulsar://...`` open the store of this test."""
    from embeddedpulsar.testing import patched_pulsar

    with patched_pulsar(pulsar_store) as module:
        yield module

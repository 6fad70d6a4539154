"""Commands, run in this process."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar.cli.main import main


@pytest.fixture
def call(
    store: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command on the store of the test; returns the status, the output and the error output."""

    def run(*arguments: str, typed: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed)))
        status = main(["--store", str(store), *arguments])
        out, err = capfd.readouterr()
        return status, out, err

    return run

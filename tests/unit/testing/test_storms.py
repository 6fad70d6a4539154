"""The command line of the storms."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar.testing import power_loss, storms


@pytest.mark.parametrize("arguments", [["power-loss", "--images", "20"], ["corruption", "--cases", "4"]])
def test_storms_run_and_clean_up(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A report, status 0, an empty workspace."""
    assert storms.main(["--workspace", str(tmp_path), "--quiet", *arguments]) == 0
    assert "0 violations" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_violations_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Each line, and status 1."""
    found = power_loss.Summary(1, 2, 3, 4, ["seed 7, crash 1: something is wrong"])
    monkeypatch.setattr(power_loss, "storm", lambda *_, **__: found)
    assert storms.main(["--workspace", str(tmp_path), "power-loss"]) == 1
    assert "seed 7" in capsys.readouterr().out

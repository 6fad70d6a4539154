"""The page about tests of applications is a test module that passes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.test_docs import script_of
from tests.source_tree import ROOT
from tests.support.plug_in import PLUG_IN, PYTHONPATH


def test_the_tests_of_the_page_pass(tmp_path: Path):
    """As the page says: saved as a test module, run by pytest, in a folder of its own."""
    module = tmp_path / "test_kitchen.py"
    module.write_text(script_of(ROOT / "docs" / "testing.md"), "utf-8")
    tests = module.read_text("utf-8").count("\ndef test_")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *PLUG_IN,
            "-q",
            "-W",
            "error",
            "-p",
            "no:cacheprovider",
            "test_kitchen.py",
        ],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=PYTHONPATH),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert f"{tests} passed" in done.stdout

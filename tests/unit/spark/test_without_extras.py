"""Missing packages: the error has the command, and nothing is imported that was not asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
"""


def run(code: str, *hidden: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter in which packages cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", HIDE.format(hidden=set(hidden) or "()") + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("code", "hidden", "command"),
    [
        ("import embeddedpulsar.arrow as a; a.read_topic('x', 't')", "pyarrow", "embeddedpulsar[arrow]"),
        ("import embeddedpulsar.arrow as a; a.scan_topic('x', 't')", "pyarrow", "embeddedpulsar[arrow]"),
        ("import embeddedpulsar.spark as s; s.register(None)", "pyspark", "embeddedpulsar[spark]"),
    ],
)
def test_a_missing_package_is_named_with_its_command(code, hidden, command):
    """The ImportError can be copied into a shell."""
    done = run(code, hidden)
    assert f'pip install "{command}"' in done.stderr


def test_discovery_never_fails():
    """Spark imports the discovery module in every session; without its needs it offers nothing, quietly."""
    code = "import pyspark_embeddedpulsar as d; assert not hasattr(d, 'DefaultSource'); print(d.UNAVAILABLE)"
    done = run(code, "pyspark")
    assert done.returncode == 0, done.stderr
    assert "pip install" in done.stdout


@pytest.mark.parametrize("module", ["embeddedpulsar.arrow", "embeddedpulsar.spark"])
def test_importing_the_package_imports_no_extra(module):
    """pyarrow, pyspark and pandas are loaded when something is read, not before; pandas never."""
    done = run(f"import {module}, sys; assert not {{'pyarrow', 'pyspark', 'pandas'}} & sys.modules.keys()")
    assert done.returncode == 0, done.stderr


def test_pandas_is_not_needed(tmp_path):
    """A topic is read where pandas and numpy do not exist."""
    code = f"""
import embeddedpulsar.arrow as a
from pathlib import Path
from embeddedpulsar._engine.format.entry import ProducerPrefix, encode_plain
from tests.support.log_files import LogFiles
log = LogFiles(Path({str(tmp_path)!r}))
log.append(encode_plain([b"a", b"b"], 0, ProducerPrefix("p")), 1_000_000)
log.finish()
assert a.read_topic({str(tmp_path)!r}, "t").num_rows == 2
"""
    done = run(code, "pandas", "numpy")
    assert done.returncode == 0, done.stderr

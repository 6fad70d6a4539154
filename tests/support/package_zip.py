"""The package as one zip, and a Python that has nothing of the project installed."""

from __future__ import annotations

import os
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

from tests.conftest import ROOT

NEEDED = "pyarrow", "pyspark", "py4j", "lz4", "mmh3", "msgpack", "portalocker", "sortedcontainers"
"""What programs and workers of Spark need beside the zip."""


def package_zip(folder: Path) -> Path:
    """Make ``embeddedpulsar.zip`` of the sources, as for ``--py-files``."""
    path = folder / "embeddedpulsar.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for source in sorted((ROOT / "embeddedpulsar").rglob("*.py")):
            archive.write(source, source.relative_to(ROOT))
    return path


def _installed_in(name: str) -> Path:
    """The folder that has a package: of this environment, or one that a ``.pth`` names."""
    spec = find_spec(name)
    assert spec is not None and spec.origin is not None, f"{name} is not installed"
    return Path(spec.origin).parents[1 if spec.submodule_search_locations else 0]


def bare_python(folder: Path) -> Path:
    """Make a program that runs this Python with `NEEDED`, and with no other package."""
    libraries = folder / "libraries"
    libraries.mkdir()
    for installed in {_installed_in(name) for name in NEEDED}:
        for each in installed.iterdir():
            if each.name.partition(".")[0] in NEEDED and not (libraries / each.name).exists():
                (libraries / each.name).symlink_to(each)
    program = folder / "bare-python"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{libraries}" exec {os.path.realpath(sys.executable)} -S "$@"\n'
    )
    program.chmod(0o755)
    return program

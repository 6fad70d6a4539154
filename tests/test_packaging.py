"""The two packaging files agree with the tree and with each other."""

from __future__ import annotations

import configparser
import re
import tomllib

import embeddedpulsar
from tests.source_tree import PACKAGE, ROOT, module_name

EXTRA = re.compile(r"embeddedpulsar\[([a-z0-9]+)\]")


def project() -> dict:
    """The `[project]` table."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_every_package_is_listed():
    """setup.cfg lists each package of the tree: a folder left out would be missing from the wheel."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    listed = set(config["options"]["packages"].split())
    found = {module_name(path) for path in PACKAGE.rglob("__init__.py") if "_discovery" not in path.parts}
    assert listed == found | {"embeddedpulsar_pytest", "pyspark_embeddedpulsar"}


def test_the_plug_in_of_pytest_is_declared():
    """pytest finds the plug-in by its entry point, which names a module of the wheel."""
    assert project()["entry-points"]["pytest11"] == {"embeddedpulsar": "embeddedpulsar_pytest"}


def test_every_extra_that_is_named_exists():
    """A message that tells the user to install an extra names one that exists."""
    extras = set(project()["optional-dependencies"])
    named = {
        extra for path in PACKAGE.rglob("*.py") for extra in EXTRA.findall(path.read_text("utf-8"))
    } | set(EXTRA.findall((ROOT / "README.md").read_text("utf-8")))
    assert named <= extras


def test_the_version_is_the_one_of_the_changelog():
    """The changelog speaks of the version of the package."""
    assert f"## {embeddedpulsar.__version__}" in (ROOT / "docs/changelog.md").read_text("utf-8")

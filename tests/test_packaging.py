"""The packaging files agree with the tree and with each other, and what is built of them is whole."""

from __future__ import annotations

import configparser
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import embeddedpulsar
from tests.source_tree import PACKAGE, ROOT, module_name

EXTRA = re.compile(r"embeddedpulsar\[([a-z0-9]+)\]")


def project() -> dict:
    """The `[project]` table."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and a source archive, built of a copy of the tree as a packager has it."""
    release = importlib.metadata.version("setuptools") if importlib.util.find_spec("setuptools") else "0"
    if int(release.partition(".")[0]) < 77:
        pytest.skip("the tree is built with setuptools 77 or later")
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("built")
    copy_tree(tree)
    build(tree, out, "wheel", "sdist")
    return out


def copy_tree(target: Path) -> None:
    """Copy what belongs to the project: what git knows, or, in a source archive, what is there."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode or not listed.stdout:
        ignored = shutil.ignore_patterns("__pycache__", ".*cache", "*.egg-info")
        shutil.copytree(ROOT, target, dirs_exist_ok=True, ignore=ignored)
        return
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)


def build(tree: Path, out: Path, *kinds: str) -> None:
    """Build a wheel, a source archive or both with what pyproject.toml names as the backend."""
    for kind in kinds:
        code = f"import setuptools.build_meta as backend; backend.build_{kind}({str(out)!r})"
        subprocess.run([sys.executable, "-c", code], cwd=tree, check=True, capture_output=True, timeout=240)


def unpacked(folder: Path, target: Path) -> Path:
    """The tree of the source archive in a folder."""
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(target / "unpacked", filter="data")
    (tree,) = (target / "unpacked").iterdir()
    return tree


def names_in_wheel(folder: Path) -> set[str]:
    """The files of the wheel in a folder."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_package_is_listed():
    """setup.cfg lists each package of the tree: a folder left out would be missing from the wheel."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    listed = set(config["options"]["packages"].split())
    found = {module_name(path) for path in PACKAGE.rglob("__init__.py")}
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


def test_all_has_every_extra_but_spark():
    """`embeddedpulsar[all]` names the others; Spark is 450 MB and needs Java."""
    extras = project()["optional-dependencies"]
    named = {extra for need in extras["all"] for extra in need.partition("[")[2].rstrip("]").split(",")}
    assert named == extras.keys() - {"all", "spark"}


def test_the_wheel_has_the_package_and_nothing_else(built: Path):
    """Every module and every data file of the three packages, and no tests, pages or programs of the tree."""
    names = {name for name in names_in_wheel(built) if ".dist-info/" not in name}
    packages = [PACKAGE, ROOT / "embeddedpulsar_pytest", ROOT / "pyspark_embeddedpulsar"]
    expected = {
        str(path.relative_to(ROOT))
        for package in packages
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == expected
    assert "embeddedpulsar/py.typed" in names
    assert {PurePosixPath(name).parts[0] for name in names} == {package.name for package in packages}


def test_the_wheel_says_what_it_is(built: Path):
    """Name, needs, extras, entry points and the license are in its metadata; it fits every machine."""
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"embeddedpulsar-{embeddedpulsar.__version__}-py3-none-any.whl"
    (info,) = importlib.metadata.distributions(name="embeddedpulsar", path=[str(wheel)])
    needs = info.requires or []
    assert sorted(need for need in needs if "extra ==" not in need) == sorted(project()["dependencies"])
    assert set(info.metadata.get_all("Provides-Extra") or ()) == project()["optional-dependencies"].keys()
    groups = {"console_scripts": project()["scripts"], **project()["entry-points"]}
    assert {(point.group, point.name, point.value) for point in info.entry_points} == {
        (group, name, value) for group, points in groups.items() for name, value in points.items()
    }
    assert {"console_scripts", "opentelemetry_instrumentor", "pytest11"} <= groups.keys()
    assert info.metadata["License-Expression"] == "Apache-2.0"
    assert any(name.endswith("licenses/LICENSE") for name in names_in_wheel(built))
    # An index shows it, so it must have a text; the texts of the links are checked elsewhere.
    assert info.metadata["Description-Content-Type"] == "text/markdown"


def test_the_source_archive_is_the_tree(built: Path, tmp_path: Path):
    """It has all that the tests and pages need, and the wheel that is built of it has the same files."""
    tree = unpacked(built, tmp_path)
    own = {"PKG-INFO", "setup.cfg", "embeddedpulsar.egg-info"}
    copied = tmp_path / "copied"
    copy_tree(copied)
    expected = {str(path.relative_to(copied)) for path in copied.rglob("*") if path.is_file()}
    present = {
        str(path.relative_to(tree))
        for path in tree.rglob("*")
        if path.is_file() and path.relative_to(tree).parts[0] not in own
    }
    assert present == {
        name for name in expected if name.partition("/")[0] not in own | {".git-blame-ignore-revs"}
    }
    out = tmp_path / "out"
    out.mkdir()
    build(tree, out, "wheel")
    assert names_in_wheel(out) == names_in_wheel(built)


@pytest.mark.slow
def test_the_source_archive_passes_its_tests(built: Path, tmp_path: Path):
    """A packager runs the unit tests of the unpacked archive, without git and without installing it."""
    tree = unpacked(built, tmp_path)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "not slow",
        "tests/unit",
        "tests/test_layering.py",
    ]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:]


def test_an_editable_install_is_the_root_on_the_path():
    """`pip install -e .` alone: Spark lists the modules on the path, which it reads from folders. A hook that
    finds modules by their names, as setuptools makes for other layouts, would hide the data source."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    assert config["options"]["package_dir"].split() == ["=", "."]
    for name in ("embeddedpulsar_pytest", "pyspark_embeddedpulsar"):
        assert (ROOT / name / "__init__.py").is_file()


def test_the_core_is_small(built: Path):
    """The package and what it needs, without extras and without bytecode: less than 20 MB on the disk, of 5
    other distributions."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        size = sum(member.file_size for member in archive.infolist())
    names = [re.split(r"[<>=]", need)[0] for need in project()["dependencies"]]
    for name in names:
        files = importlib.metadata.files(name) or []
        size += sum(
            file.locate().stat().st_size
            for file in files
            if file.suffix != ".pyc" and file.locate().is_file()
        )
    assert len(names) <= 5
    assert size < 20_000_000


def test_the_version_is_in_the_citation():
    """CITATION.cff names the release."""
    assert f"version: {embeddedpulsar.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")

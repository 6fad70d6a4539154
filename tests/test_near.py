"""`tests.near` finds the tests of a module by what they name and by words."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import near
from tests.source_tree import ROOT, python_files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two rooms, and tests of each kind."""
    files = {
        "embeddedpulsar/__init__.py": "",
        "embeddedpulsar/log/__init__.py": "",
        "embeddedpulsar/log/trimming.py": '"""What is given back of a log."""\n',
        "embeddedpulsar/log/chores.py": "from embeddedpulsar.log import trimming\n",
        "embeddedpulsar/log/late.py": "def run():\n    from embeddedpulsar.log import trimming\n",
        "embeddedpulsar/codec.py": "",
        "tests/conftest.py": "from embeddedpulsar.log import trimming\n",
        "tests/support/sites.py": "from embeddedpulsar.log.trimming import Trimmer\n",
        "tests/unit/log/test_trimming.py": "from embeddedpulsar.log.trimming import Trimmer\n",
        "tests/unit/log/test_chores.py": "from embeddedpulsar.log import (\n    chores,\n    segment,\n)\n",
        "tests/unit/log/test_patched.py": 'patch("embeddedpulsar.log.trimming.Trimmer.run")\n',
        "tests/unit/log/test_by_helper.py": "from tests.support.sites import Site\n",
        "tests/unit/test_codec.py": "import embeddedpulsar.codec\n",
        "tests/crash/test_trim_kills.py": "from embeddedpulsar.log import trimming\n",
        "tests/conformance/retention/test_trimmed.py": "from embeddedpulsar import Client\n",
        "tests/conformance/retention/test_ages.py": "from embeddedpulsar import Client\n",
        "tests/test_sources.py": "from embeddedpulsar.log import trimming\n",
    } | {f"tests/unit/other/test_{letter}.py": "" for letter in "abcdefghijkl"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def names(tests: list[Path]) -> list[str]:
    """The names of test files, without what all have."""
    return [test.stem.removeprefix("test_") for test in tests]


def test_who_names_a_module_is_near(tree: Path) -> None:
    """By an import or in a string, itself before what names it; what kills processes comes last of them."""
    nearest = near.NearTests(tree).of(Path("embeddedpulsar/log/trimming.py"), limit=12)
    assert names(nearest) == ["trimming", "patched", "by_helper", "chores", "trim_kills", "trimmed"]


def test_a_helper_of_tests_leads_to_its_users(tree: Path) -> None:
    """A change of what tests share is tried by those that use it."""
    assert names(near.NearTests(tree).of(Path("tests/support/sites.py"), limit=12)) == ["by_helper"]


def test_a_test_is_near_to_itself(tree: Path) -> None:
    """It is run, and nothing else."""
    test = Path("tests/unit/test_codec.py")
    assert near.NearTests(tree).of(test, limit=12) == [test]


def test_a_quarter_is_for_tests_of_behaviour(tree: Path) -> None:
    """However many name the module."""
    nearest = near.NearTests(tree).of(Path("embeddedpulsar/log/trimming.py"), limit=4)
    assert names(nearest) == ["trimming", "patched", "by_helper", "trimmed"]


def test_what_git_says_is_changed(tree: Path) -> None:
    """Changed and new files count, removed ones and other kinds of files do not."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], cwd=tree, check=True)
    assert near.changed_files(tree) == []
    (tree / "embeddedpulsar/codec.py").write_text("changed = True\n")
    (tree / "embeddedpulsar/log/chores.py").unlink()
    (tree / "tests/unit/test_new.py").write_text("")
    (tree / "tests/notes.txt").write_text("")
    assert near.changed_files(tree) == [Path("embeddedpulsar/codec.py"), Path("tests/unit/test_new.py")]


def test_modules_have_tests_near_them() -> None:
    """All but a few of the package: what everybody uses has many, and is near to none by words."""
    tests = near.NearTests()
    lonely = [path for path in python_files() if not tests.of(path.relative_to(ROOT), limit=12)]
    assert len(lonely) <= len(python_files()) // 50, lonely


def test_the_command_lists(capsys: pytest.CaptureFixture[str]) -> None:
    """And tells a file that is not there from one without tests."""
    assert near.main(["--list", str(ROOT / "tests" / "test_near.py")]) == 0
    assert capsys.readouterr().out == "tests/test_near.py\n"
    with pytest.raises(SystemExit):
        near.main(["--list", str(ROOT / "embeddedpulsar" / "no_such_module.py")])
    assert "no_such_module.py" in capsys.readouterr().err

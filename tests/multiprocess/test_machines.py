"""Small and odd machines, those that take little time; `python -m tests.machines` tries all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machines.places import MACHINES, CannotBeMadeError

QUICK = ("data", "shared-memory", "read-only", "bare", "ext4")
_MORE = {
    "pages-4-and-64": ((), ("--page-size", "64"), ()),
    "one-core": (("--cores", "1", "--stack", "256"),),
}


def run(name: str, directory: Path) -> str:
    """Run the program on the machine, or skip the test with the reason."""
    try:
        return MACHINES[name].run(directory)
    except CannotBeMadeError as e:
        pytest.skip(str(e))


@pytest.mark.parametrize("name", QUICK)
def test_what_runs_everywhere(tmp_path: Path, name: str):
    """Topics are written and read, killed processes lose nothing that they were told is stored, and what
    cannot be done is an error that says what to do."""
    assert "messages" in run(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MACHINES if name not in QUICK])
def test_what_takes_longer(tmp_path: Path, name: str):
    """The other machines."""
    assert "messages" in run(name, tmp_path)


@pytest.mark.parametrize("name", _MORE)
def test_a_store_goes_from_one_to_the_other(tmp_path: Path, name: str):
    """A store that was made with pages of 4 KiB is used with pages of 64 KiB, and back."""
    for options in _MORE[name]:
        assert "messages" in MACHINES["one-core"]._replace(options=options).run(tmp_path)


@pytest.mark.parametrize(("mib", "is_enough"), [(300, False), (1024, True)])
def test_address_space(tmp_path: Path, mib: int, is_enough: bool):
    """A ledger is mapped as a whole: 64 MiB of address space each. The error names the setting for less."""
    machine = MACHINES["address-space"]._replace(options=("--address-space", str(mib)))
    if is_enough:
        machine.run(tmp_path)
        return
    with pytest.raises(AssertionError, match=r"DescriptorLimitError.*managedLedgerMaxSizePerLedgerMbytes"):
        machine.run(tmp_path)

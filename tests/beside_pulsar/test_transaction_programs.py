"""Random programs of transactions, and what Pulsar answered; with a broker beside where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.beside_pulsar.transaction_programs import (
    differences,
    is_pulsar_here,
    program_of,
    read_answers,
    run_with_pulsar,
    run_with_store,
)

PARTS = 4
RECORDED = read_answers()


@pytest.mark.parametrize("part", range(PARTS))
def test_answers_are_those_of_pulsar(part: int, tmp_path: Path):
    """What is received, errors, states and last ids, of programs that were recorded."""
    unlike = []
    for number, (program, answers) in enumerate(RECORDED[part::PARTS]):
        found = differences(program, answers, run_with_store(program, tmp_path / f"store-{number}"))
        unlike += [f"program {number * PARTS + part}, {program[0]}, line {found[0]}"] if found else []
    assert not unlike, "\n".join([f"{len(unlike)} differ", *unlike[:5]])


@pytest.mark.slow
@pytest.mark.skipif(not is_pulsar_here(), reason="needs a JDK and the jars of benchmarks/peers/pulsar.sh")
def test_answers_are_those_of_a_broker(tmp_path: Path):
    """The same, of new programs, with a broker that runs beside."""
    programs = [program_of(seed) for seed in range(10_000, 10_024)]
    for number, (program, answers) in enumerate(
        zip(programs, run_with_pulsar(programs, tmp_path), strict=True)
    ):
        assert not differences(program, answers, run_with_store(program, tmp_path / f"store-{number}"))

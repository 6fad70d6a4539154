"""An instance that is killed at any step of a commit: each input is counted once, and published once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Client, Function, InitialPosition, MessageId
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.functions import FunctionConfig, LocalRunner, ProcessingGuarantees
from embeddedpulsar.functions.state import read_state
from embeddedpulsar.testing import assert_clean
from tests.children import die_at

POINTS = [name for name in failpoints.names() if name.startswith("function:")]
INPUTS = 250
"""More than two commits."""


class Tally(Function):
    """Publishes what differs from run to run."""

    runs = 0

    def process(self, input: Any, context: Any) -> str:
        """Count an input."""
        Tally.runs += 1
        context.incr_counter("all", 1)
        for index in range(2):
            context.publish("aside", f"{input} {Tally.runs} {index}")
        return f"{input} {Tally.runs}"


def process_all(
    root: Path, first_run: int, guarantee: ProcessingGuarantees = ProcessingGuarantees.EFFECTIVELY_ONCE
) -> None:
    """Run the function over everything that is there, as a process of its own does."""
    Tally.runs = first_run
    config = FunctionConfig(
        inputs=["in"],
        output="out",
        processing_guarantees=guarantee,
        subscription_position=InitialPosition.Earliest,
    )
    with LocalRunner(config, Tally, root) as runner:
        runner.run_until_idle()


def texts(client: Client, topic: str) -> list[list[str]]:
    """The words of each message of a topic."""
    with client.create_reader(topic, MessageId.earliest) as reader:
        return [one.data().decode().split() for one in reader]


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("step", POINTS)
def test_an_instance_that_is_killed_counts_each_input_once(step: str, nth: int, tmp_path: Path):
    """At each step of the first and the second commit; the next instance goes on, and settles."""
    root = tmp_path / "store"
    with Client(root) as client:
        client.create_producer("in").send_many([b"%d" % number for number in range(INPUTS)])
    assert die_at(step, lambda: process_all(root, 0), nth)
    process_all(root, 10_000)
    with Client(root) as client:
        outputs, aside = texts(client, "out"), texts(client, "aside")
        table = read_state(client, "public/default/Tally")
    assert [int(one[0]) for one in outputs] == list(range(INPUTS))
    assert aside == [[*one, str(index)] for one in outputs for index in range(2)]
    assert (table.value("all"), table.pending) == (INPUTS, None)
    assert_clean(root)


def test_a_killed_instance_is_settled_without_another_message(tmp_path: Path):
    """The next instance publishes what is committed when it starts, although nothing is left to process."""
    root = tmp_path / "store"
    with Client(root) as client:
        client.create_producer("in").send(b"0")
    assert die_at("function:committed", lambda: process_all(root, 0))
    with Client(root) as client:
        assert texts(client, "out") == []
    process_all(root, 10_000)
    with Client(root) as client:
        assert texts(client, "out") == [["0", "1"]]
        assert texts(client, "aside") == [["0", "1", "0"], ["0", "1", "1"]]
    assert_clean(root)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("step", ["function:processed", "function:committed"])
def test_at_least_once_loses_no_change_of_the_state(step: str, nth: int, tmp_path: Path):
    """Messages are acknowledged when what they changed is stored: some may be counted again, none is lost."""
    root, guarantee = tmp_path / "store", ProcessingGuarantees.ATLEAST_ONCE
    with Client(root) as client:
        client.create_producer("in").send_many([b"%d" % number for number in range(INPUTS)])
    assert die_at(step, lambda: process_all(root, 0, guarantee), nth)
    process_all(root, 10_000, guarantee)
    with Client(root) as client:
        outputs = texts(client, "out")
        count = read_state(client, "public/default/Tally").value("all")
    assert {int(one[0]) for one in outputs} == set(range(INPUTS))
    assert isinstance(count, int)
    assert count == INPUTS if (step, nth) == ("function:processed", 1) else count >= INPUTS
    assert_clean(root)

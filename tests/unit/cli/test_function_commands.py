"""``embeddedpulsar functions``: the commands that need no worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Client, InitialPosition
from embeddedpulsar.cli.main import main
from embeddedpulsar.functions import FunctionConfig, LocalRunner
from embeddedpulsar.testing.trial_store import assert_clean

Call = Callable[..., tuple[int, str, str]]
CODE = """
class Shout:
    def process(self, input, context):
        context.incr_counter("all", 1)
        context.record_metric("size", len(input))
        return input.upper()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with a function."""
    path = tmp_path / "shouting.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def call(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """Runs a command on a store; returns the status, the output and the error output."""
    root = tmp_path / "store"
    Client(root).close()

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["--store", str(root), "functions", *arguments])
        out, err = capfd.readouterr()
        return status, out, err

    yield run
    assert_clean(root)


def test_a_file_decides_over_the_defaults_of_options(call: Call, file: Path, tmp_path: Path):
    """Tenant and namespace, too; what is given as an option comes before it."""
    path = tmp_path / "config.json"
    fields = {
        "className": "shouting.Shout",
        "py": str(file),
        "inputs": ["a"],
        "tenant": "t",
        "namespace": "n",
    }
    path.write_text(json.dumps(fields | {"output": None}))
    assert call("create", "--function-config-file", str(path))[0] == 0
    assert call("create", "--function-config-file", str(path), "--namespace", "m")[0] == 0
    for namespace in "nm":
        assert "Shout" in call("list", "--tenant", "t", "--namespace", namespace)[1]


def test_a_function_from_creation_to_deletion(call: Call, file: Path, tmp_path: Path):
    """With the verbs and options of pulsar-admin."""
    options = ["--py", str(file), "--classname", "shouting.Shout", "--inputs", "a,b", "-o", "out"]
    more = ["--user-config", '{"x": 1}', "--subs-position", "Earliest", "--parallelism", "2"]
    assert call("create", *options, *more)[0] == 0
    assert call("create", *options) == (1, "", call("create", *options)[2])
    assert call("list", "--json")[1].split() == ["[", '"Shout"', "]"]
    found = json.loads(call("get", "--name", "Shout")[1])
    assert found["inputs"] == ["persistent://public/default/a", "persistent://public/default/b"]
    assert (found["userConfig"], found["parallelism"], found["py"]) == ({"x": 1}, 2, str(file))
    assert "Shout" in call("list")[1]
    status = json.loads(call("status", "--fqfn", "public/default/Shout", "--json")[1])
    assert (status["numInstances"], status["numRunning"], status["supervisorAttached"]) == (2, 0, False)
    assert "0 of 2 instances run; supervisor not attached" in call("status", "--name", "Shout")[1]
    assert call("update", *options, "--log-topic", "logs")[0] == 0
    assert json.loads(call("get", "--name", "Shout")[1])["parallelism"] == 1
    for verb in ("stop", "start", "restart"):
        assert call(verb, "--name", "Shout")[0] == 0
    assert call("delete", "--name", "Shout", "--dry-run")[1].startswith("would delete")
    assert call("delete", "--name", "Shout", "--yes")[0] == 0
    assert json.loads(call("list", "--json")[1]) == []
    assert "no function" in call("get", "--name", "Shout")[2]


def test_figures_and_state(call: Call, file: Path, tmp_path: Path):
    """What the workers counted, and what the function keeps."""
    call("create", "--py", str(file), "--classname", "shouting.Shout", "-i", "in")
    config = FunctionConfig(
        "shouting.Shout", py=str(file), inputs=["in"], subscription_position=InitialPosition.Earliest
    )
    with Client(tmp_path / "store") as client, LocalRunner(config, client=client) as runner:
        client.create_producer("in").send(b"tea")
        assert runner.run_until_idle() == 1
    stats = json.loads(call("stats", "--name", "Shout", "--json")[1])
    assert stats["processedSuccessfullyTotal"] == 1
    out = call("stats", "--name", "Shout")[1]
    assert "received total" in out
    assert '"count": 1' in out
    assert json.loads(call("querystate", "--name", "Shout", "-k", "all")[1]) == {
        "key": "all",
        "numberValue": 1,
    }
    assert call("querystate", "--name", "Shout", "-k", "none")[0] == 1


def test_trigger(call: Call, file: Path, tmp_path: Path):
    """What the function returns is shown; without a worker the command says what to start."""
    call("create", "--py", str(file), "--classname", "shouting.Shout", "-i", "in", "-o", "out")
    command = ["trigger", "--name", "Shout", "--trigger-value", "tea"]
    assert "functions run" in call(*command)[2]
    config = FunctionConfig("shouting.Shout", py=str(file), inputs=["in"], output="out")
    with Client(tmp_path / "store") as client:
        runner = LocalRunner(config, client=client)
        worker = threading.Thread(target=runner.run)
        worker.start()
        assert call(*command) == (0, "TEA\n", "")
        runner.stop()
        worker.join()


def test_a_configuration_file(call: Call, file: Path, tmp_path: Path):
    """Options come before it; windows and guarantees have options of their own."""
    path = tmp_path / "function.json"
    path.write_text(
        json.dumps({"className": "shouting.Shout", "py": str(file), "inputs": ["in"], "name": "a"})
    )
    window = ["--window-length-count", "10", "--sliding-interval-count", "5"]
    guarantee = ["--processing-guarantees", "ATMOST_ONCE"]
    assert call("create", "--function-config-file", str(path), "--name", "b", *window, *guarantee)[0] == 0
    found = json.loads(call("get", "--name", "b")[1])
    assert found["windowConfig"] == {"windowLengthCount": 10, "slidingIntervalCount": 5}
    assert found["processingGuarantees"] == "ATMOST_ONCE"


def test_wrong_command_lines(call: Call, file: Path):
    """They say what is missing."""
    assert call("get") == (2, "", call("get")[2])
    assert "--fqfn" in call("status", "--fqfn", "a/b")[2]
    assert "has no input" in call("create", "--py", str(file), "--classname", "shouting.Shout")[2]
    assert "there is no file" in call("create", "--py", "none.py", "--classname", "none.X", "-i", "in")[2]

"""A policy of topics is one value, which store and documents take as they take their own.

A policy with settings, methods and verbs is a row of the table, and the code that enforces it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Client
from embeddedpulsar._engine.store.policies.policy import ChangingTopic, TopicPolicy
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration, TopicNotFound
from embeddedpulsar.testing.trial_store import assert_clean
from tests.support.write_policies import ROOT

told: list[tuple[str, int]] = []


def packed(seconds: int) -> str:
    if seconds < 0:
        raise InvalidConfiguration(f"{seconds} seconds")
    return f"{seconds}s"


def unpacked(form: object) -> int:
    try:
        return int(str(form).removesuffix("s"))
    except ValueError as e:
        raise CorruptionError(reason=f"a time to live that is none: {form!r}") from e


def tell(topic: ChangingTopic, seconds: int) -> None:
    told.append((topic.name.rsplit("/", 1)[1], seconds))


TTL = TopicPolicy[int](
    "messageTTL", lambda settings, own: settings.ttlDurationDefaultInSeconds, packed, unpacked, tell
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    told.clear()
    with Client(tmp_path) as client:
        store = client._core.store
        store.topics.create_partitioned("parts", 2)
        for name in ("orders", "parts-partition-0"):
            client.create_producer(name).close()
        yield store
    assert_clean(tmp_path)


def test_the_nearest_level_decides(store: Store):
    """Partition, topic, namespace, broker.conf."""
    assert store.policy("parts-partition-0", TTL) == 0
    for name, seconds in (("public/default", 5), ("parts", 6), ("parts-partition-0", 7)):
        store.set_policy(name, TTL, seconds)
        assert store.own_policy(name, TTL) == store.policy("parts-partition-0", TTL) == seconds
    assert store.own_policy("orders", TTL) is None
    assert store.policy("orders", TTL) == store.policy("public/default", TTL) == 5
    store.set_policy("public/default", TTL, None)
    assert store.policy("orders", TTL) == 0


def test_topics_that_are_there_are_changed_at_once(store: Store):
    """Each with the value that holds for it."""
    store.set_policy("orders", TTL, 3)
    store.set_policy("public/default", TTL, 9)
    assert told == [("orders", 3), ("orders", 3), ("parts-partition-0", 9)]


def test_values_that_make_no_sense_are_refused(store: Store):
    """Before anything is written, as is a topic that does not exist."""
    with pytest.raises(InvalidConfiguration):
        store.set_policy("orders", TTL, -1)
    with pytest.raises(TopicNotFound):
        store.set_policy("no such topic", TTL, 1)
    assert store.own_policy("orders", TTL) is None and told == []


# -- a new row -----------------------------------------------------------------------------------------------

ROW = """
CLOSED_TO_CONSUMERS: Final = switch_policy(
    "closedToConsumers",
    Setting("topicsClosedToConsumers", False, note="not in Pulsar"),
    title="new consumers are refused",
    otherwise="accepted",
    calls=(
        Calls(
            BOTH,
            "closed_to_consumers",
            "whether new consumers are refused with `NotAllowedError`",
            "True",
            verb="closed-to-consumers",
            help="whether new consumers are refused",
            options=(Option(_ENABLE, "Whether they are.", "switch", True),),
        ),
    ),
)
"""
ENFORCED = """
    from embeddedpulsar._engine.store.policies.admitting import CLOSED_TO_CONSUMERS

    if topic.policies.value(CLOSED_TO_CONSUMERS):
        raise NotAllowedError(f"{topic.name} is closed to consumers")
"""
USED = """
import doctest, inspect, sys
from embeddedpulsar import Admin, Client, NotAllowedError
from embeddedpulsar.admin.policies import Policies
from embeddedpulsar.cli.main import main

with Client("./store") as client, Admin("./store") as admin:
    client.create_producer("orders").close()
    client.subscribe("orders", "before").close()
    assert main(["--store", "store", "namespaces", "set-closed-to-consumers", "public/default", "-e"]) == 0
    assert main(["--store", "store", "topics", "get-closed-to-consumers", "orders", "--applied"]) == 0
    assert admin.topics().get_closed_to_consumers("orders") is None
    assert admin.topics().get_closed_to_consumers("orders", applied=True) is True
    try:
        client.subscribe("orders", "behind")
    except NotAllowedError as e:
        print(e)
    admin.topics().set_closed_to_consumers("orders", False)
    client.subscribe("orders", "behind").close()
    admin.topics().remove_closed_to_consumers("orders")
with open("store/broker.conf", "a") as file:
    file.write("topicsClosedToConsumers=true\\n")
with Admin("./store") as admin:
    admin.namespaces().remove_closed_to_consumers("public/default")
    assert admin.topics().get_closed_to_consumers("orders", applied=True) is True
signature = inspect.signature(Policies.set_closed_to_consumers)
print(signature)
examples = doctest.DocTestFinder().find(Policies.set_closed_to_consumers, globs={})
print(sum(len(one.examples) for one in examples), "lines of an example")
for one in examples:
    assert not doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(one).failed
"""


def test_a_policy_is_a_row_and_the_code_that_enforces_it(tmp_path: Path):
    """Two edits of a copy of the package; settings, methods, verbs and page follow by ``make policies``."""
    copy = tmp_path / "copy"
    shutil.copytree(
        ROOT / "embeddedpulsar", copy / "embeddedpulsar", ignore=shutil.ignore_patterns("__pycache__")
    )
    (copy / "tests/support").mkdir(parents=True)
    shutil.copy(ROOT / "tests/support/write_policies.py", copy / "tests/support")
    (copy / "docs").mkdir()
    shutil.copy(ROOT / "docs/policies.md", copy / "docs")
    shutil.copy(ROOT / "pyproject.toml", copy)
    sheet = copy / "embeddedpulsar/_engine/store/policies/admitting.py"
    sheet.write_text(sheet.read_text("utf-8") + ROW, "utf-8")
    enforcing = copy / "embeddedpulsar/_engine/store/policies/policy_documents.py"
    line = "    enabled = topic.policies.value(SUBSCRIPTION_TYPES)\n"
    text = enforcing.read_text("utf-8")
    assert line in text
    enforcing.write_text(text.replace(line, ENFORCED + line), "utf-8")

    def run(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    written = run("tests/support/write_policies.py").split()
    assert {Path(name).name for name in written if "." in name} == {
        "settings.py",
        "policies.py",
        "policy_verbs.py",
        "policies.md",
    }
    assert run("tests/support/write_policies.py") == ""
    page = (copy / "docs/policies.md").read_text("utf-8")
    row = "`set_closed_to_consumers(name, True)` | `topicsClosedToConsumers` | accepted |"
    assert f"| new consumers are refused | {row}" in page
    assert run("-c", USED).splitlines() == [
        "True",
        "Pulsar error: ResultNotAllowedError: persistent://public/default/orders is closed to consumers",
        "(self, name: 'str', value: 'bool') -> 'None'",
        "2 lines of an example",
    ]
    run("-c", "from embeddedpulsar.testing.trial_store import assert_clean; assert_clean('store')")

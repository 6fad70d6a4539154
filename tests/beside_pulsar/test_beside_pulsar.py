"""The scenarios run with embeddedpulsar, and the runner says what it lacks. The comparison needs a broker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embeddedpulsar.testing.trial_store import assert_clean
from tests.beside_pulsar.comparison import SCENARIOS, difference, main, value_of
from tests.beside_pulsar.known import KNOWN
from tests.beside_pulsar.store_side import store_side

QUICK = (
    "backlog_of_batches",
    "compaction_of_batches",
    "deleting",
    "most_producers",
    "partitioned_stats",
    "policies_of_namespaces",
    "policies_of_topics",
    "types_switched_off",
    "unsubscribing_while_others_are_there",
    "values_of_topic_stats",
)
SLOW = sorted(set(SCENARIOS) - set(QUICK))


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW)])
def test_a_scenario_runs(name: str, tmp_path: Path):
    """It ends, and returns something that can be compared."""
    value = value_of(SCENARIOS[name], store_side(tmp_path / "store", "public/beside"))
    assert value
    assert "failed" not in value, value
    assert_clean(tmp_path / "store")


def test_what_a_broker_answered(tmp_path: Path):
    """Values that Pulsar 4.0.7 returned, and for which nothing differs."""
    side = store_side(tmp_path / "store", "public/beside")
    assert value_of(SCENARIOS["unsubscribing_while_others_are_there"], side) == [
        "BrokerMetadataError",
        "ok",
        [],
    ]
    side = store_side(tmp_path / "another", "public/beside")
    assert value_of(SCENARIOS["deleting"], side) == {
        "again": "missing",
        "created twice": "refused",
        "gone": "missing",
        "no such subscription": "missing",
        "subscription created twice": "refused",
        "subscription in use": "refused",
        "subscription of none": "missing",
        "topic in use": "refused",
        "topic with a producer": "refused",
        "topic with a subscription": "ok",
    }


def test_nothing_to_compare_with(capsys: pytest.CaptureFixture[str]):
    """Without a broker, one line says what is needed; unknown scenarios are named."""
    assert main([]) == 2
    assert "--service-url and --admin-url of a broker are needed" in capsys.readouterr().err
    urls = ["--service-url", "pulsar://127.0.0.1:1", "--admin-url", "http://127.0.0.1:1"]
    assert main([*urls, "none"]) == 2
    assert capsys.readouterr().err == f"no such scenario: none{os.linesep}"


def test_differences_are_shown():
    """As lines of both sides; known ones are of scenarios that exist."""
    assert difference({"a": [1, 2]}, {"a": [1, 2]}) == []
    assert [line for line in difference({"a": 1}, {"a": 2}) if line[1:].startswith(' "a"')] == [
        '- "a": 1',
        '+ "a": 2',
    ]
    assert set(KNOWN) <= set(SCENARIOS)

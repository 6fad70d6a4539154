"""What is generated from the table of policies is what the table says, and the table is complete."""

from __future__ import annotations

import inspect
import re
import typing
from pathlib import Path

import pytest

from embeddedpulsar import policy_values
from embeddedpulsar._engine.store.policies.policy import BOTH, NAMESPACES, TOPICS
from embeddedpulsar._engine.store.policies.policy_documents import ROWS
from embeddedpulsar.admin.namespaces import Namespaces
from embeddedpulsar.admin.policies import Policies
from embeddedpulsar.admin.topics import Topics
from embeddedpulsar.enums import ConsumerType, SchemaCompatibilityStrategy
from embeddedpulsar.settings import BrokerSettings
from tests.support import write_policies

KINDS = {"topics": Topics, "namespaces": Namespaces}


@pytest.fixture(scope="module")
def written() -> dict[Path, str]:
    """The files that follow from the table, as they should be."""
    return write_policies.written()


def test_the_files_are_those_that_the_table_gives(written: dict[Path, str]):
    """A row that is changed without ``make policies`` fails here."""
    stale = [str(path) for path, text in written.items() if path.read_text("utf-8") != text]
    assert not stale, "run `make policies`"


def test_the_files_are_those_that_are_named(written: dict[Path, str]):
    """No other file says that it is generated from the rows, and each of these says so."""
    marked = {
        path
        for folder in ("embeddedpulsar", "docs")
        for path in (write_policies.ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".md") and "by `make policies` from the rows" in path.read_text("utf-8")
    }
    assert marked == set(written)


@pytest.mark.parametrize("noun", KINDS)
def test_every_method_that_sets_something_has_a_row(noun: str):
    """And every row has its methods, as functions of the class itself or of the one that both share."""
    kind = KINDS[noun]
    of_rows = {calls.name for row in ROWS.values() for calls in row.calls if noun in calls.levels}
    assert {name[4:] for name in dir(kind) if name.startswith("set_")} == of_rows
    shared = {calls.name for row in ROWS.values() for calls in row.calls if calls.levels == BOTH}
    for name in of_rows:
        home = Policies if name in shared else kind
        assert f"set_{name}" in vars(home)
        assert inspect.unwrap(vars(home)[f"set_{name}"]).__qualname__ == f"{home.__name__}.set_{name}"


def test_levels_are_those_of_the_methods():
    """A policy of topics and namespaces has one name for both, or one for each; others one."""
    for reference, row in ROWS.items():
        levels = [calls.levels for calls in row.calls]
        assert levels in ([BOTH], [TOPICS], [NAMESPACES], [TOPICS, NAMESPACES]), reference


@pytest.mark.parametrize("kind", [Policies, Topics, Namespaces])
def test_types_are_there_at_run_time(kind: type):
    """What a tool that asks for the hints of a method needs can be imported where the method is."""
    names = {"ConsumerType": ConsumerType, "SchemaCompatibilityStrategy": SchemaCompatibilityStrategy}
    for name, method in vars(kind).items():
        if re.match("(set|get|remove)_", name) and name[4:] in {
            calls.name for row in ROWS.values() for calls in row.calls if not calls.by_hand
        }:
            hints = typing.get_type_hints(inspect.unwrap(method), {**vars(policy_values), **names})
            assert "return" in hints, name


@pytest.mark.parametrize("reference", ROWS)
def test_the_default_is_valid_and_can_be_stored(reference: str):
    """What ``broker.conf`` says without a line is a value that the policy takes, or nothing."""
    row = ROWS[reference]
    value = row.default(BrokerSettings(), [{}])
    if value is not None:
        assert row.unpack(row.pack(value)) == value
        assert isinstance(value, row.kind)
    assert row.title and row.otherwise and row.kind is not object


@pytest.mark.parametrize("reference", ROWS)
def test_settings_of_a_row_are_settings(reference: str):
    """With the default and the range of the row: a number beyond it is refused."""
    for setting in ROWS[reference].settings:
        assert BrokerSettings._field_defaults[setting.name] == setting.default
        if type(setting.default) is int:
            assert setting.lowest <= setting.default <= setting.highest
            text = f"{setting.name}={setting.highest}"
            assert getattr(BrokerSettings.parse(text), setting.name) == setting.highest
            with pytest.raises(Exception, match=f"from {setting.lowest} to {setting.highest}"):
                BrokerSettings.parse(f"{setting.name}={setting.highest + 1}")


def test_keys_and_methods_are_used_once():
    """Two policies are never one in a document, nor in a class."""
    keys = [row.key for row in ROWS.values()]
    assert len(set(keys)) == len(keys)
    names = [calls.name for row in ROWS.values() for calls in row.calls if not calls.by_hand]
    assert len(set(names)) == len(names)

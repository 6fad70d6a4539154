"""Unit tests of embeddedpulsar.enums; test_public_api compares members with pulsar-client."""

from __future__ import annotations

import copy
import pickle

import pulsar
import pytest

import embeddedpulsar
from embeddedpulsar.enums import CompressionType, ConsumerType, HashingScheme, PulsarEnum
from embeddedpulsar.results import Result


def test_text_is_the_qualified_name():
    """str, repr and format read as pulsar-client's do, although the members are ints."""
    assert str(ConsumerType.KeyShared) == "ConsumerType.KeyShared"
    assert repr(ConsumerType.KeyShared) == "<ConsumerType.KeyShared: 3>"
    assert f"{Result.Timeout:>16}" == "  Result.Timeout"


def test_members_are_ints():
    """Members can be stored as ints and made of ints."""
    assert CompressionType(1) is CompressionType.LZ4
    assert int(Result.Interrupted) == 45
    assert copy.copy(ConsumerType.Shared) is ConsumerType.Shared


ENUMERATIONS = sorted(PulsarEnum.__subclasses__(), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", ENUMERATIONS, ids=lambda kind: kind.__name__)
def test_every_member_is_true(kind: type[PulsarEnum]):
    """A member with the number 0 is true, as in pulsar-client: `kind or default` is `kind`."""
    assert all(kind)
    assert all((member or None) is member for member in kind)


@pytest.mark.parametrize("kind", ENUMERATIONS, ids=lambda kind: kind.__name__)
def test_members_are_their_numbers(kind: type[PulsarEnum]):
    """Members equal, order and hash as their numbers, survive pickling, and are found in sets and dicts."""
    numbers = [int(member) for member in kind]
    assert list(kind) == numbers
    assert [member for member in kind if member in set(numbers)] == list(kind)
    assert [{number: number}[member] for member, number in zip(kind, numbers, strict=True)] == numbers
    assert sorted(kind) == sorted(numbers)
    assert all(not member < number for member, number in zip(kind, numbers, strict=True))
    assert [pickle.loads(pickle.dumps(member)) for member in kind] == list(kind)
    assert all(pickle.loads(pickle.dumps(member)) is member for member in kind)
    assert [kind(number) for number in numbers] == list(kind)


THEIRS = sorted(name for name, kind in vars(pulsar).items() if hasattr(kind, "__members__"))


@pytest.mark.parametrize("name", THEIRS)
def test_members_behave_as_in_pulsar_client(name: str):
    """What pulsar-client's members answer, ours answer: truth, text, number, hash, equality, copies."""
    theirs, ours = getattr(pulsar, name), getattr(embeddedpulsar, name)
    for member_name, their in theirs.__members__.items():
        our = ours.__members__[member_name]
        for ask in (bool, str, repr, int, hash, format):
            assert ask(our) == ask(their), (ask, our)
        assert (our.name, our.value) == (their.name, their.value)
        assert our == ours(int(our))
        assert (our == "x", our != "x") == (their == "x", their != "x")
        for number in (-1, int(our), int(our) + 1):
            if their == int(their):  # two of pulsar-client's enumerations equal no number
                assert (our == number) == (their == number)
        assert copy.deepcopy(our) == our
        assert pickle.loads(pickle.dumps(their)) == their


def test_consumer_type_has_the_name_of_the_documentation():
    """Pulsar's documents write Key_Shared, pulsar-client KeyShared: one member has both names."""
    assert ConsumerType.Key_Shared is ConsumerType.KeyShared
    assert ConsumerType["Key_Shared"].name == "KeyShared"
    assert ConsumerType.KeyShared.name == "KeyShared"
    assert [kind.name for kind in ConsumerType] == ["Exclusive", "Shared", "Failover", "KeyShared"]


def test_a_wrong_name_or_number_lists_the_members():
    """Who mistypes a member reads which there are."""
    all_of_them = (
        "write ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover or ConsumerType.Key"
    )
    with pytest.raises(AttributeError, match=all_of_them):
        ConsumerType.Sharde  # noqa: B018
    with pytest.raises(ValueError, match=all_of_them):
        ConsumerType("Shared")
    with pytest.raises(ValueError, match=r"99 is not a valid Result; .* list\(Result\)"):
        Result(99)
    assert not hasattr(ConsumerType, "__foo__")


def test_hashing_schemes_have_the_values_of_the_c_client():
    """HashingScheme is not in pulsar-client for Python; the values are those of its C++ core."""
    assert [int(scheme) for scheme in HashingScheme] == [0, 1, 2]

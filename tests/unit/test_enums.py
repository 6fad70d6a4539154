"""Unit tests of embeddedpulsar.enums; test_public_api compares members with pulsar-client."""

from __future__ import annotations

import copy

from embeddedpulsar.enums import CompressionType, ConsumerType, HashingScheme, Result


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


def test_ok_is_false():
    """Result.Ok is the only false result, so `if result:` asks for an error."""
    assert [result for result in Result if not result] == [Result.Ok]


def test_hashing_schemes_have_the_values_of_the_c_client():
    """HashingScheme is not in pulsar-client for Python; the values are those of its C++ core."""
    assert [int(scheme) for scheme in HashingScheme] == [0, 1, 2]

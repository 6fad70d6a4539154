"""Argument checks speak as pulsar-client does."""

from __future__ import annotations

import pulsar
import pytest

from embeddedpulsar.client.arguments import (
    check_fits,
    check_range,
    check_type,
    check_type_or_none,
    refuse_unbuilt,
)


def text_of(function, *arguments) -> str:
    """What a failing call says."""
    with pytest.raises(ValueError) as caught:
        function(*arguments)
    return str(caught.value)


@pytest.mark.parametrize("value", [5, None, b"x", []])
def test_wrong_type_has_the_text_of_pulsar_client(value):
    """A wrong type gives the very text of pulsar-client."""
    assert text_of(check_type, str, value, "topic") == text_of(pulsar._check_type, str, value, "topic")


def test_wrong_optional_type_has_the_text_of_pulsar_client():
    """None passes where an argument is optional; another type has the text of pulsar-client."""
    check_type_or_none(str, None, "producer_name")
    ours = text_of(check_type_or_none, str, 5, "producer_name")
    assert ours == text_of(pulsar._check_type_or_none, str, 5, "producer_name")


def test_true_passes_for_an_int():
    """As in pulsar-client, a bool is an int."""
    check_type(int, True, "receiver_queue_size")


def test_a_number_out_of_range_names_the_range():
    """The text says what would be right."""
    check_range(0, "n", 0, 5)
    check_range(5, "n", 0, 5)
    assert text_of(check_range, 6, "n", 0, 5) == "Argument n must be between 0 and 5, not 6"


def test_a_number_without_room_is_of_a_wrong_type():
    """As in pulsar-client, whose numbers have so many bits."""
    check_fits(0, "n", 0, 5)
    check_fits(5, "n", 0, 5)
    with pytest.raises(TypeError, match=r"^Argument n must be between 0 and 5, not -1$"):
        check_fits(-1, "n", 0, 5)


def test_an_unbuilt_option_is_never_ignored():
    """Set away from its default, the option names its feature; at the default it passes."""
    refuse_unbuilt(False, "chunking_enabled", "chunking")
    with pytest.raises(NotImplementedError, match="chunking_enabled needs chunking, which is not built yet"):
        refuse_unbuilt(True, "chunking_enabled", "chunking")
    with pytest.raises(NotImplementedError, match=r"a pattern needs patterns, .*; use a name$"):
        refuse_unbuilt(True, "a pattern", "patterns", "use a name")

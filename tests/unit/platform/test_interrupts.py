"""Ctrl-C in blocking calls."""

from __future__ import annotations

import pytest

from embeddedpulsar._engine.platform import timing
from embeddedpulsar.exceptions import Interrupted


def test_keyboard_interrupt_becomes_interrupted():
    """Pulsar's error, which is still a KeyboardInterrupt, with the original as its cause."""
    with pytest.raises(Interrupted) as caught, timing.translated:
        raise KeyboardInterrupt
    assert isinstance(caught.value, KeyboardInterrupt)
    assert isinstance(caught.value.__context__, KeyboardInterrupt)


def test_other_errors_pass():
    """Nothing else is touched."""
    with pytest.raises(ValueError, match="as it is"), timing.translated:
        raise ValueError("as it is")


def test_an_inner_translation_is_kept():
    """Nested calls do not wrap twice."""
    inner = Interrupted("inner")
    with pytest.raises(Interrupted) as caught, timing.translated:
        raise inner
    assert caught.value is inner

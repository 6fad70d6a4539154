"""Out of descriptors: one more attempt after making room, then an error that says what to do."""

from __future__ import annotations

import errno

import pytest

from embeddedpulsar._engine.platform.descriptors import within_limit
from embeddedpulsar.exceptions import DescriptorLimitError


class Attempts:
    """Fails with the given errors, then returns 7."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.rooms = 0

    def __call__(self) -> int:
        if self.codes:
            raise OSError(self.codes.pop(0), "no")
        return 7

    def make_room(self) -> None:
        """Counts."""
        self.rooms += 1


def test_room_is_made_only_when_it_is_needed():
    """Success at once makes no room; EMFILE does, and the second attempt counts."""
    action = Attempts()
    assert within_limit(action, action.make_room, "it") == 7
    assert action.rooms == 0
    action = Attempts(errno.EMFILE)
    assert within_limit(action, action.make_room, "it") == 7
    assert action.rooms == 1


@pytest.mark.parametrize(
    ("code", "text"), [(errno.EMFILE, "it: this process has .*ulimit -n"), (errno.ENFILE, "fs.file-max")]
)
def test_a_limit_that_stays_is_named_with_the_remedy(code, text):
    """Twice out of descriptors is a DescriptorLimitError, caused by the OSError."""
    action = Attempts(code, code)
    with pytest.raises(DescriptorLimitError, match=text) as caught:
        within_limit(action, action.make_room, "it")
    assert isinstance(caught.value.__cause__, OSError)


def test_other_errors_are_left_alone():
    """At the first and at the second attempt."""
    for codes in ((errno.EACCES,), (errno.EMFILE, errno.EACCES)):
        action = Attempts(*codes)
        with pytest.raises(PermissionError):
            within_limit(action, action.make_room, "it")

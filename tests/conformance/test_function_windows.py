"""Functions with windows: what each call gets, and when messages are acknowledged."""

from __future__ import annotations

from typing import Any

import pytest

from embeddedpulsar import Client, ConsumerType, InitialPosition
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.functions import FunctionConfig, LocalRunner, ProcessingGuarantees, WindowConfig
from tests.conformance.conftest import receive_all
from tests.conformance.manual_time import ManualTime


class Windowed:
    """A runner over ``in`` that notes the windows of its function."""

    def __init__(self, client: Client, window: WindowConfig, **options: Any) -> None:
        self.calls: list[list[int]] = []
        self.failures = 0
        self._client = client
        self._next = 0
        config = FunctionConfig(
            name="tested",
            inputs=["in"],
            subscription_position=InitialPosition.Earliest,
            window_config=window,
            **options,
        )
        self.runner = LocalRunner(config, self._process, client=client)

    def _process(self, input: list[int]) -> None:
        if self.failures:
            self.failures -= 1
            raise ValueError("not yet")
        self.calls.append(input)

    def send(self, count: int) -> list[list[int]]:
        """Publish numbers; return the windows that they complete."""
        with self._client.create_producer("in") as producer:
            for number in range(self._next, self._next + count):
                producer.send(b"%d" % number)
        self._next += count
        return self.taken()

    def taken(self) -> list[list[int]]:
        """The windows since the last call."""
        self.runner.run_until_idle()
        calls, self.calls = self.calls, []
        return calls

    def left(self) -> list[int]:
        """End; what is not acknowledged."""
        self.runner.stop()
        with self._client.subscribe("in", "public/default/tested", ConsumerType.Shared) as consumer:
            return [int(one.data()) for one in receive_all(consumer)]


def test_tumbling_windows_of_messages(client: Client):
    """Each message is in one window, and acknowledged when that was processed."""
    site = Windowed(client, WindowConfig(window_length_count=3))
    assert site.send(2) == []
    assert site.send(5) == [[0, 1, 2], [3, 4, 5]]
    assert site.left() == [6]


def test_sliding_windows_of_messages(client: Client):
    """Messages that a later window has are not acknowledged yet."""
    site = Windowed(client, WindowConfig(window_length_count=4, sliding_interval_count=2))
    assert site.send(7) == [[0, 1], [0, 1, 2, 3], [2, 3, 4, 5]]
    assert site.left() == [4, 5, 6]


def test_windows_with_gaps(client: Client):
    """An interval that is longer than the window leaves messages out, which are acknowledged."""
    site = Windowed(client, WindowConfig(window_length_count=1, sliding_interval_count=3))
    assert site.send(7) == [[2], [5]]
    assert site.left() == [6]


def test_tumbling_windows_of_time(time: ManualTime):
    """By the time at which a message is taken; without messages there is no window."""
    site = Windowed(time.client, WindowConfig(window_length_duration_ms=1000))
    assert site.send(2) == []
    time.pass_ms(999)
    assert site.send(1) == []
    time.pass_ms(1)
    assert site.taken() == [[0, 1, 2]]
    time.pass_ms(5500)
    assert site.taken() == []
    assert site.send(1) == []
    time.pass_ms(500)
    assert site.taken() == [[3]]
    assert site.left() == []


def test_sliding_windows_of_time(time: ManualTime):
    """A message is in each window that reaches back to it."""
    window = WindowConfig(window_length_duration_ms=2000, sliding_interval_duration_ms=1000)
    site = Windowed(time.client, window)
    windows = []
    for _ in range(4):
        time.pass_ms(500)
        site.send(1)
        time.pass_ms(500)
        windows += site.taken()
    assert windows == [[0], [0, 1], [1, 2], [2, 3]]
    assert site.left() == [3]


def test_windows_of_time_after_messages(time: ManualTime):
    """The last second, after each two messages."""
    window = WindowConfig(window_length_duration_ms=1000, sliding_interval_count=2)
    site = Windowed(time.client, window)
    found = site.send(1)
    for _ in range(5):
        time.pass_ms(600)
        found += site.send(1)
    assert found == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("guarantee", "left"),
    [(ProcessingGuarantees.ATMOST_ONCE, []), (ProcessingGuarantees.MANUAL, [0, 1, 2])],
)
def test_windows_of_other_guarantees(guarantee: ProcessingGuarantees, left: list[int], client: Client):
    """Acknowledged when they are taken, or by the function."""
    site = Windowed(client, WindowConfig(window_length_count=2), processing_guarantees=guarantee)
    assert site.send(3) == [[0, 1]]
    assert site.left() == left


def test_a_window_that_fails_comes_again(time: ManualTime):
    """All its messages, which form windows anew."""
    site = Windowed(time.client, WindowConfig(window_length_count=2), negative_ack_redelivery_delay_ms=1000)
    site.failures = 1
    assert site.send(4) == [[2, 3]]
    time.pass_ms(1100)
    assert site.taken() == [[0, 1]]
    assert site.left() == []


def test_a_window_that_fails_leaves_no_message_unacknowledged_that_is_in_no_window(time: ManualTime):
    """Those that had expired before it come again with nothing."""
    window = WindowConfig(window_length_duration_ms=1000, sliding_interval_count=2)
    site = Windowed(time.client, window)
    site.send(1)
    time.pass_ms(2000)
    site.failures = 1
    assert site.send(1) == []
    assert site.left() == [1]


@pytest.mark.parametrize(
    "window",
    [
        WindowConfig(),
        WindowConfig(window_length_count=0),
        WindowConfig(window_length_count=1, window_length_duration_ms=1),
        WindowConfig(window_length_count=4, sliding_interval_count=2, sliding_interval_duration_ms=1),
    ],
)
def test_windows_that_are_refused(window: WindowConfig):
    """One length, at most one interval, numbers from 1 on."""
    with pytest.raises(InvalidConfiguration):
        FunctionConfig("a.B", inputs=["in"], window_config=window).check()


def test_windows_do_not_go_with_effectively_once():
    """A window outlives a commit."""
    guarantee = ProcessingGuarantees.EFFECTIVELY_ONCE
    config = FunctionConfig(
        "a.B", inputs=["in"], window_config=WindowConfig(1), processing_guarantees=guarantee
    )
    with pytest.raises(InvalidConfiguration, match="windows"):
        config.check()

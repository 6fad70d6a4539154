"""Functions with windows: what each call gets, and when messages are acknowledged."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from embeddedpulsar import Client, ConsumerType, InitialPosition, MessageId
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
        options = {"inputs": ["in"]} | options
        config = FunctionConfig(
            name="tested",
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


def of_events(**options: Any) -> WindowConfig:
    """Windows of 10 ms of event time."""
    return WindowConfig(
        window_length_duration_ms=10, timestamp_extractor_class_name="EventTimestamp", **options
    )


def publish(client: Client, *times: int, topic: str = "in") -> None:
    """Messages with an event time that is their payload."""
    with client.create_producer(topic) as producer:
        for at_ms in times:
            producer.send(b"%d" % at_ms, event_timestamp=at_ms)


def test_windows_of_event_time(time: ManualTime):
    """In the order of the timestamps, whatever that of arrival, when the watermark is at their end."""
    site = Windowed(time.client, of_events(max_lag_ms=5))
    publish(time.client, 12, 3, 20, 7, 24)
    assert site.taken() == []
    time.pass_ms(1000)
    assert site.taken() == [[3, 7]]
    publish(time.client, 19, 36)
    time.pass_ms(1000)
    assert site.taken() == []  # the watermark was moved before they came
    time.pass_ms(1000)
    assert site.taken() == [[12, 19, 20], [24]]
    assert site.left() == [36]


def test_sliding_windows_of_event_time(time: ManualTime):
    """A message is in each window that reaches back to it; windows without messages are left out."""
    site = Windowed(time.client, of_events(sliding_interval_duration_ms=5))
    publish(time.client, 3, 8, 10, 55)
    site.taken()
    time.pass_ms(1000)
    assert site.taken() == [[3], [3, 8, 10], [8, 10], [55]]
    assert site.left() == [55]


@pytest.mark.parametrize("topic", [None, "late"])
def test_late_messages(time: ManualTime, topic: str | None):
    """They are acknowledged, and go to the topic for them if there is one."""
    site = Windowed(time.client, of_events(late_data_topic=topic))
    publish(time.client, 5, 30)
    site.taken()
    time.pass_ms(1000)
    assert site.taken() == [[5], [30]]
    publish(time.client, 29, 30, 41)
    site.taken()
    time.pass_ms(1000)
    assert site.taken() == []
    publish(time.client, 60)
    site.taken()
    time.pass_ms(1000)
    assert site.taken() == [[41], [60]]
    if topic:
        with time.client.create_reader(topic, MessageId.earliest) as reader:
            assert [one.data() for one in reader] == [b"29", b"30"]
    assert site.left() == []


def test_the_watermark_of_several_inputs(time: ManualTime):
    """Is that of the slowest, once each has a message."""
    site = Windowed(time.client, of_events(), inputs=["in", "other"])
    publish(time.client, 5, 50)
    site.taken()
    time.pass_ms(1000)
    assert site.taken() == []
    publish(time.client, 12, topic="other")
    site.taken()
    time.pass_ms(1000)
    assert site.taken() == [[5]]


def test_a_window_of_event_time_that_fails_comes_again(time: ManualTime):
    """Its messages are not late when they are delivered again."""
    site = Windowed(time.client, of_events(), negative_ack_redelivery_delay_ms=1000)
    site.failures = 1
    publish(time.client, 5, 7, 30)
    site.taken()
    time.pass_ms(1000)
    assert site.taken() == [[30]]
    time.pass_ms(1100)
    site.taken()
    time.pass_ms(1000)
    assert site.taken() == [[5, 7]]
    assert site.left() == []


class Extractor:
    """Timestamps are in the values."""

    def extract_timestamp(self, input: int) -> int:
        """The timestamp; not each value has one."""
        return 10 // (input % 100) * 0 + input


def test_an_extractor_of_the_application(time: ManualTime, monkeypatch: pytest.MonkeyPatch):
    """What it raises is a failure of the function, for that message."""
    monkeypatch.setitem(sys.modules, Extractor.__module__, sys.modules[__name__])
    window = of_events()._replace(timestamp_extractor_class_name=f"{Extractor.__module__}.Extractor")
    site = Windowed(time.client, window)
    publish(time.client, 5, 100, 30)
    site.taken()
    time.pass_ms(1000)
    assert site.taken() == [[5], [30]]
    assert site.left() == [100]
    with pytest.raises(InvalidConfiguration, match="extract_timestamp"):
        Windowed(time.client, window._replace(timestamp_extractor_class_name="json.JSONDecoder"))


@pytest.mark.parametrize(
    "window",
    [
        WindowConfig(),
        WindowConfig(window_length_count=0),
        WindowConfig(window_length_count=1, window_length_duration_ms=1),
        WindowConfig(window_length_count=4, sliding_interval_count=2, sliding_interval_duration_ms=1),
        WindowConfig(window_length_duration_ms=4, max_lag_ms=1),
        WindowConfig(window_length_duration_ms=4, late_data_topic="late"),
        WindowConfig(window_length_count=4, timestamp_extractor_class_name="EventTimestamp"),
        WindowConfig(window_length_duration_ms=4, timestamp_extractor_class_name=5),  # type: ignore[arg-type]
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

"""The configuration of the windows of a function."""

from __future__ import annotations

from typing import Final

from embeddedpulsar.error_text import naming_fields
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic_name import TopicName

_TEXTS: Final = ("timestamp_extractor_class_name", "late_data_topic")


@naming_fields
class WindowConfig(NamedTuple):
    """The windows of a function: how many messages, or milliseconds, each has, and how far the next one is.

    Without a sliding interval each window begins where the last one ended.

    Attributes:
        window_length_count: most messages of a window; or
        window_length_duration_ms: how long a message stays in the window.
        sliding_interval_count: messages after which there is a window; or
        sliding_interval_duration_ms: time after which there is one.
        timestamp_extractor_class_name: windows of event time: a class with a method
            ``extract_timestamp(input)`` that returns ms since 1970, or ``EventTimestamp`` for the event
            timestamp of the message. Windows then end at multiples of their interval, and have what lies
            behind their beginning up to their end.
        max_lag_ms: how far behind the newest timestamp another one is still waited for; default is 0.
        watermark_emit_interval_ms: how often is looked which windows are complete; default is 1000.
        late_data_topic: where messages go that come later than that; default is nowhere.

    Example:
        >>> WindowConfig(window_length_count=10, sliding_interval_count=5).check().interval_count
        5
        >>> WindowConfig(window_length_duration_ms=60_000).check().interval_ms
        60000
    """

    window_length_count: int | None = None
    window_length_duration_ms: int | None = None
    sliding_interval_count: int | None = None
    sliding_interval_duration_ms: int | None = None
    timestamp_extractor_class_name: str | None = None
    max_lag_ms: int | None = None
    watermark_emit_interval_ms: int | None = None
    late_data_topic: str | None = None

    @property
    def interval_count(self) -> int | None:
        """Messages between two windows; None if time passes between them."""
        if self.sliding_interval_duration_ms is not None:
            return None
        return self.sliding_interval_count or self.window_length_count

    @property
    def interval_ms(self) -> int | None:
        """Time between two windows; None if messages are counted."""
        if self.sliding_interval_count is not None:
            return None
        return self.sliding_interval_duration_ms or self.window_length_duration_ms

    def check(self) -> WindowConfig:
        """Return this value if it is valid.

        Raises:
            InvalidConfiguration: not one length, more than one interval, a number below 1, or what belongs to
                windows of event time without a timestamp extractor.
            InvalidTopicName: ``late_data_topic`` is no topic name.
        """
        for name, value in zip(self._fields, self, strict=True):
            if name in _TEXTS:
                if not isinstance(value, str | None):
                    raise InvalidConfiguration(f"{name} is a text, not {value!r}")
                continue
            if name == "max_lag_ms" and value == 0:
                continue
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidConfiguration(f"{name} is a number from 1 on, not {value!r}")
        if (self.window_length_count is None) == (self.window_length_duration_ms is None):
            raise InvalidConfiguration(
                "a window has one length: window_length_count or window_length_duration_ms"
            )
        if self.sliding_interval_count is not None and self.sliding_interval_duration_ms is not None:
            raise InvalidConfiguration(
                "windows slide by sliding_interval_count or by sliding_interval_duration_ms"
            )
        of_event_time = (self.max_lag_ms, self.watermark_emit_interval_ms, self.late_data_topic)
        if not self.timestamp_extractor_class_name and any(one is not None for one in of_event_time):
            raise InvalidConfiguration(
                "max_lag_ms, watermark_emit_interval_ms and late_data_topic need "
                "timestamp_extractor_class_name"
            )
        if self.timestamp_extractor_class_name and (
            self.window_length_count is not None or self.sliding_interval_count is not None
        ):
            raise InvalidConfiguration("windows of event time have durations, and not numbers of messages")
        if self.late_data_topic:
            return self._replace(late_data_topic=TopicName.parse(self.late_data_topic).full)
        return self

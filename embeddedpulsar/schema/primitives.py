"""Schemas of numbers, truth values, dates and times, in the binary form of Pulsar's Java client."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, time, timedelta

from embeddedpulsar.enums import SchemaType
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.schema.schema import Schema, T

if TYPE_CHECKING:
    from typing import Any, Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_OF_EPOCH: Final = date(1970, 1, 1).toordinal()
_MS: Final = timedelta(milliseconds=1)
_US: Final = timedelta(microseconds=1)
_DAY_MS: Final = 86_400_000
_BY_TYPE: Final[dict[SchemaType, type[_PrimitiveSchema[Any]]]] = {}


class _PrimitiveSchema(Schema[T]):
    """A value of fixed size. Derived classes name the type, the layout, and the two conversions."""

    _kind: SchemaType
    _value_class: type[Any]
    _layout: struct.Struct

    def __init_subclass__(cls) -> None:
        if "_kind" in vars(cls):
            _BY_TYPE[cls._kind] = cls

    def __init__(self) -> None:
        super().__init__(self._value_class, self._kind, None, self._kind.name)

    def encode(self, obj: T) -> bytes:
        """Return the payload.

        Raises:
            TypeError: ``obj`` is of another type; the text names what to do.
            ValueError: ``obj`` is out of the range of this schema.
        """
        self._check(obj)
        try:
            return self._layout.pack(*self._parts(obj))
        except (struct.error, OverflowError):
            raise ValueError(f"{obj!r} does not fit {self._kind.name}; {self._wider()}") from None

    def decode(self, data: bytes) -> T:
        """Return the value.

        Raises:
            ValueError: ``data`` has another size, or holds a time that Python's ``datetime`` does not have.
        """
        if len(data) != self._layout.size:
            raise ValueError(
                f"{self._kind.name} has {self._layout.size} bytes, and these are {len(data)}; a null value "
                "has none: see Message.has_null_value()"
            )
        try:
            return self._value(*self._layout.unpack(data))
        except OverflowError:
            text = f"the {self._kind.name} {data.hex()} is not in the years 1 to 9999 of Python's datetime"
            raise ValueError(f"{text}; Message.data() has its bytes") from None

    def _check(self, obj: T) -> None:
        self._validate_object_type(obj)

    def _parts(self, obj: T) -> tuple[Any, ...]:
        return (obj,)

    def _value(self, *parts: Any) -> T:
        value: T = parts[0]
        return value

    def _wider(self) -> str:
        return "send it with another schema"

    def __str__(self) -> str:
        return type(self).__name__


class _IntegerSchema(_PrimitiveSchema[int]):
    _value_class = int

    def _check(self, obj: int) -> None:
        if isinstance(obj, bool):
            raise TypeError(f"{obj} is a bool; give BooleanSchema() to the producer, or send int({obj})")
        self._validate_object_type(obj)

    def _hint(self, obj: object) -> str:
        return "; give FloatSchema() or DoubleSchema() to the producer" if isinstance(obj, float) else ""

    def _wider(self) -> str:
        if self._kind == SchemaType.INT64:
            return "send it as text, with StringSchema()"
        bits = self._layout.size * 8
        return f"it takes {-(2 ** (bits - 1))} to {2 ** (bits - 1) - 1}: use Int{bits * 2}Schema()"


class Int8Schema(_IntegerSchema):
    """Integers of 8 bits.

    Example:
        >>> Int8Schema().encode(-1), Int8Schema().decode(b"\\x7f")
        (b'\\xff', 127)
        >>> Int8Schema().encode(128)
        Traceback (most recent call last):
        ValueError: 128 does not fit INT8; it takes -128 to 127: use Int16Schema()
    """

    _kind, _layout = SchemaType.INT8, struct.Struct(">b")


class Int16Schema(_IntegerSchema):
    """Integers of 16 bits, big-endian.

    Example:
        >>> Int16Schema().encode(258), Int16Schema().decode(b"\\x80\\x00")
        (b'\\x01\\x02', -32768)
    """

    _kind, _layout = SchemaType.INT16, struct.Struct(">h")


class Int32Schema(_IntegerSchema):
    """Integers of 32 bits, big-endian.

    Example:
        >>> Int32Schema().decode(Int32Schema().encode(-2))
        -2
    """

    _kind, _layout = SchemaType.INT32, struct.Struct(">i")


class Int64Schema(_IntegerSchema):
    """Integers of 64 bits, big-endian.

    Example:
        >>> Int64Schema().encode(7)
        b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x07'
    """

    _kind, _layout = SchemaType.INT64, struct.Struct(">q")


class _FloatingSchema(_PrimitiveSchema[float]):
    _value_class = float

    def _check(self, obj: float) -> None:
        if not isinstance(obj, int) or isinstance(obj, bool):  # an int is a float, as for type checkers
            self._validate_object_type(obj)


class FloatSchema(_FloatingSchema):
    """Floating point numbers of 32 bits: a value is rounded to about 7 digits.

    Example:
        >>> FloatSchema().encode(1.5), FloatSchema().decode(b"?\\xc0\\x00\\x00")
        (b'?\\xc0\\x00\\x00', 1.5)
    """

    _kind, _layout = SchemaType.FLOAT, struct.Struct(">f")

    def _wider(self) -> str:
        return "use DoubleSchema()"


class DoubleSchema(_FloatingSchema):
    """Floating point numbers of 64 bits, as ``float`` has them.

    Example:
        >>> DoubleSchema().decode(DoubleSchema().encode(0.1))
        0.1
    """

    _kind, _layout = SchemaType.DOUBLE, struct.Struct(">d")


class BooleanSchema(_PrimitiveSchema[bool]):
    """Truth values, in one byte.

    Example:
        >>> BooleanSchema().encode(True), BooleanSchema().decode(b"\\x00")
        (b'\\x01', False)
    """

    _kind, _value_class, _layout = SchemaType.BOOLEAN, bool, struct.Struct(">?")

    def _hint(self, obj: object) -> str:
        return f"; send bool({obj!r})"


class _MomentSchema(_PrimitiveSchema[datetime]):
    """A point in time: a ``datetime`` with a time zone."""

    _value_class = datetime

    def _check(self, obj: datetime) -> None:
        self._validate_object_type(obj)
        if obj.utcoffset() is None:
            text = f"{self._kind.name} is a point in time, and {obj!r} has no time zone; send"
            raise TypeError(
                f"{text} value.astimezone() for local time, value.replace(tzinfo=UTC) for UTC, or use "
                "LocalDateTimeSchema()"
            )

    def _hint(self, obj: object) -> str:
        if isinstance(obj, date):
            return "; give LocalDateSchema() to the producer"
        if isinstance(obj, int | float):
            return "; send datetime.fromtimestamp(value, UTC)"
        return ""


class _MillisecondsSchema(_MomentSchema):
    _layout = struct.Struct(">q")

    def _parts(self, obj: datetime) -> tuple[int]:
        # Floor division cuts towards the past, also before 1970.
        return ((obj - _EPOCH) // _MS,)

    def _value(self, *parts: Any) -> datetime:
        return _EPOCH + timedelta(milliseconds=parts[0])


class DateSchema(_MillisecondsSchema):
    """Points in time in milliseconds, as ``java.util.Date``: values are ``datetime`` with a time zone, and
    are read in UTC. Microseconds are cut off. See `LocalDateSchema` for days.

    Example:
        >>> from datetime import UTC, datetime
        >>> DateSchema().decode(DateSchema().encode(datetime(2026, 5, 4, 12, 30, tzinfo=UTC)))
        datetime.datetime(2026, 5, 4, 12, 30, tzinfo=datetime.timezone.utc)
    """

    _kind = SchemaType.DATE


class TimestampSchema(_MillisecondsSchema):
    """Points in time in milliseconds, as ``java.sql.Timestamp``: the values of `DateSchema`.

    Example:
        >>> from datetime import UTC, datetime
        >>> TimestampSchema().encode(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)).hex()
        '00000000000003e8'
    """

    _kind = SchemaType.TIMESTAMP


class InstantSchema(_MomentSchema):
    """Points in time, as ``java.time.Instant``: values are ``datetime`` with a time zone, and are read in
    UTC. Nanoseconds that Java wrote are cut off to microseconds.

    Example:
        >>> from datetime import UTC, datetime
        >>> InstantSchema().decode(InstantSchema().encode(datetime(2026, 5, 4, 12, 30, 0, 7, UTC)))
        datetime.datetime(2026, 5, 4, 12, 30, 0, 7, tzinfo=datetime.timezone.utc)
        >>> InstantSchema().encode(datetime(2026, 5, 4))
        Traceback (most recent call last):
        TypeError: INSTANT is a point in time, and datetime.datetime(2026, 5, 4, 0, 0) has no time zone; ...
    """

    _kind, _layout = SchemaType.INSTANT, struct.Struct(">qi")

    def _parts(self, obj: datetime) -> tuple[int, int]:
        # Java's Instant: seconds since 1970, negative before, and nanoseconds within the second, never
        # negative.
        seconds, rest = divmod((obj - _EPOCH) // _US, 1_000_000)
        return seconds, rest * 1000

    def _value(self, *parts: Any) -> datetime:
        seconds, nanoseconds = parts
        # Python has microseconds.
        return _EPOCH + timedelta(seconds=seconds, microseconds=nanoseconds // 1000)


class _TimeOfDaySchema(_PrimitiveSchema[time]):
    _value_class, _layout = time, struct.Struct(">q")

    def _check(self, obj: time) -> None:
        self._validate_object_type(obj)
        _check_local(self._kind, obj, "InstantSchema()")

    def _hint(self, obj: object) -> str:
        return "; send value.time()" if isinstance(obj, datetime) else ""


class TimeSchema(_TimeOfDaySchema):
    """Times of day in milliseconds, as ``java.sql.Time`` in UTC: values are ``time`` without a time zone.
    Microseconds are cut off.

    Example:
        >>> from datetime import time
        >>> TimeSchema().decode(TimeSchema().encode(time(12, 34, 56, 789000)))
        datetime.time(12, 34, 56, 789000)
    """

    _kind = SchemaType.TIME

    def _parts(self, obj: time) -> tuple[int]:
        return (_microseconds(obj) // 1000,)

    def _value(self, *parts: Any) -> time:
        # A time before 1970 in Java's form is negative; the remainder is the time of day all the same.
        return _time(parts[0] % _DAY_MS * 1000)  # Java's may be of any day


class LocalTimeSchema(_TimeOfDaySchema):
    """Times of day, as ``java.time.LocalTime``: values are ``time`` without a time zone. Nanoseconds that
    Java wrote are cut off to microseconds.

    Example:
        >>> from datetime import time
        >>> LocalTimeSchema().decode(LocalTimeSchema().encode(time(12, 34, 56, 7)))
        datetime.time(12, 34, 56, 7)
    """

    _kind = SchemaType.LOCAL_TIME

    def _parts(self, obj: time) -> tuple[int]:
        return (_microseconds(obj) * 1000,)

    def _value(self, *parts: Any) -> time:
        return _time(parts[0] // 1000)


class LocalDateSchema(_PrimitiveSchema[date]):
    """Days, as ``java.time.LocalDate``: values are ``date``.

    Example:
        >>> from datetime import date
        >>> LocalDateSchema().encode(date(1970, 1, 2)).hex()
        '0000000000000001'
    """

    _kind, _value_class, _layout = SchemaType.LOCAL_DATE, date, struct.Struct(">q")

    def _check(self, obj: date) -> None:
        # A datetime is a date in Python, and its time would be lost.
        if isinstance(obj, datetime):
            raise TypeError(f"{obj!r} is a datetime; send value.date(), or use LocalDateTimeSchema()")
        self._validate_object_type(obj)

    def _parts(self, obj: date) -> tuple[int]:
        # Python counts days from the year 1, Java's LocalDate from 1970.
        return (obj.toordinal() - _DAY_OF_EPOCH,)

    def _value(self, *parts: Any) -> date:
        return _day(parts[0])


class LocalDateTimeSchema(_PrimitiveSchema[datetime]):
    """Days and times of day, as ``java.time.LocalDateTime``: values are ``datetime`` without a time zone.
    Nanoseconds that Java wrote are cut off to microseconds.

    Example:
        >>> from datetime import datetime
        >>> LocalDateTimeSchema().decode(LocalDateTimeSchema().encode(datetime(2026, 5, 4, 12, 30)))
        datetime.datetime(2026, 5, 4, 12, 30)
    """

    _kind, _value_class, _layout = SchemaType.LOCAL_DATE_TIME, datetime, struct.Struct(">qq")

    def _check(self, obj: datetime) -> None:
        self._validate_object_type(obj)
        _check_local(self._kind, obj, "InstantSchema()")

    def _parts(self, obj: datetime) -> tuple[int, int]:
        return obj.toordinal() - _DAY_OF_EPOCH, _microseconds(obj.time()) * 1000

    def _value(self, *parts: Any) -> datetime:
        return datetime.combine(_day(parts[0]), _time(parts[1] // 1000))


def _check_local(kind: SchemaType, value: datetime | time, instead: str) -> None:
    # A zone would be lost, and the time with it.
    if value.tzinfo is not None:
        text = f"send value.replace(tzinfo=None), or use {instead} for points in time"
        raise TypeError(f"{kind.name} has no time zone, and {value!r} has one; {text}")


def _microseconds(value: time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _time(microseconds: int) -> time:
    if not 0 <= microseconds < _DAY_MS * 1000:
        # Other clients may have written anything into eight bytes.
        raise ValueError(f"{microseconds} us is not a time of day; Message.data() has the bytes")
    return (datetime.min + timedelta(microseconds=microseconds)).time()


def _day(number: int) -> date:
    # Python's dates end with the year 9999, Java's do not.
    if not 1 <= number + _DAY_OF_EPOCH <= date.max.toordinal():
        raise OverflowError(number)
    return date.fromordinal(number + _DAY_OF_EPOCH)


def primitive_schema(kind: SchemaType) -> Schema[Any] | None:
    """Return the schema of a primitive type; None for another type.

    Example:
        >>> primitive_schema(SchemaType.INT8).decode(b"*")
        42
    """
    schema_class = _BY_TYPE.get(kind)
    return None if schema_class is None else schema_class()

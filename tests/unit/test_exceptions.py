"""Unit tests of embeddedpulsar.exceptions."""

from __future__ import annotations

import builtins
import copy
import ctypes
import errno
import pickle
from pathlib import Path

import pulsar
import pulsar.asyncio
import pytest

import embeddedpulsar
import embeddedpulsar.asyncio
from embeddedpulsar import error_text, exceptions
from embeddedpulsar.exceptions import (
    CorruptionError,
    PulsarException,
    StorageError,
    StorageFullError,
    for_result,
    result_of,
)
from embeddedpulsar.results import Result

ERRORS = [result for result in Result if result is not Result.Ok]


def text_of_pulsar(result: Result) -> str:
    """The text the C++ core of the installed pulsar-client has for a result."""
    folder = Path(pulsar.__file__).parent.parent / "pulsar_client.libs"
    libraries = list(folder.glob("libpulsar*.so"))
    if not libraries:
        pytest.skip("this build of pulsar-client has no separate libpulsar")
    function = ctypes.CDLL(str(libraries[0]))._ZN6pulsar9strResultENS_6ResultE
    function.restype = ctypes.c_char_p
    return function(int(result)).decode()


@pytest.mark.parametrize("result", ERRORS)
def test_text_is_pulsars(result: Result):
    """An error made without a detail has exactly the text pulsar-client raises, odd spellings included."""
    error = for_result(result)()
    assert str(error) == f"Pulsar error: {text_of_pulsar(result)}"
    assert error.args == (str(error),)


@pytest.mark.parametrize("result", ERRORS)
def test_classes_and_results_map_one_to_one(result: Result):
    """Each result has a class of its name, and the class knows its result."""
    kind = for_result(result)
    assert kind.__name__ == result.name
    assert kind.code is result
    assert result_of(kind("why")) is result


@pytest.mark.parametrize("result", ERRORS)
def test_the_text_of_an_error_is_made_once(result: Result):
    """The text of an error, in either of its forms, is no detail of another one."""
    for text in (error_text.describe(result.name, "no tea"), error_text.numbered(result, "no tea")):
        assert error_text.describe(result.name, text) == text
    assert error_text.describe(result.name, "5 pots").endswith(": 5 pots")


def test_ok_is_no_error():
    """Asking for the exception of Ok is a mistake."""
    with pytest.raises(ValueError, match=r"Result\.Ok"):
        for_result(Result.Ok)


def test_foreign_errors_are_unknown():
    """A callback gets UnknownError for an error that is not Pulsar's."""
    assert result_of(ZeroDivisionError()) is Result.UnknownError


def test_detail_follows_the_text():
    """What happened comes after Pulsar's text, separated by a colon, in errors of this package."""
    with embeddedpulsar.Client("memory://") as client, pytest.raises(exceptions.Timeout) as caught:
        client.subscribe("topic", "sub").receive(timeout_millis=1)
    assert str(caught.value) == "Pulsar error: TimeOut: no message within 1 ms"


@pytest.mark.parametrize("name", ["PulsarException", "Timeout", "TopicNotFound", "Interrupted"])
@pytest.mark.parametrize("arguments", [("no tea",), ("Pulsar error: TimeOut",), ("no", "tea"), (5,)])
def test_errors_of_an_application_keep_their_text(name: str, arguments: tuple[object, ...]):
    """An error that an application makes reads as it does with pulsar-client, and so does a copy of it."""
    ours, theirs = getattr(embeddedpulsar, name)(*arguments), getattr(pulsar, name)(*arguments)
    assert str(ours) == str(theirs)
    assert ours.args == theirs.args
    for twin in (copy.copy(ours), pickle.loads(pickle.dumps(ours))):
        assert (type(twin), twin.args, str(twin)) == (type(ours), ours.args, str(ours))


def test_classes_of_an_application_keep_their_text():
    """A class derived from one of ours says what its constructor hands on."""

    class NoTea(embeddedpulsar.Timeout):
        def __init__(self, kind: str) -> None:
            super().__init__(f"there is no {kind} tea")

    assert (str(NoTea("green")), NoTea("green").error()) == ("there is no green tea", Result.Timeout)


@pytest.mark.parametrize("arguments", [(Result.Timeout,), (Result.Timeout, "no tea"), (Result.Timeout, "")])
def test_made_of_a_result_as_in_pulsar_asyncio(arguments: tuple[object, ...]):
    """`pulsar.asyncio.PulsarException(result[, text])` has the same text and result here."""
    their_result = pulsar.Result.Timeout
    ours = embeddedpulsar.asyncio.PulsarException(*arguments)
    theirs = pulsar.asyncio.PulsarException(their_result, *arguments[1:])
    assert str(ours) == str(theirs)
    assert ours.error() is Result.Timeout
    assert int(theirs.error()) == int(ours.error())
    assert result_of(ours) is Result.Timeout
    named = embeddedpulsar.Timeout(**dict(zip(("result", "msg"), arguments, strict=False)))
    assert (str(named), named.error()) == (str(ours), ours.error())
    for error in (ours, named):
        twin = pickle.loads(pickle.dumps(error))
        assert (type(twin), str(twin), twin.error()) == (type(error), str(ours), ours.error())


@pytest.mark.parametrize(
    ("kind", "parent"),
    [
        (exceptions.Timeout, TimeoutError),
        (exceptions.LockTimeout, TimeoutError),
        (exceptions.ConnectError, ConnectionError),
        (exceptions.InvalidConfiguration, ValueError),
        (exceptions.InvalidUrl, ValueError),
        (exceptions.InvalidTopicName, ValueError),
        (exceptions.TopicNotFound, builtins.LookupError),
        (exceptions.SubscriptionNotFound, builtins.LookupError),
        (exceptions.Interrupted, KeyboardInterrupt),
        (exceptions.StorageFullError, OSError),
        (exceptions.ThreadLimitError, RuntimeError),
        (exceptions.ThreadLimitError, exceptions.UnknownError),
        (exceptions.DescriptorLimitError, OSError),
        (exceptions.DescriptorLimitError, exceptions.BrokerPersistenceError),
        (exceptions.UnsupportedFormatVersion, exceptions.StorageError),
        (exceptions.UnsupportedFormatVersion, exceptions.UnsupportedVersionError),
        (exceptions.StorageError, exceptions.BrokerPersistenceError),
    ],
)
def test_natural_parents(kind: type[PulsarException], parent: type[BaseException]):
    """The builtin a Python programmer would catch catches it; so does PulsarException."""
    assert issubclass(kind, parent)
    assert issubclass(kind, PulsarException)
    assert str(kind("why")).endswith("why")


def test_storage_errors_say_where_and_what_to_do():
    """Place, reason and remedy are in the text and in attributes."""
    error = CorruptionError(path=Path("t/x.log"), offset=4096, reason="bad checksum", remedy="run a check")
    assert str(error).endswith("BrokerPersistenceError: t/x.log at offset 4096: bad checksum; run a check")
    assert (error.path, error.offset, error.reason, error.remedy) == (
        "t/x.log",
        4096,
        "bad checksum",
        "run a check",
    )


def test_at_names_the_file_once():
    """A parser raises without a path; the first caller that knows it adds it, to the same error."""
    error = CorruptionError("short header", offset=0)
    assert str(error).endswith(": at offset 0: short header")
    assert error.at("a.idx") is error
    assert error.at("b.idx").path == "a.idx"
    assert str(error).endswith(": a.idx at offset 0: short header")


def test_storage_full_has_an_errno():
    """Code that looks at OSError.errno works, quota included."""
    assert StorageFullError("no room").errno == errno.ENOSPC
    assert StorageFullError("no quota", errno=errno.EDQUOT).errno == errno.EDQUOT


@pytest.mark.parametrize("error", [exceptions.Timeout("why"), CorruptionError("bad", path="x", offset=8)])
def test_errors_can_be_copied(error: PulsarException):
    """A copy, as made when an error crosses processes, has the same text and attributes."""
    twin = copy.copy(error)
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert twin.__dict__ == error.__dict__


def test_subclasses_inherit_the_code():
    """A kind of ours answers with the result of its Pulsar parent."""
    assert exceptions.LockTimeout.code is Result.Timeout
    assert StorageError.code is Result.BrokerPersistenceError
    assert exceptions.UnsupportedFormatVersion.code is Result.UnsupportedVersionError

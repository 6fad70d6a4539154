"""The errors of this package, with the names and texts of ``pulsar-client``.

``str(error)`` of an error of this package starts with ``Pulsar error: `` and Pulsar's text for the result.
After a colon follow the cause, the object and a remedy. A few classes also derive from the builtin that a
Python programmer would catch: `Timeout` is a ``TimeoutError``. Errors of files are subclasses of
`StorageError`.

``LookupError`` here is Pulsar's. ``from embeddedpulsar.exceptions import *`` would hide the builtin.
"""

from __future__ import annotations

import builtins
import errno as errno_codes
import os

from embeddedpulsar import error_text
from embeddedpulsar.enums import PulsarEnum
from embeddedpulsar.records import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing import Any, ClassVar, TypeGuard

    from embeddedpulsar.results import Result

_Error = TypeVar("_Error", bound="StorageError")


class _CodeOfClass:
    """`PulsarException.code` of a class: a look-up by the name of the class, since most processes never ask
    for the code of an error and need no `Result`."""

    def __get__(self, error: object, kind: type[PulsarException]) -> Result:
        from embeddedpulsar.results import Result

        return Result[kind._result_name]


def _is_result(value: object) -> TypeGuard[Result]:
    # What is no enumeration is answered without the module; where a result was made, it is loaded.
    if not isinstance(value, PulsarEnum):
        return False
    from embeddedpulsar.results import Result

    return isinstance(value, Result)


class PulsarException(Exception):
    """Base of all errors of this package. An error that an application raises keeps its text.

    Args:
        args: any text; or a `Result` and optionally a text, as in ``pulsar.asyncio``.
        result, msg: the same as keyword arguments, with the names of ``pulsar.asyncio``.

    Attributes:
        code: the `Result` of the error: the one of its class, or the one given to the constructor.

    Example:
        >>> from embeddedpulsar import Result
        >>> from embeddedpulsar.exceptions import Timeout, TopicTerminated
        >>> str(TopicTerminated()), str(Timeout("no answer from the till")), Timeout.code
        ('Pulsar error: TopicTerminated', 'no answer from the till', <Result.Timeout: 3>)
        >>> error = PulsarException(Result.Timeout, "no answer from the till")
        >>> str(error), error.error()
        ('3 Timeout: no answer from the till', <Result.Timeout: 3>)
    """

    if TYPE_CHECKING:
        code: Result
    else:
        code = _CodeOfClass()
    _result_name: ClassVar[str] = "UnknownError"

    def __init__(self, *args: object, result: Result | None = None, msg: object = None) -> None:
        if result is not None:
            args = (result, msg) if msg else (result,)
        # Three forms of arguments: a result, as pulsar.asyncio has them; a text or nothing of this package,
        # which gets Pulsar's text in front; and anything of an application, which stays as it is.
        if args and _is_result(args[0]):
            self.code = args[0]
        elif not args or (len(args) == 1 and error_text.is_made_here()):
            args = (error_text.describe(self._result_name, str(args[0]) if args else ""),)
        super().__init__(*args)

    def error(self) -> Result:
        """Return `code`, as the errors of ``pulsar.asyncio`` do."""
        return self.code

    def __str__(self) -> str:
        # Defined here because `OSError`, from which some classes derive, has another __str__().
        if self.args and _is_result(self.args[0]) and len(self.args) <= 2:
            return error_text.numbered(*self.args)
        return str(self.args[0]) if len(self.args) == 1 else str(self.args)


class UnknownError(PulsarException):
    """The operation failed for another reason than those of the other classes."""


class InvalidConfiguration(PulsarException, ValueError):
    """An argument or setting contradicts another one, or the topic."""


class Timeout(PulsarException, TimeoutError):
    """The operation did not finish in time. Also a ``TimeoutError``."""


class LookupError(PulsarException):
    """The topic could not be looked up. Not the builtin of that name."""


class ConnectError(PulsarException, ConnectionError):
    """The store could not be opened. Also a ``ConnectionError``."""


class ReadError(PulsarException):
    """Stored data could not be read."""


class ColdReadError(ReadError):
    """An offloaded ledger cannot be read back. Nothing was skipped, and the call can be repeated."""


class AuthenticationError(PulsarException):
    """The credentials were not accepted."""


class AuthorizationError(PulsarException):
    """The role lacks the permission."""


class ErrorGettingAuthenticationData(PulsarException):
    """The authentication plug-in could not produce its data."""


class BrokerMetadataError(PulsarException):
    """The metadata of the store does not allow the operation (unsubscribe with other consumers attached)."""


class BrokerPersistenceError(PulsarException):
    """The store could not persist or read data. `StorageError` and its subclasses give the reason."""


class ChecksumError(PulsarException):
    """A message does not match its checksum."""


class ConsumerBusy(PulsarException):
    """Another consumer holds the subscription, or attached with another type."""


class NotConnected(PulsarException):
    """The producer or consumer is not attached to its topic."""


class AlreadyClosed(PulsarException):
    """The object was closed, or belongs to the parent of this forked process."""


class InvalidMessage(PulsarException):
    """The message cannot be published as it is."""


class ConsumerNotInitialized(PulsarException):
    """The consumer was never attached."""


class ProducerNotInitialized(PulsarException):
    """The producer was never attached."""


class ProducerBusy(PulsarException):
    """A producer of that name is connected, or the topic accepts no further producer now."""


class TooManyLookupRequestException(PulsarException):
    """Too many topic look-ups at once."""


class InvalidTopicName(PulsarException, ValueError):
    """The text is not a topic name. Also a ``ValueError``."""


class InvalidUrl(PulsarException, ValueError):
    """The text is not a service URL. Also a ``ValueError``."""


class ServiceUnitNotReady(PulsarException):
    """The topic is being moved or deleted; try again."""


class OperationNotSupported(PulsarException):
    """The operation has no meaning for this object."""


class ProducerBlockedQuotaExceededError(PulsarException):
    """The backlog quota holds producers back."""


class ProducerBlockedQuotaExceededException(PulsarException):
    """The backlog quota refuses producers."""


class ProducerQueueIsFull(PulsarException):
    """More than ``max_pending_messages`` are pending and the producer does not block."""


class MessageTooBig(PulsarException):
    """The message exceeds ``maxMessageSize`` and chunking is off."""


class TopicNotFound(PulsarException, builtins.LookupError):
    """No such topic, tenant or namespace. Also a builtin ``LookupError``."""


class SubscriptionNotFound(PulsarException, builtins.LookupError):
    """No such subscription, and the caller may not create it. Also a builtin ``LookupError``."""


class ConsumerNotFound(PulsarException):
    """No such consumer."""


class UnsupportedVersionError(PulsarException):
    """The peer uses a version that is not supported."""


class TopicTerminated(PulsarException):
    """The topic takes no further messages."""


class CryptoError(PulsarException):
    """A message could not be encrypted or decrypted."""


class IncompatibleSchema(PulsarException):
    """The schema does not fit the one the topic has."""


class ConsumerAssignError(PulsarException):
    """The hash ranges of a Key_Shared consumer are empty, inverted or taken."""


class CumulativeAcknowledgementNotAllowedError(PulsarException):
    """Shared and Key_Shared subscriptions have no cumulative acknowledgement."""


class TransactionCoordinatorNotFoundError(PulsarException):
    """No coordinator serves the transaction."""


class InvalidTxnStatusError(PulsarException):
    """The transaction is in a state that does not allow this."""


class NotAllowedError(PulsarException):
    """The operation is not allowed now."""


class TransactionConflict(PulsarException):
    """Another transaction acknowledged the message first."""


class TransactionNotFound(PulsarException):
    """No such transaction."""


class ProducerFenced(PulsarException):
    """Another producer has exclusive access to the topic."""


class MemoryBufferIsFull(PulsarException):
    """The memory limit of the client is reached."""


class Interrupted(PulsarException, KeyboardInterrupt):
    """Ctrl-C arrived while blocked. Also a ``KeyboardInterrupt``."""


class StorageError(BrokerPersistenceError):
    """A file of the store is damaged, foreign, full or unusable.

    Args:
        detail: the reason; a positional form of ``reason``.
        path: the file. Code that parses bytes omits it; the caller adds it with `at`.
        offset: byte offset in that file.
        reason: what is wrong.
        remedy: what the user can do.

    Example:
        >>> error = CorruptionError("the frame checksum does not match", offset=4096, remedy="run a check")
        >>> str(error.at("t/00000000000000000007.log")).removeprefix("Pulsar error: BrokerPersistenceError: ")
        't/00000000000000000007.log at offset 4096: the frame checksum does not match; run a check'
        >>> error.offset, error.remedy
        (4096, 'run a check')
    """

    path: str | None
    offset: int | None
    reason: str
    remedy: str

    def __init__(
        self,
        detail: str = "",
        *,
        path: str | os.PathLike[str] | None = None,
        offset: int | None = None,
        reason: str = "",
        remedy: str = "",
    ) -> None:
        self.path = None if path is None else os.fspath(path)
        self.offset = offset
        self.reason = reason or detail
        self.remedy = remedy
        super().__init__(error_text.describe(self._result_name, self._sentence()))

    def at(self: _Error, path: str | os.PathLike[str]) -> _Error:
        """Set the file, unless it is set already, and return this error (``raise error.at(path)``)."""
        # The innermost file is the one: callers further up add theirs too, and know less.
        if self.path is None:
            self.path = os.fspath(path)
            # The text is made again, since `str` of an exception shows what it was made of.
            self.args = (error_text.describe(self._result_name, self._sentence()),)
        return self

    def _sentence(self) -> str:
        place = self.path or ""
        if self.offset is not None:
            # Offset 0 is a place, too.
            place = f"{place} at offset {self.offset}".strip()
        sentence = ": ".join(part for part in (place, self.reason) if part)
        return f"{sentence}; {self.remedy}" if self.remedy else sentence


class CorruptionError(StorageError):
    """Bytes of the store differ from those written. The error causes no deletion and no truncation."""


class ForeignFileError(StorageError):
    """The file or directory was not written by this package."""


class UnsupportedFormatVersion(UnsupportedVersionError, StorageError):
    """The file was written by a newer version, or on a machine of the other byte order."""


class StorageOSError(StorageError, OSError):
    """The operating system refused an operation on a file of the store. Also an ``OSError``."""

    _usual: ClassVar[int] = errno_codes.EIO

    def __init__(self, detail: str = "", *, errno: int = 0, **place: Any) -> None:
        super().__init__(detail, **place)
        # `OSError` sets its number only if it is made with two arguments, which would change the text.
        self.errno = errno or self._usual


class StorageFullError(StorageOSError):
    """No space or quota is left. Nothing was published, and the store stays usable. Also an ``OSError``.

    Example:
        >>> StorageFullError("no room for 4 MiB", path="ctl").errno == errno_codes.ENOSPC
        True
    """

    _usual = errno_codes.ENOSPC


class AccessDeniedError(StorageOSError, PermissionError):
    """This process may not access a file of the store; the text names the owner. A ``PermissionError``."""

    _usual = errno_codes.EACCES


class ReadOnlyStoreError(AccessDeniedError):
    """The store is open read-only, and the call would change it. Nothing was changed. The text says why the
    store cannot be written to, and what to do. A ``PermissionError``."""

    _usual = errno_codes.EROFS


class DescriptorLimitError(BrokerPersistenceError, OSError):
    """The process or the system cannot open more files (EMFILE, ENFILE). Nothing was changed; the call can be
    repeated. Not a `StorageError`, because the store is intact. Also an ``OSError``."""

    def __init__(self, detail: str = "", *, remedy: str = "", errno: int = errno_codes.EMFILE) -> None:
        super().__init__(f"{detail}; {remedy}" if remedy else detail)
        self.errno = errno


class ThreadLimitError(UnknownError, RuntimeError):
    """The system refuses another thread; nothing stays attached. Also a ``RuntimeError``."""


class StoreGoneError(StorageError):
    """The store, or a topic in it, was removed, moved or replaced while it was open. Nothing is written."""


class TransactionTimeout(InvalidTxnStatusError):
    """The timeout of the transaction has passed, and it was aborted."""


class TransactionHasOperationFailed(InvalidTxnStatusError):
    """A send or an acknowledgement of the transaction failed, so it was aborted in the place of a commit."""


class LockTimeout(Timeout):
    """A file lock was not granted in time. The text names the lock and, if known, its holder."""


class NetworkFilesystemError(StorageError):
    """The store is on a network file system, where machines do not share locks and memory maps."""


class PoisonedSegment(StorageError):
    """The kernel could not flush a segment, so its state on disk is unknown. Writing continues in another."""


# The classes that derive directly from the base are Pulsar's own, named as their results.
_CLASSES: dict[str, type[PulsarException]] = {}
for _kind in PulsarException.__subclasses__():
    _kind._result_name = _kind.__name__
    _CLASSES[_kind.__name__] = _kind


def for_result(result: Result) -> type[PulsarException]:
    """Return the exception class of ``result``.

    Raises:
        ValueError: ``result`` is `Result.Ok`, which is not an error.

    Example:
        >>> from embeddedpulsar import Result
        >>> for_result(Result.TopicNotFound)
        <class 'embeddedpulsar.exceptions.TopicNotFound'>
    """
    from embeddedpulsar.results import Result

    try:
        return _CLASSES[Result(result).name]
    except KeyError:
        raise ValueError(f"{result} has no exception") from None


def result_of(error: BaseException) -> Result:
    """Return the `Result` that a callback gets for ``error``; `Result.UnknownError` if it is not Pulsar's.

    Example:
        >>> result_of(LockTimeout()), result_of(KeyError())
        (<Result.Timeout: 3>, <Result.UnknownError: 1>)
    """
    return error.code if isinstance(error, PulsarException) else PulsarException.code

"""Blocking calls on other threads than that of the loop, with the error texts of ``pulsar.asyncio``.

Transactions of a loop: every call of one is such a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from embeddedpulsar import error_text
from embeddedpulsar._engine.platform import package_log
from embeddedpulsar._engine.platform import threads as threads
from embeddedpulsar._engine.platform import timing as timing
from embeddedpulsar._engine.platform.descriptors import late_imports as late_imports
from embeddedpulsar.client import client_threads
from embeddedpulsar.client.arguments import check_transaction
from embeddedpulsar.client.client_context import ProcessBound
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    InvalidTxnStatusError,
    LockTimeout,
    PulsarException,
    ThreadLimitError,
)

if TYPE_CHECKING:
    from embeddedpulsar.client.transaction import PreparedTransaction, TransactionState, TxnID
    from embeddedpulsar.client.transaction import Transaction as BlockingTransaction


R = TypeVar("R")
# Seconds that a cancellation waits for the end of what it cancels, which may hang in a lock of another
# process.
_UNDO_S: Final = 1.0


def renumber(error: BaseException | None) -> None:
    """Put number and name of the result before the text of an error of this package. Idempotent.

    The same object is changed, so that its class, its traceback and references to it stay valid.

    >>> from embeddedpulsar.exceptions import AlreadyClosed
    >>> error = AlreadyClosed()
    >>> renumber(error)
    >>> str(error)
    '15 AlreadyClosed'
    """
    # One argument: the text. A number is put before it once only; `renumbered` leaves it alone then.
    if isinstance(error, PulsarException) and len(error.args) == 1:
        error.args = (error_text.renumbered(error.code, str(error.args[0])),)


class AsyncFacade:
    """The methods that clients, producers, consumers and readers of asyncio loops share.

    ``async with`` ends as the ``with`` of the blocking object does, on a thread.

    Args:
        blocking: the object below, with the interface of `embeddedpulsar`.
    """

    def __init__(self, blocking: Any) -> None:
        self._blocking = blocking

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await in_thread(lambda: self._blocking.__exit__(*raised))

    def __repr__(self) -> str:
        return f"<asyncio {repr(self._blocking)[1:]}"


async def in_thread(call: Callable[[], R], undo: Callable[[R], object] | None = None) -> R:
    """Run a call that may block on a thread of its own, and return its result.

    The loop's thread pool is not used: it has few threads, and a producer may wait for exclusive access for
    days. If ``call`` waits for access to a topic, cancellation ends that wait.

    A cancelled coroutine does not get the result, so ``undo`` is called with it on a thread: an unknown
    consumer must not keep messages. The cancellation waits for that, so that the next call of the program
    does not conflict with the result; but no longer than a second, and not for a call that has not begun,
    which then does not begin. Whatever becomes of the coroutine and of its loop, ``undo`` is called once.
    """
    if undo is not None:
        return await _Opening(call, undo).result()
    awaited = client_threads.AwaitedCall()
    try:
        return await _begin(call, awaited)
    except asyncio.CancelledError:
        awaited.give_up()
        raise


async def in_thread_to_its_end(call: Callable[[], R], nothing: R) -> R:
    """`in_thread` for a call that a cancellation ends, with a wait for its end.

    So nothing of it happens after the await. The ``stored`` of the cancellation is the result of the call, or
    the ``stored`` of its exception, or ``nothing``. A second cancellation does not wait.
    """
    awaited = client_threads.AwaitedCall()
    future = _begin(call, awaited)
    future.add_done_callback(_retrieve)
    try:
        # `wait` does not cancel the future when it is cancelled itself, as a plain `await` would: the thread
        # goes on, and its end is needed.
        await asyncio.wait([future])
    except asyncio.CancelledError as cancelled:
        awaited.give_up()
        await asyncio.wait([future])
        error = future.exception()
        stored = future.result() if error is None else getattr(error, "stored", nothing)
        cancelled.stored = stored  # type: ignore[attr-defined]
        raise cancelled from error
    return future.result()


def try_or_start(call: Callable[[], object]) -> None:
    """Run a call of a method that is not awaited: at once if it waits for no lock, otherwise on a thread."""
    try:
        timing.try_now(call)
    except LockTimeout:
        _start(call)


def _begin(call: Callable[[], R], awaited: client_threads.AwaitedCall | None = None) -> asyncio.Future[R]:
    """Start a call on a thread of its own. The future gets its result, unless the loop is closed by then."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()

    def run() -> None:
        # The thread of the call asks this object whether its coroutine gave up; waits for access to a topic
        # end by it.
        client_threads.current.set(awaited)
        outcome: Any = None
        error: BaseException | None = None
        try:
            outcome = call()
        except BaseException as e:  # noqa: BLE001 - passed to the awaiting coroutine
            error = e
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(_set_outcome, future, outcome, error)

    try:
        threads.start_daemon(run, "blocking-call")
    except ThreadLimitError as error:
        renumber(error)
        raise
    return future


def _set_outcome(future: asyncio.Future[Any], outcome: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled
        return
    if error is not None:
        renumber(error)
        future.set_exception(error)
    else:
        future.set_result(outcome)


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved: a cancelled coroutine does not ask for it."""
    if not done.cancelled():
        done.exception()


def _start(call: Callable[[], object]) -> None:
    def run() -> None:
        with contextlib.suppress(AlreadyClosed):  # closed with its client, meanwhile
            call()

    threads.start_daemon(run, "undo")


class _Opening(Generic[R]):
    """A call that attaches something, which its coroutine gets, or which ``undo`` detaches.

    Role: the thread of the call and the coroutine agree without a lock on who has the result. The thread puts
    it into a list and then asks whether the coroutine gave up; a coroutine that ends early gives up and then
    looks into the list. So at least one of them finds it, and only one can take it out. The loop has no part
    in that: it may stop, or be closed, before it runs what the thread sent.

    Args:
        call: attaches, on a thread.
        undo: detaches its result, on a thread.
    """

    def __init__(self, call: Callable[[], R], undo: Callable[[R], object]) -> None:
        self._call = call
        self._undo = undo
        self._made: list[R] = []
        self._has_begun = False
        self._awaited = client_threads.AwaitedCall()
        self._future = _begin(self._run, self._awaited)

    def _run(self) -> None:
        self._has_begun = True
        # Cancelled before the thread ran: nothing is attached, and nothing is to be undone.
        if self._awaited.is_given_up:
            return
        self._made.append(self._call())
        if self._awaited.is_given_up:
            client_threads.current.set(None)  # what is given up is the call, not the end of its result
            self._detach()

    def _detach(self) -> None:
        try:
            # `pop` is one step: of the thread and the coroutine exactly one gets the result.
            attached = self._made.pop()
        except IndexError:
            return  # the other one has it
        try:
            self._undo(attached)
        except AlreadyClosed:
            return  # closed with its client, meanwhile
        except Exception:
            logging.getLogger(package_log.NAME).exception(
                "Closing %r, which a cancelled call made, failed", attached
            )

    async def result(self) -> R:
        """Return what was attached."""
        future = self._future
        try:
            await asyncio.wait([future])
            future.result()  # an error of the call
            return self._made.pop()
        except asyncio.CancelledError:
            self._awaited.give_up()
            future.add_done_callback(_retrieve)
            # A call that has not begun will not begin, so there is no end to wait for.
            ends = [future] if self._has_begun else []
            # The thread had its result before it could see that the coroutine gave up.
            if self._made:
                try:
                    ends.append(_begin(self._detach))
                # Better in the loop than not at all: an unknown consumer would keep messages.
                except ThreadLimitError:
                    self._detach()
            if ends:
                await asyncio.wait(ends, timeout=_UNDO_S)
            raise
        except GeneratorExit:  # it was dropped with its loop: nothing can be awaited
            self._awaited.give_up()
            if self._made:
                _start(self._detach)
            raise


class Transaction(ProcessBound):
    """Sends and acknowledgements of which all count, or none. Made by `Client.transaction` of
    `embeddedpulsar.asyncio`; see `embeddedpulsar.Transaction`. ``pulsar.asyncio`` has none.

    ``async with`` commits at the end of the block, and aborts after an exception or a cancellation. One that
    was joined ends with its block, and is committed by the process that began it.

    Args:
        begin: begins it, on a thread.

    Example:
        >>> import asyncio
        >>> from embeddedpulsar.asyncio import Client
        >>> async def main():
        ...     async with Client("memory://") as client:
        ...         producer = await client.create_producer("orders")
        ...         async with client.transaction() as txn:
        ...             await asyncio.gather(*(producer.send(b"%d" % i, txn=txn) for i in range(3)))
        ...         return str(txn.id), txn.state.name
        >>> asyncio.run(main())
        ('(0,1)', 'COMMITTED')
    """

    def __init__(self, begin: Callable[[], BlockingTransaction]) -> None:
        self._begin: Final = begin
        self._begun: BlockingTransaction | None = None

    @property
    def _blocking(self) -> BlockingTransaction:
        if self._begun is None:
            raise InvalidTxnStatusError("the transaction has not begun: use it in async with")
        return self._begun

    async def __aenter__(self) -> Self:
        if self._begun is None:
            self._begun = await in_thread(self._begin)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *raised: Any) -> None:
        # A cancellation in the middle of a commit leaves that to its thread: what became of it `state` tells.
        await in_thread(lambda: self._blocking.__exit__(kind, *raised))

    @property
    def id(self) -> TxnID:
        """The id; see `embeddedpulsar.Transaction`.

        Raises:
            InvalidTxnStatusError: it has not begun, or has ended before anything was done in it.
        """
        return self._blocking.id

    @property
    def state(self) -> TransactionState:
        """How far it is, as the store says; see `embeddedpulsar.Transaction`."""
        return self._blocking.state

    async def token(self) -> bytes:
        """Return what another process takes part with; see `embeddedpulsar.Client.join_transaction`.

        Example:
            >>> import asyncio
            >>> from embeddedpulsar.asyncio import Client
            >>> async def main():
            ...     async with Client("memory://") as client, client.transaction() as txn:
            ...         return len(await txn.token())
            >>> asyncio.run(main())
            40
        """
        return await in_thread(lambda: self._blocking.token)

    async def commit(self) -> None:
        """Make all of it count at once; see `embeddedpulsar.Transaction.commit`.

        A cancelled call goes on; `state` tells what became of it.

        Example:
            >>> import asyncio
            >>> from embeddedpulsar.asyncio import Client
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         txn = await client.new_transaction()
            ...         await (await client.create_producer("orders")).send(b"one tea", txn=txn)
            ...         await txn.commit()
            ...         return txn.state.name
            >>> asyncio.run(main())
            'COMMITTED'
        """
        await in_thread(self._blocking.commit)

    async def abort(self) -> None:
        """Undo all of it; see `embeddedpulsar.Transaction.abort`.

        Example:
            >>> import asyncio
            >>> from embeddedpulsar.asyncio import Client
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         txn = await client.new_transaction()
            ...         await txn.abort()
            ...         return txn.state.name
            >>> asyncio.run(main())
            'ABORTED'
        """
        await in_thread(self._blocking.abort)

    async def prepare(self, label: str = "", *, deadline_ms: int = 0) -> PreparedTransaction:
        """Have it wait for its end; see `embeddedpulsar.Transaction.prepare`.

        Example:
            >>> import asyncio
            >>> from embeddedpulsar.asyncio import Client
            >>> async def main():
            ...     async with Client("memory://") as client:
            ...         return (await (await client.new_transaction()).prepare("invoice-42")).label
            >>> asyncio.run(main())
            'invoice-42'
        """
        return await in_thread(lambda: self._blocking.prepare(label, deadline_ms=deadline_ms))

    def __repr__(self) -> str:
        return "<asyncio Transaction>" if self._begun is None else f"<asyncio {repr(self._begun)[1:]}"


async def begun(txn: Transaction | BlockingTransaction) -> BlockingTransaction:
    """The transaction below, which has its id: getting one may wait for a lock, and then a thread does it."""
    blocking: Any = txn._blocking if isinstance(txn, Transaction) else txn
    check_transaction(blocking)
    if isinstance(txn, Transaction) and not blocking._is_known:
        try:
            timing.try_now(blocking._begin)
        except LockTimeout:
            await in_thread(blocking._begin)
        except PulsarException as error:
            renumber(error)
            raise
    given: BlockingTransaction = blocking
    return given


def with_blocking(options: Any) -> dict[str, Any]:
    """The options of a call, with the transaction below in the place of one of this package."""
    given = dict(options)
    if isinstance(given.get("txn"), Transaction):
        given["txn"] = given["txn"]._blocking
    return given

"""Transactions of asyncio loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

from embeddedpulsar.asyncio.worker_threads import in_thread, renumber, timing
from embeddedpulsar.client.arguments import check_transaction
from embeddedpulsar.client.client_context import ProcessBound
from embeddedpulsar.exceptions import InvalidTxnStatusError, LockTimeout, PulsarException

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.transaction import PreparedTransaction, TransactionState, TxnID
    from embeddedpulsar.client.transaction import Transaction as BlockingTransaction


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

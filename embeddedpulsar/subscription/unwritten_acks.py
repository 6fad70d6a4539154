"""Acknowledgements that a leaving consumer never wrote, read from its ring when it is detached."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion
from embeddedpulsar.format.ack_ring import RING_SIZE, Unwritten, parse_ring
from embeddedpulsar.format.acknowledgement import Ack, group_batches, group_entries
from embeddedpulsar.format.subscription_record import AckCumulative, Command, Detach, Ledgers
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.platform import descriptors, disk, failpoints
from embeddedpulsar.storage.filenames import acks_path, consumers_in
from embeddedpulsar.subscription.log_queries import news_for
from embeddedpulsar.subscription.state.state_machine import SubscriptionState

failpoints.declare("subscription:left")


def with_unwritten_acks(
    state: SubscriptionState,
    directory: str,
    boot: bytes,
    leaving: Iterable[Detach],
    facts: Callable[[], Ledgers],
) -> list[Command]:
    """Detach commands, each behind what the consumer acknowledged. Inside a transaction.

    Args:
        state: caught up.
        directory: of the subscription.
        boot: that of its control words: nothing of another one is believed.
        leaving: the consumers that leave.
        facts: the ledgers there are; asked for if the state does not know one that counts.
    """
    commands: list[Command] = []
    for one in leaving:
        found = _read(acks_path(directory, one.consumer_id), boot)
        if found is not None and found.consumer_id == one.consumer_id:
            commands += _commands_of(state, found, facts)
        commands.append(one)
    return commands


def _read(path: str, boot: bytes) -> Unwritten | None:
    try:
        fd = disk.DISK.open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return None  # it has no acknowledgements
    try:
        status = os.fstat(fd)
        header, found = parse_ring(disk.DISK.pread(fd, RING_SIZE, 0))
    except (CorruptionError, UnsupportedFormatVersion):
        return None  # it died before it was made
    finally:
        os.close(fd)
    is_trusted = (header.boot_id, header.device, header.inode) == (boot, status.st_dev, status.st_ino)
    return found if is_trusted else None


def _commands_of(state: SubscriptionState, found: Unwritten, facts: Callable[[], Ledgers]) -> list[Command]:
    """The acknowledgements in the ring that count and are not in the state already."""
    if not state.consumers.is_current(found.consumer_id, found.epoch):
        return []  # void: the subscription was moved since
    acks = state.acks
    entries = [one for one in found.entries if not acks.is_acked(Position(*one))]
    parts = {one: bits for one, bits in found.parts.items() if not acks.is_acked(Position(*one))}
    cumulative = [
        one for one in found.cumulative if Position(one[0], one[1]) > acks.mark_delete or one[2] >= 0
    ]
    commands: list[Command] = []
    if entries or parts:
        commands.append(Ack(found.consumer_id, found.epoch, group_entries(entries), group_batches(parts)))
    commands += [AckCumulative(found.consumer_id, found.epoch, *one) for one in cumulative]
    newest = max((place[0] for place in (*entries, *parts, *cumulative)), default=0)
    if newest > acks.newest_ledger:
        commands = [*news_for(state, facts()), *commands]
    return commands


def sweep_rings(directory: str, state: SubscriptionState) -> None:
    """Remove the files of consumers that left. Those of consumers ``state`` has not heard of yet stay."""
    failpoints.hit("subscription:left")
    epoch = state.epoch
    attached = {consumer.consumer_id for consumer in state.consumers.all()}
    try:
        found = consumers_in(descriptors.names_in(directory))
    except FileNotFoundError:
        return  # the directory was removed with its topic
    for consumer_id in found:
        if consumer_id <= epoch and consumer_id not in attached:
            with contextlib.suppress(FileNotFoundError):  # another process removes it too
                disk.DISK.unlink(acks_path(directory, consumer_id))

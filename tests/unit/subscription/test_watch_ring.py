"""Which processes look after which others."""

from __future__ import annotations

from pathlib import Path

from tests.unit.subscription.virtual_site import VirtualSite, read


def test_consumers_that_came_before_a_snapshot_are_watched(tmp_path: Path):
    """A process that learns of another's consumer from a snapshot of the journal, and not from the command
    by which it attached, watches that process too: its death gives back what it had within milliseconds."""
    with VirtualSite(tmp_path) as site:
        first, process = site.attach(), site.world.start()
        second = site.attach(process=process)
        site.publish(4)
        assert read(second) == [0, 1]
        shared = process.shared
        shared.transact(lambda _: shared._journal.compact(site.world.clock.wall_ms()))
        received = read(first)
        assert process.uuid in site.process.mailbox.watched
        site.world.kill(process)
        site.process.tell_of_deaths()
        while found := read(first):
            received += found
        assert sorted(received) == [0, 1, 2, 3]

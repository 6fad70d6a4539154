"""Compaction of topics on the command line."""

from __future__ import annotations

import click

from embeddedpulsar.admin import compaction_calls
from embeddedpulsar.cli.background_work import BackgroundWork
from embeddedpulsar.cli.base import OpenedStore, pass_store, topic_argument
from embeddedpulsar.cli.topic_commands import topics

_COMPACTION = BackgroundWork(
    "compaction",
    compaction_calls.compaction_status,
    compaction_calls.compaction_progress,
    "{:,} of about {:,} entries read",
)


@topics.command()
@topic_argument
@pass_store
@click.pass_context
def compact(context: click.Context, store: OpenedStore, topic: str) -> None:
    """Compact TOPIC, or all its partitions, and wait for the end."""
    with store.admin() as admin:
        admin.topics().compact(topic)
        _COMPACTION.wait(context, admin, topic)


_COMPACTION.add_status_command("compaction-status")

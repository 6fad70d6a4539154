"""``embeddedpulsar outbox``: the relay of an outbox in the foreground, and what waits in it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Final

import click

from embeddedpulsar.cli.base import OpenedStore, as_json, pass_store, print_json, print_table
from embeddedpulsar.cli.engine import SYSTEM_CLOCK, on_termination
from embeddedpulsar.cli.terminal import ProgressLine
from embeddedpulsar.exceptions import AccessDeniedError
from embeddedpulsar.outbox import Relay, status
from embeddedpulsar.outbox.databases import opener_of
from embeddedpulsar.outbox.relay import POLL_S, is_served

_SQLITE: Final = "sqlite:///"

_table = click.option(
    "--table", default="outbox", show_default=True, metavar="NAME", help="The table of the outbox."
)
_places = click.argument("places", nargs=-1, required=True, metavar="[STORE] DATABASE")


@click.group()
def outbox() -> None:
    """Publish what applications store in their own databases, and show what waits.

    DATABASE is sqlite:///app.db, sqlite:////srv/app.db or postgresql://user@host/name. STORE may be given
    here or before the command.
    """


def _placed(store: OpenedStore, places: tuple[str, ...]) -> tuple[OpenedStore, str]:
    """The store and the URL of the database; a file of SQLite is there."""
    if len(places) > 2:
        raise click.UsageError("name one store and one database: outbox run ./data sqlite:///app.db")
    database = places[-1]
    opener_of(database)
    path = database.removeprefix(_SQLITE)
    # A misspelt path would be a new, empty database.
    if database.startswith(_SQLITE) and not os.path.exists(path):
        raise click.ClickException(f"there is no database {path}")
    return (store.at(places[0]) if len(places) == 2 else store), database


@outbox.command()
@_places
@_table
@click.option("--once", is_flag=True, help="Publish what is committed now, and end.")
@click.option(
    "--poll-interval",
    type=click.FloatRange(min=0.001, max=3600),
    default=POLL_S,
    show_default=True,
    metavar="SECONDS",
    help="How often to look without being told of a commit.",
)
@click.option(
    "--durability",
    type=click.Choice(["process", "interval", "flush"]),
    default="flush",
    show_default=True,
    help="What a message survives when its row is removed.",
)
@pass_store
def run(
    store: OpenedStore,
    places: tuple[str, ...],
    table: str,
    once: bool,
    poll_interval: float,
    durability: str,
) -> None:
    """Publish the messages of the outbox in DATABASE, until Ctrl-C, SIGTERM or SIGHUP.

    The store is made if there is none. If another relay serves the outbox, this one waits for its turn. The
    exit status with --once is 1 if a topic refused messages.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    store, database = _placed(store, places)
    store.check_writable()
    progress = ProgressLine(sys.stderr)

    def show(published: int) -> None:
        if progress.is_due:
            progress.show(f"{published:,} messages published")

    with store.client(creates=True) as client:
        relay = Relay(client, database, table=table, poll_interval_s=poll_interval, durability=durability)
        try:
            if once:
                relay.drain(show)
            else:
                with on_termination(relay.stop), contextlib.suppress(KeyboardInterrupt):
                    relay.run(show)
        finally:
            progress.end()
    click.echo(f"{relay.published:,} messages published")
    if once and relay.last_error:
        raise click.ClickException(relay.last_error)


@outbox.command("status")
@_places
@_table
@as_json
@pass_store
def show_status(store: OpenedStore, places: tuple[str, ...], table: str, is_json: bool) -> None:
    """Show which messages wait in the outbox in DATABASE, and whether a relay of STORE serves it."""
    store, database = _placed(store, places)
    with contextlib.closing(opener_of(database)()) as connection:
        found = status(connection, table=table)
    try:
        served = {True: "served by a relay", False: "no relay: `embeddedpulsar outbox run`"}[
            is_served(store.directory, found.producer_name)
        ]
    except AccessDeniedError:
        served = "the lock of its relay belongs to another user"
    if is_json:
        topics = [one._asdict() for one in found.topics]
        print_json({**found._asdict(), "relay": served, "topics": topics})
        return
    click.echo(f"{found.producer_name}: {found.waiting:,} messages wait; {served}")
    now_ms = SYSTEM_CLOCK.wall_ms()
    rows = [
        (one.topic, one.waiting, _age(now_ms - one.oldest_ms) if one.waiting else "", one.note)
        for one in found.topics
    ]
    print_table(("topic", "waiting", "oldest", "refused because"), rows)


def _age(age_ms: int) -> str:
    return f"{max(age_ms, 0) / 1000:,.1f} s"

"""Work on topics that goes on in the background, on the command line: waiting for its end, and its status."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from embeddedpulsar._engine.platform.clock import SYSTEM_CLOCK
from embeddedpulsar._engine.store.background.topic_compaction import ERROR, RUNNING
from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.cli.base import OpenedStore, as_json, pass_store, print_json, topic_argument
from embeddedpulsar.cli.terminal import ProgressLine
from embeddedpulsar.cli.topic_commands import topics
from embeddedpulsar.records import NamedTuple

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.background.topic_compaction import LongRunningProcessStatus
    from embeddedpulsar.admin.topic_access import HasStore

# Seconds between two looks at the status, which may be that of work in another process.
_PAUSE_S: Final = 0.05


class BackgroundWork(NamedTuple):
    """Compaction or offloading.

    Attributes:
        name: of the work.
        status: asks how it stands with a topic.
        progress: asks how much is done in this process, and of how much.
        text: of the progress, with places for these two.
    """

    name: str
    status: Callable[[HasStore, str], LongRunningProcessStatus]
    progress: Callable[[HasStore, str], tuple[int, int]]
    text: str

    def wait(self, context: click.Context, admin: Admin, topic: str) -> None:
        """Wait for the end, show it, and exit with 1 if the work failed."""
        line = ProgressLine(sys.stderr)
        try:
            while (status := self.status(admin.topics(), topic)).status == RUNNING:
                if line.is_due:
                    # The total is known once the work has counted what there is; until then only its name is
                    # shown.
                    done, total = self.progress(admin.topics(), topic)
                    line.show(self.text.format(done, total) if total else self.name)
                SYSTEM_CLOCK.sleep(_PAUSE_S)
        finally:
            line.end()
        # With --json only `show` prints, once and at the end: a progress line is for people.
        _end(context, status, is_json=False)

    def add_status_command(self, command: str) -> None:
        """Add the command that shows the status to those of topics."""

        @topics.command(
            command,
            help=f"Show how the {self.name} of TOPIC stands. The exit status is 1 if the last one failed.",
        )
        @topic_argument
        @click.option("-w", "--wait-complete", is_flag=True, help=f"Wait for the end of the {self.name}.")
        @as_json
        @pass_store
        @click.pass_context
        def show(
            context: click.Context, store: OpenedStore, topic: str, wait_complete: bool, is_json: bool
        ) -> None:
            with store.admin() as admin:
                # `wait` shows the progress and ends the command. With --json the loop below waits in silence,
                # and one object is printed.
                if wait_complete and not is_json:
                    self.wait(context, admin, topic)
                status = self.status(admin.topics(), topic)
                while wait_complete and status.status == RUNNING:
                    SYSTEM_CLOCK.sleep(_PAUSE_S)
                    status = self.status(admin.topics(), topic)
            _end(context, status, is_json=is_json)


def _end(context: click.Context, status: LongRunningProcessStatus, *, is_json: bool) -> None:
    if is_json:
        print_json(status.json())
    else:
        click.echo(f"{status.status}{f': {status.last_error}' if status.last_error else ''}")
    # The status of a script: work that failed is an error, work that goes on or never ran is none.
    context.exit(1 if status.status == ERROR else 0)

"""The store that a command works on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from embeddedpulsar._engine.store.store_root import ServiceUrl
from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.cli.store_directory import refusal
from embeddedpulsar.cli.terminal import argument_path, printable
from embeddedpulsar.client.client import Client

_DOMAIN: Final = "persistent://"
_SHOWN: Final = 3
_DEFAULT_NAMESPACE: Final = "public/default"
_DEFAULT_PREFIX: Final = f"{_DOMAIN}{_DEFAULT_NAMESPACE}/"


class OpenedStore:
    """Opens the store named on the command line, and makes none unless it is asked to.

    Args:
        path: its directory, or None if none was given.
        is_read_only: whether to look at it only.
        is_quiet: whether nothing is printed.
    """

    def __init__(self, path: str | None, *, is_read_only: bool = False, is_quiet: bool = False) -> None:
        self._path = path
        self._is_read_only = is_read_only
        self._has_told = is_quiet

    @property
    def root(self) -> str:
        """The directory, as an absolute path.

        Raises:
            UsageError: none was given, or one in memory.
            ValueError: the URL is that of a cluster, or of nothing known.
        """
        if not self._path:
            raise click.UsageError("name the directory of the store: --store PATH, or EMBEDDEDPULSAR_URL")
        path = argument_path(self._path)
        root = ServiceUrl.parse(path if "://" in path else Path(path)).root
        if root is None:
            raise click.UsageError("a store in memory belongs to its process; name a directory")
        return root

    @property
    def directory(self) -> str:
        """The same, of a store that is there."""
        text = refusal(self.root)
        if text:
            raise click.ClickException(text)
        return self.root

    def admin(self) -> Admin:
        """An Admin of the store; to be closed. A store of which nothing may be written is looked at, and a
        line of the standard error says so."""
        admin = Admin(self.directory, read_only=True if self._is_read_only else None)
        if admin.is_read_only and not self._has_told:
            self._has_told = True
            if not self._is_read_only:
                click.echo(f"read-only: {printable(admin.read_only_reason)}", err=True)
            context = click.get_current_context(silent=True)
            if context is not None:
                context.find_root().call_on_close(lambda: _tell_unrecovered(admin))
        return admin

    def check_writable(self) -> None:
        """Refuse to go on if the store was asked to be only looked at."""
        if self._is_read_only:
            raise click.UsageError("this command changes the store: leave --read-only out")

    def client(self, *, creates: bool = False) -> Client:
        """A client of the store; to be closed.

        Args:
            creates: make a store in a directory that is empty or does not exist, and say so.
        """
        if not creates or (os.path.isdir(self.root) and os.listdir(self.root)):
            return Client(self.directory, read_only=True if self._is_read_only else None)
        client = Client(self.root, read_only=True if self._is_read_only else None)
        click.echo(f"created a store in {self.root}", err=True)
        return client


def _tell_unrecovered(admin: Admin) -> None:
    names = admin.unrecovered()
    if names:
        shown = ", ".join(names[:_SHOWN]) + (
            f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
        )
        click.echo(
            f"not recovered since the machine was restarted or the store was copied: {printable(shown)}. "
            "What is shown was found in the files as they are, and figures may be behind",
            err=True,
        )


pass_store = click.make_pass_decorator(OpenedStore)


def complete_topic(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Return the names of topics that begin with what was typed, for the completion of a shell."""
    path = context.find_root().params.get("store")
    tenant, _, rest = begun.removeprefix(_DOMAIN).partition("/")
    namespace = f"{tenant}/{rest.partition('/')[0]}" if "/" in rest else _DEFAULT_NAMESPACE
    try:
        with OpenedStore(path, is_quiet=True).admin() as admin:
            names = admin.topics().get_list(namespace)
    except Exception:  # noqa: BLE001 - a shell that completes a word shows no errors
        return []
    forms = (name.removeprefix(prefix) for name in names for prefix in ("", _DOMAIN, _DEFAULT_PREFIX))
    return sorted({form for form in forms if form.startswith(begun)})


topic_argument = click.argument("topic", shell_complete=complete_topic)

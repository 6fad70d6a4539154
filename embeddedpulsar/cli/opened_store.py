"""The store that a command works on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.cli.store_directory import refusal
from embeddedpulsar.cli.terminal import argument_path
from embeddedpulsar.client.client import Client
from embeddedpulsar.topic.service_url import ServiceUrl

_DOMAIN: Final = "persistent://"
_DEFAULT_NAMESPACE: Final = "public/default"
_DEFAULT_PREFIX: Final = f"{_DOMAIN}{_DEFAULT_NAMESPACE}/"


class OpenedStore:
    """Opens the store named on the command line, and makes none unless it is asked to.

    Args:
        path: its directory, or None if none was given.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path

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
        """An Admin of the store; to be closed."""
        return Admin(self.directory)

    def client(self, *, creates: bool = False) -> Client:
        """A client of the store; to be closed.

        Args:
            creates: make a store in a directory that is empty or does not exist, and say so.
        """
        if not creates or (os.path.isdir(self.root) and os.listdir(self.root)):
            return Client(self.directory)
        client = Client(self.root)
        click.echo(f"created a store in {self.root}", err=True)
        return client


pass_store = click.make_pass_decorator(OpenedStore)


def complete_topic(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Return the names of topics that begin with what was typed, for the completion of a shell."""
    path = context.find_root().params.get("store")
    tenant, _, rest = begun.removeprefix(_DOMAIN).partition("/")
    namespace = f"{tenant}/{rest.partition('/')[0]}" if "/" in rest else _DEFAULT_NAMESPACE
    try:
        with OpenedStore(path).admin() as admin:
            names = admin.topics().get_list(namespace)
    except Exception:  # noqa: BLE001 - a shell that completes a word shows no errors
        return []
    forms = (name.removeprefix(prefix) for name in names for prefix in ("", _DOMAIN, _DEFAULT_PREFIX))
    return sorted({form for form in forms if form.startswith(begun)})


topic_argument = click.argument("topic", shell_complete=complete_topic)

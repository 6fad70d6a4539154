"""``embeddedpulsar serve``: the HTTP server of a store; and ``metrics``: what a scrape of it gets."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import os
import secrets
import signal
import socket
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import click

from embeddedpulsar.cli.base import ArgumentPath, OpenedStore, pass_store
from embeddedpulsar.cli.engine import late_imports
from embeddedpulsar.cli.terminal import argument_path

if TYPE_CHECKING:
    from starlette.applications import Starlette

_DRAIN_S: Final = 10


class HttpAddress(click.ParamType[tuple[str, int]]):
    """An address to listen on, as ``host:port``; an IPv6 address is in brackets."""

    name = "host:port"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        host, _, port = str(value).rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65_535:
            self.fail(f"{value!r} is no address; write host:port, such as 127.0.0.1:8080", param, ctx)
        return host.removeprefix("[").removesuffix("]"), int(port)


@click.command()
@click.option(
    "--http", "address", type=HttpAddress(), default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT",
    help="Where to listen; port 0 takes a free one.",
)  # fmt: skip
@click.option("--allow-changes", is_flag=True, help="Let requests change the store.")
@click.option("--public", is_flag=True, help="Listen on an address that other machines reach.")
@click.option(
    "--host-name", "host_names", multiple=True, metavar="NAME",
    help="A name by which browsers reach the server, beside localhost and addresses. Repeatable.",
)  # fmt: skip
@click.option(
    "--token-file", type=ArgumentPath(), metavar="PATH",
    help="A file with the token. It is made with a new token if it is not there.",
)  # fmt: skip
@click.option(
    "--min-free-mb", type=click.IntRange(min=0), default=64, show_default=True,
    help="Not ready with less room on the disk.",
)  # fmt: skip
@click.option(
    "--metrics-topics", type=click.IntRange(min=0), default=100, show_default=True,
    help="Most topics with metrics of their own.",
)  # fmt: skip
@pass_store
def serve(
    store: OpenedStore,
    address: tuple[str, int],
    allow_changes: bool,
    public: bool,
    host_names: tuple[str, ...],
    token_file: str | None,
    min_free_mb: int,
    metrics_topics: int,
) -> None:
    """Serve the store over HTTP until Ctrl-C, SIGTERM or SIGHUP.

    Prints the URL with the token that every request but that of health needs, or the file that has it.
    Nothing can be changed without --allow-changes. Requests that have begun are answered before the end, for
    ten seconds.
    """
    if allow_changes:
        store.check_writable()
    if not public and not _is_loopback(address[0]):
        raise click.UsageError(
            f"{address[0]} can be reached by other machines, and what they send is not encrypted: listen on "
            "127.0.0.1; or add --public, and have a proxy with TLS in front"
        )
    directory = store.directory
    # Of the packages of the extra, the command line has none.
    try:
        with late_imports():
            from embeddedpulsar.server import create_app
    except ImportError as e:
        raise click.ClickException(str(e)) from e
    token = _token(token_file)
    hosts = [*host_names, *([socket.gethostname()] if public else [])]
    app = create_app(
        directory,
        token=token,
        allow_changes=allow_changes,
        hosts=hosts,
        min_free_bytes=min_free_mb << 20,
        metrics_topics=metrics_topics,
    )
    with app.state.served:
        listener = _listener(address)
        with listener:
            host, port = listener.getsockname()[:2]
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
            shown = f"{url}?token={token}" if token_file is None else f"{url}  (the token is in {token_file})"
            click.echo(f"serving {directory} at {shown}")
            asyncio.run(_run(app, listener))
    click.echo("served; all requests were answered")


@click.command()
@click.option(
    "--topics",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Most topics with series of their own.",
)
@click.option("--dashboard", is_flag=True, help="Print the dashboard for Grafana instead, as JSON.")
@pass_store
def metrics(store: OpenedStore, topics: int, dashboard: bool) -> None:
    """Print the metrics of the store, as Prometheus reads them.

    For the textfile collector of node_exporter, write them into a file that is then renamed. Rates of what
    was acknowledged need two reads, and are missing.
    """
    if dashboard:
        text = resources.files("embeddedpulsar").joinpath("grafana_dashboard.json").read_bytes()
    else:
        try:
            with late_imports():
                from embeddedpulsar.metrics import collector, exposition
        except ImportError as e:
            raise click.ClickException(str(e)) from e
        with store.admin() as admin:
            text = exposition(collector(admin, topics=topics, budget_s=math.inf))
    click.echo(text.decode(), nl=False)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _token(path: str | None) -> str:
    """A new token, or that in a file, which is made if necessary."""
    if path is None:
        return secrets.token_urlsafe(24)
    name = os.fspath(argument_path(path))
    try:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        with open(name, encoding="utf-8") as file:
            token = file.read().strip()
        if not token:
            raise click.ClickException(f"{path} has no token; write one into it, or remove it") from None
        return token
    token = secrets.token_urlsafe(24)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(f"{token}\n")
    return token


def _listener(address: tuple[str, int]) -> socket.socket:
    try:
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(address, family=family)
    except OSError as e:
        # Of a name that leads nowhere the number is none of the system's, and its text says it.
        reason = e.strerror if isinstance(e, socket.gaierror) or e.errno is None else os.strerror(e.errno)
        raise click.ClickException(f"cannot listen on {address[0]}:{address[1]}: {reason}") from e


def _notify(state: str) -> None:
    """Tell systemd how a service of ``Type=notify`` stands, if it asks for that."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            # A name that begins with @ is in no directory: its first byte is 0.
            sender.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)


async def _run(app: Starlette, listener: socket.socket) -> None:
    """Serve until a signal asks for the end, and answer what has begun. A second signal does not wait."""
    with late_imports():
        import uvicorn

    class Server(uvicorn.Server):
        """Without signals of its own: that of uvicorn sends itself the signal again at the end, which would
        be the exit status."""

        async def serve(self, sockets: list[socket.socket] | None = None) -> None:
            await self._serve(sockets)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            _notify("READY=1")

    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=_DRAIN_S
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    server, loop = Server(config), asyncio.get_running_loop()

    def stop() -> None:
        # The first signal lets requests end; the second does not wait for them.
        server.force_exit = server.should_exit
        server.should_exit = True
        app.state.served.stop()
        _notify("STOPPING=1")

    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        await server.serve([listener])
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)

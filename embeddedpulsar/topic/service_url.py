"""Where a client finds its store: a directory, or memory."""

from __future__ import annotations

import os
import re

from embeddedpulsar.error_text import nearest
from embeddedpulsar.records import NamedTuple

_CLUSTER_SCHEMES = ("pulsar", "pulsar+ssl", "http", "https")
_WINDOWS_PATH = re.compile(r"[A-Za-z]:|.*\\")
_MEMORY_NAME = re.compile(r"[\w.-]*", re.ASCII)
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+$")
_PATH_STARTS = ("/", "./", "../", "~")


class ServiceUrl(NamedTuple):
    """A parsed service URL.

    Attributes:
        text: the URL as it was given, for `repr` and pickling; a path is made absolute, so that it means the
            same after a change of directory.
        root: absolute path of the store; None for one in memory.
    """

    text: str
    root: str | None

    @classmethod
    def parse(cls, service_url: str | os.PathLike[str]) -> ServiceUrl:
        """Read a path object, a string that looks like a path, ``file:///path``, ``memory://`` or
        ``memory://name``; the two may have settings behind a question mark, ``memory://?name=value&...``.

        Raises:
            ValueError: anything else, with the texts of ``pulsar-client`` and a hint.

        >>> ServiceUrl.parse("file:///srv/my%20data").root
        '/srv/my data'
        >>> ServiceUrl.parse("memory://").root is None
        True
        >>> ServiceUrl.parse("data")
        Traceback (most recent call last):
        ValueError: The scheme part is missing: data (for a directory write ./data)
        >>> ServiceUrl.parse("C:/data")
        Traceback (most recent call last):
        ValueError: The scheme part is missing: C:/data (...
        """
        if not isinstance(service_url, str):
            path = os.path.abspath(_expanded(os.fsdecode(service_url)))
            return cls(path, path)
        if service_url.startswith(_PATH_STARTS) or service_url in (".", ".."):
            path = os.path.abspath(_expanded(service_url))
            return cls(path, path)
        scheme, separator, rest = service_url.partition("://")
        if not separator:
            hint = f"for a directory write ./{service_url}"
            if _WINDOWS_PATH.match(service_url):
                hint = _windows_hint(service_url)
            elif _HOST_AND_PORT.match(service_url):
                hint += f"; for a cluster, connect('pulsar://{service_url}')"
            raise ValueError(f"The scheme part is missing: {service_url} ({hint})")
        if scheme == "file":
            return cls(service_url, _file_path(service_url, rest))
        if scheme == "memory":
            name, _, settings = rest.partition("?")
            if not _MEMORY_NAME.fullmatch(name):
                raise ValueError(
                    f"{service_url}: the name of a memory:// store has letters, digits, '-', '_' and '.' only"
                )
            if not all("=" in setting for setting in settings.split("&") if setting):
                raise ValueError(
                    f"{service_url}: settings are written as in broker.conf, with & between them: "
                    "memory://name?maxMessageSize=1000&brokerDeduplicationEnabled=true"
                )
            return cls(service_url, None)
        if scheme in _CLUSTER_SCHEMES:
            raise ValueError(
                f"Invalid scheme: {scheme}: {service_url} is a Pulsar cluster, and this client opens a "
                "directory; use embeddedpulsar.connect(url), which returns the client of pulsar-client for it"
            )
        near = nearest(scheme, ("file", "memory", *_CLUSTER_SCHEMES), 0.7)
        hint = "write a directory as ./data or file:///srv/data, or memory://"
        if near:
            hint = f"did you mean {near}://?"
        raise ValueError(f"Invalid scheme: {scheme}: {service_url} is not a store; {hint}")

    @property
    def store(self) -> str:
        """What `Store.open` is given: the path, or the URL of a store in memory."""
        return self.root or self.text


def directory_of(path: str | os.PathLike[str]) -> str:
    """The directory that a path names, or a URL with the scheme ``file``; ``~`` is the home of the user.

    Raises:
        ValueError: the URL names another host or no directory, or the user has no home.

    >>> directory_of("file:///srv/my%20data"), directory_of("data")
    ('/srv/my data', 'data')
    """
    text = os.fsdecode(path)
    if text.startswith("file://"):
        return _file_path(text, text.removeprefix("file://"))
    return _expanded(text)


def _expanded(path: str) -> str:
    expanded = os.path.expanduser(path)
    user = path.partition("/")[0]
    if user.startswith("~") and expanded == path and not os.path.exists(user):
        who = f"there is no user {user[1:]!r}, or it has no home" if user != "~" else "this user has no home"
        raise ValueError(f"{path}: {who}; write the path without ~, or ./{path} for a directory of that name")
    return expanded


def _windows_hint(path: str) -> str:
    if os.name == "nt":
        return f"give a path with a drive as a path object: pathlib.Path({path!r})"
    return "a path of Windows; here a directory is written /srv/data, ./data or ~/data"


def _file_path(url: str, rest: str) -> str:
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost"):
        raise ValueError(f"{url} names the host {host!r}; a local path has three slashes: file:///path")
    if not slash or not path:
        raise ValueError(f"No service url is provided yet: {url} names no directory; write file:///path")
    if "%" in path:
        from urllib.parse import unquote_to_bytes  # 15 ms, for the few URLs that need it

        path = os.fsdecode(unquote_to_bytes(path))
    if "\0" in path:
        raise ValueError(f"{url} has a NUL, which no path has")
    return os.path.abspath("/" + path)

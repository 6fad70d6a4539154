"""Which URLs name a local store."""

from __future__ import annotations

import os
from pathlib import Path

import pulsar
import pytest

from embeddedpulsar import Admin
from embeddedpulsar._engine.store.store_root import ServiceUrl, directory_of


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("/srv/data", "/srv/data"),
        (Path("/srv/data"), "/srv/data"),
        ("file:///srv/data", "/srv/data"),
        ("file://localhost/srv/data", "/srv/data"),
        ("file:///srv/my%20data", "/srv/my data"),
        ("/srv/my%20data", "/srv/my%20data"),
    ],
)
def test_paths_and_file_urls_name_a_directory(url, root):
    """A path object, an absolute path and a file URL lead to the directory; only a URL has escapes."""
    assert ServiceUrl.parse(url).root == root


@pytest.mark.parametrize("url", ["./data", "../data", ".", "..", "~/data", "~"])
def test_relative_paths_are_made_absolute(url, monkeypatch, tmp_path):
    """What a path means does not change with the working directory."""
    monkeypatch.chdir(tmp_path)
    parsed = ServiceUrl.parse(url)
    assert parsed.root == os.path.abspath(os.path.expanduser(url))
    assert parsed.text == parsed.root


def test_an_empty_text_is_no_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """It is not taken for the working directory, by which a backup would be made there."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="empty text names no directory"):
        directory_of("")
    with Admin("./store") as admin, pytest.raises(ValueError, match="empty text names no directory"):
        admin.backup("")
    assert os.listdir(tmp_path) == ["store"]


def test_memory_has_no_directory():
    """``memory://`` is a private store, and one with a name is shared by the clients of the process."""
    assert ServiceUrl.parse("memory://") == ("memory://", None)
    assert ServiceUrl.parse("memory://shared").store == "memory://shared"
    with pytest.raises(ValueError, match="letters, digits"):
        ServiceUrl.parse("memory://shared/orders")


@pytest.mark.parametrize("url", ["data", "", "C:/data", "pulsar:/x", "foo://", "foo://x"])
def test_what_is_no_url_has_the_text_of_pulsar_client(url):
    """A bare word is not a path: the text begins as in pulsar-client, a hint may follow."""
    with pytest.raises(ValueError) as theirs:
        pulsar.Client(url)
    with pytest.raises(ValueError) as ours:
        ServiceUrl.parse(url)
    assert str(ours.value).startswith(str(theirs.value))


def test_a_bare_word_gets_the_hint_to_write_a_path():
    """Whoever meant a directory is told how to say so."""
    with pytest.raises(ValueError, match=r"write \./data\)"):
        ServiceUrl.parse("data")


@pytest.mark.parametrize("scheme", ["pulsar", "pulsar+ssl", "http", "https"])
def test_a_cluster_gets_the_hint_to_connect(scheme):
    """The URL of a cluster names the function that opens clusters."""
    with pytest.raises(ValueError, match=r"embeddedpulsar\.connect"):
        ServiceUrl.parse(f"{scheme}://host:6650")


@pytest.mark.parametrize("url", ["file://", "file:///", "file://server/share"])
def test_a_file_url_needs_a_local_path(url):
    """A host or a missing path is refused, with the reason."""
    with pytest.raises(ValueError, match=r"three slashes|names no directory"):
        ServiceUrl.parse(url)

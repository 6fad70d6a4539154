"""The options of a client."""

from __future__ import annotations

import inspect
from pathlib import Path

import pulsar
import pytest

from embeddedpulsar.client.client_config import client_config
from embeddedpulsar.client.cluster_options import (
    AuthenticationToken,
    AutoClusterFailover,
    ServiceInfo,
    ServiceInfoProvider,
)


def defaults() -> dict[str, object]:
    """The options of pulsar-client with their defaults."""
    parameters = inspect.signature(pulsar.Client.__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in ("self", "service_url", "logger")}


def config(url: object = "/srv/data", **options):
    """The config for some options."""
    ours = {
        "durability": "process",
        "durability_interval_ms": 1000,
        "allow_network_fs": False,
        "memory_limit_bytes": 0,
        "on_damage": None,
        "read_only": None,
    }
    return client_config(defaults() | ours | {"service_url": url} | options)


def test_defaults():
    """With defaults only the directory matters."""
    made = config()
    assert made.url.root == "/srv/data"
    assert (made.durability, made.durability_interval_ms, made.listener_threads) == ("process", 1000, 1)
    assert not made.allow_network_fs
    assert made.stats_interval_s == 600
    assert config(stats_interval_in_seconds=0).stats_interval_s == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("operation_timeout_seconds", 2**31),
        ("connection_timeout_ms", -(2**31) - 1),
        ("concurrent_lookup_requests", 2**31),
        ("stats_interval_in_seconds", -1),
        ("stats_interval_in_seconds", 2**32),
    ],
)
def test_numbers_without_room(name, value):
    """A TypeError, as in pulsar-client; the text says what is wrong."""
    with pytest.raises(TypeError):
        pulsar.Client("pulsar://127.0.0.1:1", **{name: value})
    with pytest.raises(TypeError, match=f"Argument {name} must be between"):
        config(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authentication", "token"),
        ("operation_timeout_seconds", "30"),
        ("connection_timeout_ms", 1.5),
        ("io_threads", None),
        ("message_listener_threads", "1"),
        ("concurrent_lookup_requests", "x"),
        ("log_conf_file_path", 5),
        ("stats_interval_in_seconds", "x"),
        ("use_tls", 1),
        ("tls_trust_certs_file_path", 5),
        ("tls_allow_insecure_connection", 0),
        ("tls_validate_hostname", None),
        ("listener_name", b"x"),
        ("tls_private_key_file_path", 5),
        ("tls_certificate_file_path", 5),
    ],
)
def test_wrong_types_have_the_texts_of_pulsar_client(name, value):
    """Every parameter is checked, also those that have no meaning here."""
    with pytest.raises(ValueError) as theirs:
        pulsar.Client("pulsar://localhost", **{name: value})
    with pytest.raises(ValueError) as ours:
        config(**{name: value})
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("url", [None, 5, b"/srv/data"])
def test_the_url_is_text_or_a_path(url):
    """Another type has the text of pulsar-client, and then what it is and what may be."""
    with pytest.raises(ValueError) as theirs:
        pulsar.Client(url)
    with pytest.raises(ValueError) as ours:
        config(url)
    assert str(ours.value).startswith(str(theirs.value))


def test_network_options_are_accepted():
    """A program written for a cluster starts: what has no meaning here is checked and not used."""
    made = config(authentication=AuthenticationToken("secret"), use_tls=True, listener_name="external")
    assert made == config()


def test_addresses_of_clusters_are_refused():
    """Switching between clusters is no option of a directory."""
    info = ServiceInfo("pulsar://a:6650")
    for url in (AutoClusterFailover(info, [info]), ServiceInfoProvider()):
        with pytest.raises(NotImplementedError, match="switches between clusters"):
            config(url)


@pytest.mark.parametrize("durability", ["process", "interval", "flush"])
def test_durability_levels(durability):
    """The three levels pass."""
    assert config(durability=durability).durability == durability


def test_wrong_values_of_our_own_options():
    """Options pulsar-client does not have are checked as well."""
    for wrong in (
        {"durability": "disk"},
        {"durability_interval_ms": 0},
        {"durability_interval_ms": "x"},
        {"allow_network_fs": 1},
        {"memory_limit_bytes": -1},
        {"memory_limit_bytes": "1 MB"},
    ):
        with pytest.raises(ValueError, match="Argument"):
            config(**wrong)


def test_listener_threads_are_at_least_one():
    """pulsar-client takes 0; a listener needs a thread all the same."""
    assert config(message_listener_threads=0).listener_threads == 1
    assert config(Path("/srv/data"), message_listener_threads=3).listener_threads == 3

"""What describes a connection to a cluster is checked as in pulsar-client, and shows no secret."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import pulsar
import pytest

import embeddedpulsar
from embeddedpulsar.client.client_threads import ClientLog


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Authentication", (5, "x")),
        ("Authentication", ("x", 5)),
        ("AuthenticationTLS", (5, "x")),
        ("AuthenticationTLS", ("x", None)),
        ("AuthenticationToken", (5,)),
        ("AuthenticationAthenz", (5,)),
        ("AuthenticationOauth2", (None,)),
        ("AuthenticationBasic", (5, "x")),
        ("AuthenticationBasic", ("x", None)),
        ("AuthenticationBasic", ("x", "x", 5)),
        ("AuthenticationBasic", (None, None, "basic", 5)),
        ("ServiceInfo", (5,)),
        ("ServiceInfo", ("pulsar://x", "token")),
        ("CryptoKeyReader", (5, "x")),
        ("ConsoleLogger", (5,)),
        ("FileLogger", (5, "x")),
    ],
)
def test_wrong_arguments_have_the_texts_of_pulsar_client(name, arguments):
    """The constructors refuse what pulsar-client refuses, in its words."""
    with pytest.raises(ValueError) as theirs:
        getattr(pulsar, name)(*arguments)
    with pytest.raises(ValueError) as ours:
        getattr(embeddedpulsar, name)(*arguments)
    assert str(ours.value).startswith(str(theirs.value))


@pytest.mark.parametrize(
    "text", ["no json", "[]", "5", "{}", '{"username": "x"}', '{"username": "x", "password": "y"}']
)
def test_basic_parameters_in_one_text(text):
    """They are JSON with user name and password; anything else is a RuntimeError, as with pulsar-client."""
    outcomes = []
    for package in (pulsar, embeddedpulsar):
        try:
            package.AuthenticationBasic(auth_params_string=text)
            outcomes.append("")
        except RuntimeError as error:
            outcomes.append(re.sub("^expected .*", "expected a value", str(error)))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "options",
    [
        {"secondary": []},
        {"secondary": ["x"]},
        {"secondary": None},
        {"check_interval_ms": 0},
        {"failover_threshold": "x"},
        {"switch_back_threshold": -1},
    ],
)
def test_cluster_failover_is_checked(options):
    """Even though a local client refuses it, the object is checked when it is made."""
    texts = []
    for package in (pulsar, embeddedpulsar):
        info = package.ServiceInfo("pulsar://a:6650")
        with pytest.raises(ValueError) as caught:
            package.AutoClusterFailover(info, **({"secondary": [info]} | options))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_secrets_are_not_shown():
    """The repr of credentials says their kind and nothing else."""
    assert repr(embeddedpulsar.AuthenticationToken("secret")) == "<AuthenticationToken>"


def test_a_logger_is_used():
    """Messages go to the logger that was given; without one, to the logger of the package."""
    logger = logging.getLogger("mine")
    records: list[logging.LogRecord] = []
    logger.addFilter(lambda record: records.append(record) is None)
    ClientLog(logger).warning("first %s", "word")
    assert [record.getMessage() for record in records] == ["first word"]
    with pytest.raises(ValueError, match="Logger is expected to be either None"):
        ClientLog("mine")


def test_pulsar_loggers(tmp_path, capsys):
    """ConsoleLogger writes to standard error, FileLogger to its file, both from their level up."""
    ClientLog(embeddedpulsar.ConsoleLogger(embeddedpulsar.LoggerLevel.Error)).warning("not shown")
    ClientLog(embeddedpulsar.ConsoleLogger()).warning("shown")
    assert "WARNING embeddedpulsar | shown" in (written := capsys.readouterr().err)
    assert "not shown" not in written
    path = tmp_path / "log"
    log = ClientLog(embeddedpulsar.FileLogger(embeddedpulsar.LoggerLevel.Warn, str(path)))
    log.warning("kept")
    assert "kept" in path.read_text()
    log.close()
    log.warning("late")
    assert "late" in path.read_text()
    log.close()


def test_the_file_of_a_logger_is_closed_with_its_client(tmp_path: Path):
    """No descriptor is left."""
    logger = embeddedpulsar.FileLogger(embeddedpulsar.LoggerLevel.Info, str(tmp_path / "log"))
    with embeddedpulsar.Client("memory://", logger=logger):
        assert "Connected" in (tmp_path / "log").read_text()
    assert "Closed the client" in (tmp_path / "log").read_text()
    targets = [os.path.realpath(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd")]
    assert str(tmp_path / "log") not in targets

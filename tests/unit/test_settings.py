"""Unit tests of embeddedpulsar.settings."""

from __future__ import annotations

import pytest

from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.settings import _ABSENT, _WITHOUT_EFFECT, BrokerSettings


def test_defaults():
    """An empty file gives the defaults, and those switch on nothing that is not built."""
    settings = BrokerSettings.parse("")
    assert settings == BrokerSettings()
    assert settings.maxMessageSize == 5 * 1024 * 1024
    assert settings.managedLedgerMaxSizePerLedgerMbytes == 64
    assert settings.managedLedgerMaxEntriesPerLedger == 250_000
    assert settings.managedLedgerMaxLedgerRolloverTimeMinutes == 240
    assert settings.allowAutoTopicCreation is settings.allowAutoSubscriptionCreation is True
    assert settings.acknowledgmentAtBatchIndexLevelEnabled is True
    assert settings.brokerDeduplicationEnabled is False
    assert settings.keepAliveIntervalSeconds == 30
    settings.check_supported()


def test_syntax_is_pulsars():
    """Spaces, comments, empty values and repeated names are read as in the broker.conf Pulsar ships."""
    text = """
        ### --- General --- ###
        # maxMessageSize=1
        maxMessageSize = 1048576   # one MiB
        allowAutoTopicCreation=FALSE
        keepAliveIntervalSeconds=10
        keepAliveIntervalSeconds=
        managedLedgerMaxEntriesPerLedger=1
        managedLedgerMaxEntriesPerLedger=2
    """
    settings = BrokerSettings.parse(text)
    assert settings == BrokerSettings(
        maxMessageSize=1_048_576, allowAutoTopicCreation=False, managedLedgerMaxEntriesPerLedger=2
    )


def test_unknown_names_are_collected():
    """A name that is no setting here is no error; the store warns about it, once each."""
    settings = BrokerSettings.parse("zookeeperServers=a\nunknown=1\nzookeeperServers=b\n_field_defaults=1")
    assert settings.unknown == ("zookeeperServers", "unknown", "_field_defaults")


def test_what_does_nothing_says_so():
    """Settings that tune what is not there are no errors, and are not silent: each has its reason."""
    for name, reason in _WITHOUT_EFFECT.items():
        settings = BrokerSettings.parse(f"{name}=1")
        assert settings.warnings() == [f"{name} has no effect: {reason}"]
        assert name not in BrokerSettings._fields
        settings.check_supported()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("maxMessageSize", "write name=value"),
        ("=5", "write name=value"),
        ("maxMessageSize=big", "a number, not 'big'"),
        ("allowAutoTopicCreation=maybe", "true or false, not 'maybe'"),
        ("maxMessageSize=-5", "maxMessageSize is a number from 1 to 1073741824, not -5"),
        ("maxMessageSize=99999999999", "maxMessageSize is a number from 1"),
        ("managedLedgerMaxSizePerLedgerMbytes=0", "managedLedgerMaxSizePerLedgerMbytes is a number from 1"),
        ("defaultNumPartitions=0", "defaultNumPartitions is a number from 1 to 10000, not 0"),
        ("allowAutoTopicCreationType=both", "is non-partitioned or partitioned, not 'both'"),
    ],
)
def test_bad_lines_are_named(line: str, complaint: str):
    """A line that cannot be read is refused by number, with what is wrong."""
    with pytest.raises(InvalidConfiguration, match=complaint) as caught:
        BrokerSettings.parse(f"\n\n{line}\n")
    assert "line 3" in str(caught.value)


@pytest.mark.parametrize("name", sorted(_ABSENT))
def test_absent_features_are_refused_by_name(name: str):
    """Switching on what is not built fails and names setting, feature and remedy."""
    default = BrokerSettings._field_defaults[name]
    BrokerSettings.parse(f"{name}={str(default).lower()}").check_supported()
    other = {bool: str(not default).lower(), int: "77", str: "partitioned"}[type(default)]
    with pytest.raises(InvalidConfiguration, match=f"{name} needs {_ABSENT[name]}") as caught:
        BrokerSettings.parse(f"{name}={other}").check_supported()
    assert f"set it to {str(default).lower()}" in str(caught.value)

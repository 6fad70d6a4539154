"""The policies of topics and namespaces: what each is called in a document, and what holds without it.

A policy is read at the nearest level that has it: the topic, the partitioned topic of a partition, the
namespace. If none has it, its default follows from ``broker.conf``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration
from embeddedpulsar.policies import Retention
from embeddedpulsar.policy_values import OffloadPolicies, from_fields, to_fields
from embeddedpulsar.settings import BrokerSettings

Value = TypeVar("Value")
Fields = dict[str, Any]
LARGEST_THRESHOLD: Final = 1 << 62


class ChangingTopic(Protocol):
    """What a policy that acts at once needs of a `Topic`."""

    @property
    def name(self) -> str:
        """The full name."""

    @property
    def had_producers(self) -> bool:
        """Whether there ever was a producer."""

    def set_deduplication(self, is_on: bool) -> None:
        """Drop duplicates from now on, or no longer."""


class TopicPolicy(NamedTuple, Generic[Value]):
    """One policy.

    Attributes:
        key: its name in the documents, Pulsar's own where Pulsar has the policy.
        default: the value where no level has one, from the settings and the documents of the topic itself;
            a namespace has none of these.
        pack: the form in a document; raises an error for a value that makes no sense.
        unpack: the value of such a form; `CorruptionError` for a form that is none.
        apply: called with each topic that was opened before and the value that holds for it after a change.
            None if topics read the policy when they need it.
        for_letters: the value for topics of letters that have none of their own, if ``broker.conf`` has
            ``letterTopicsExpire=false``: letters are not to be lost unseen. None for no such exception.
        amend: called with the session of the store and the form, under the catalog lock, before something is
            set. Returns what is stored; may refuse it. None for neither.
        owners: the key of the list of its owners, if `PolicyDocuments.note_owner` keeps one.
    """

    key: str
    default: Callable[[BrokerSettings, Sequence[Fields]], Value]
    pack: Callable[[Value], Any]
    unpack: Callable[[Any], Value]
    apply: Callable[[ChangingTopic, Value], None] | None = None
    for_letters: Value | None = None
    amend: Callable[[Any, Any], Any] | None = None
    owners: str = ""


def _retention_fields(retention: Retention) -> dict[str, int]:
    retention.check()
    return {"retentionTimeInMinutes": retention.time_minutes, "retentionSizeInMB": retention.size_mb}


def _read_retention(fields: Any) -> Retention:
    try:
        found = Retention(int(fields["retentionTimeInMinutes"]), int(fields["retentionSizeInMB"]))
        return found.check()
    except (KeyError, TypeError, ValueError, InvalidConfiguration) as e:
        raise CorruptionError(reason=f"a policy document with a retention that is none: {e!r}") from e


def _switch_deduplication(topic: ChangingTopic, is_on: bool) -> None:
    # A topic without producers reads the policy when its first one attaches.
    if topic.had_producers:
        topic.set_deduplication(is_on)


def _keeps_letters(settings: BrokerSettings, own: Sequence[Fields]) -> bool:
    """A topic of letters does until it has a subscription, unless it has a retention of its own."""
    return (
        settings.letterTopicsKeepUntilSubscribed
        and any(fields.get(LETTERS.key) for fields in own)
        and not any(RETENTION.key in fields for fields in own)
    )


def reading(check: Callable[[Any], Value], what: str) -> Callable[[Any], Value]:
    """How a policy is read from a document, where a value that `check` refuses is damage."""

    def read(form: Any) -> Value:
        try:
            return check(form)
        except InvalidConfiguration as e:
            raise CorruptionError(reason=f"a policy document with {what} that is none: {form!r}") from e

    return read


def _checked_threshold(threshold: int) -> int:
    if (
        isinstance(threshold, bool)
        or not isinstance(threshold, int)
        or not 0 <= threshold <= LARGEST_THRESHOLD
    ):
        raise InvalidConfiguration(f"a threshold is a number of bytes from 0, for never, not {threshold!r}")
    return threshold


DEDUPLICATION: Final = TopicPolicy[bool](
    "deduplicationEnabled",
    lambda settings, own: settings.brokerDeduplicationEnabled,
    bool,
    bool,
    _switch_deduplication,
)
"""Whether a message with the same producer name and sequence id is stored only once."""

RETENTION: Final = TopicPolicy[Retention](
    "retentionPolicies", lambda settings, own: settings.retention, _retention_fields, _read_retention
)
"""How much of what is acknowledged everywhere is kept."""

KEEP_UNTIL_SUBSCRIBED: Final = TopicPolicy[bool]("keepUntilSubscribed", _keeps_letters, bool, bool)
"""Whether everything is kept while there is no durable subscription."""

LETTERS: Final = TopicPolicy[bool]("letters", lambda settings, own: False, bool, bool)
"""Set for a topic that a consumer passes dead letters or retry letters on to."""

COMPACTION_THRESHOLD: Final = TopicPolicy[int](
    "compaction_threshold",
    lambda settings, own: settings.brokerServiceCompactionThresholdInBytes,
    _checked_threshold,
    reading(_checked_threshold, "a threshold"),
)
"""Bytes behind the last compaction at which the next one is due; 0 for never."""

NEVER: Final = -1


class OffloadRules(NamedTuple):
    """What holds for a topic.

    Attributes:
        location: URI; empty for none.
        most_bytes: bytes of the log that stay; older ledgers are offloaded. `NEVER` for no such limit.
        most_seconds: ledgers that ended earlier are offloaded; `NEVER` for no such limit.
        lag_ms: how long the log of an offloaded ledger stays.
    """

    location: str
    most_bytes: int
    most_seconds: int
    lag_ms: int

    @property
    def is_automatic(self) -> bool:
        """Whether ledgers are offloaded without being asked for."""
        return bool(self.location) and max(self.most_bytes, self.most_seconds) > NEVER


def _number(key: str, setting: str, lowest: int) -> TopicPolicy[int]:
    default: Callable[[Any], int] = attrgetter(setting)

    def check(number: int) -> int:
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if not is_number or not lowest <= number <= LARGEST_THRESHOLD:
            never = ", for never," if lowest == NEVER else ""
            raise InvalidConfiguration(f"{key} is a number from {lowest}{never} on, not {number!r}")
        return number

    return TopicPolicy(key, lambda settings, own: default(settings), check, reading(check, key))


OFFLOAD_POLICIES: Final = TopicPolicy[OffloadPolicies](
    "offload_policies",
    lambda settings, own: OffloadPolicies(settings.managedLedgerOffloadLocation or None),
    to_fields,
    lambda form: from_fields(OffloadPolicies, form),
)
"""The location, and what differs from the three below."""
OFFLOAD_THRESHOLD: Final = _number(
    "offload_threshold", "managedLedgerOffloadAutoTriggerSizeThresholdBytes", NEVER
)
OFFLOAD_THRESHOLD_SECONDS: Final = _number(
    "offload_threshold_in_seconds", "managedLedgerOffloadThresholdInSeconds", NEVER
)
OFFLOAD_DELETION_LAG: Final = _number("offload_deletion_lag_ms", "managedLedgerOffloadDeletionLagMs", 0)

OFFLOAD_RULES: Final = (OFFLOAD_POLICIES, OFFLOAD_THRESHOLD, OFFLOAD_THRESHOLD_SECONDS, OFFLOAD_DELETION_LAG)


def rules_of(values: list[Any]) -> OffloadRules:
    """What the values of `OFFLOAD_RULES` say together: fields of `OffloadPolicies` before the others."""
    policies, *numbers = values
    fields = (
        policies.offload_threshold_in_bytes,
        policies.offload_threshold_in_seconds,
        policies.offload_deletion_lag_in_millis,
    )
    chosen = [number if field is None else field for field, number in zip(fields, numbers, strict=True)]
    return OffloadRules(policies.offload_location or "", *chosen)

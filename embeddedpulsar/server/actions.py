"""What the console can change: each with a plan, which says in figures what it would do, and the deed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.error_text import counted
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema import AutoProduceBytesSchema
from embeddedpulsar.server.browsing import id_text, message_form, parse_id, positions_of

if TYPE_CHECKING:
    from embeddedpulsar.admin.admin import Admin
    from embeddedpulsar.admin.dead_letters import DeadLetters
    from embeddedpulsar.admin.transactions import TransactionId
    from embeddedpulsar.message import Message
    from embeddedpulsar.server.served import Served

Given = Mapping[str, Any]
"""What the page sends: `topic`, `subscription` and so on."""

# Messages that a plan shows of those that it concerns.
_SHOWN: Final = 5


class Plan(NamedTuple):
    """What an action would do.

    Attributes:
        text: in words and figures, one sentence each.
        messages: the first of the messages that it concerns, as `message_form` gives them.
        is_dangerous: whether something is lost by it.
        name: what is to be typed before it is done; empty for nothing.
    """

    text: tuple[str, ...]
    messages: tuple[dict[str, Any], ...] = ()
    is_dangerous: bool = True
    name: str = ""

    def json(self) -> dict[str, Any]:
        """The fields as the page reads them."""
        return {
            "text": list(self.text),
            "messages": list(self.messages),
            "isDangerous": self.is_dangerous,
            "name": self.name,
        }


class Action(NamedTuple):
    """Something that can be done.

    Attributes:
        plan: says what it would do, and changes nothing.
        do: does it, and says what it did.
    """

    plan: Callable[[Served, Given], Plan]
    do: Callable[[Served, Given], str]


def _text(given: Given, name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"`{name}` is missing")
    return value


def _number(given: Given, name: str) -> int:
    try:
        number = int(given.get(name, ""))
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` is a whole number, not {given.get(name)!r}") from None
    if number < 1:
        raise ValueError(f"`{name}` is at least 1, not {number}")
    return number


def _names(given: Given) -> tuple[str, str]:
    return _text(given, "topic"), _text(given, "subscription")


def _logs(admin: Admin, topic: str) -> list[str]:
    """The topic, or its partitions."""
    partitions = admin.topics().get_partitioned_topic_metadata(topic).partitions
    return [f"{topic}-partition-{number}" for number in range(partitions)] or [topic]


# -- subscriptions -----------------------------------------------------------------------------------------


def _backlog(served: Served, topic: str, subscription: str) -> tuple[int, int, int]:
    """Messages, bytes and consumers of a subscription, in all partitions together."""
    messages = size = consumers = 0
    topics = served.admin.topics()
    for log in _logs(served.admin, topic):
        stats = topics.get_stats(log).subscriptions.get(subscription)
        if stats is not None:
            messages += stats.msg_backlog
            size += stats.backlog_size
            consumers = max(consumers, len(stats.consumers))
    return messages, size, consumers


def _first_messages(served: Served, topic: str, subscription: str, count: int) -> tuple[dict[str, Any], ...]:
    log = _logs(served.admin, topic)[0]
    messages = served.admin.topics().peek_messages(log, subscription, min(count, _SHOWN))
    return tuple(map(message_form, messages))


def _plan_skip(served: Served, given: Given) -> Plan:
    topic, subscription = _names(given)
    count = _number(given, "count")
    # Partitions have no common order, so the first messages are those of a partition.
    if served.admin.topics().get_partitioned_topic_metadata(topic).partitions:
        raise ValueError(f"{topic} has partitions, which have no common order; choose a partition")
    backlog, _, _ = _backlog(served, topic, subscription)
    skipped = min(count, backlog)
    text = (
        f"{counted(skipped, 'message')} would count as acknowledged by {subscription}, the oldest first.",
        f"{counted(backlog - skipped, 'message')} would stay in the backlog.",
    )
    return Plan(text, _first_messages(served, topic, subscription, max(skipped, 1)))


def _skip(served: Served, given: Given) -> str:
    skipped = served.admin.topics().skip_messages(*_names(given), _number(given, "count"))
    return f"{counted(skipped, 'message')} skipped"


def _plan_clear(served: Served, given: Given) -> Plan:
    topic, subscription = _names(given)
    backlog, size, consumers = _backlog(served, topic, subscription)
    text = [
        f"All {counted(backlog, 'message')} of the backlog would count as acknowledged by {subscription}."
    ]
    text.append(
        f"{counted(size, 'byte')} of storage may be reclaimed, unless another subscription needs them."
    )
    if consumers:
        text.append(f"{counted(consumers, 'attached consumer')} would get none of them any more.")
    return Plan(tuple(text), _first_messages(served, topic, subscription, _SHOWN))


def _clear(served: Served, given: Given) -> str:
    topic, subscription = _names(given)
    before, _, _ = _backlog(served, topic, subscription)
    served.admin.topics().skip_all_messages(topic, subscription)
    return f"{counted(before, 'message')} acknowledged for {subscription}"


def _target(given: Given) -> int | MessageId:
    """Where a subscription is moved: an end, a time in ms since 1970, or an id."""
    to = _text(given, "to")
    if to in ("earliest", "latest"):
        return MessageId.earliest if to == "earliest" else MessageId.latest
    return int(to) if to.isascii() and to.isdigit() else parse_id(to)


def _place(target: int | MessageId, given: Given) -> str:
    if isinstance(target, MessageId):
        return str(given["to"])
    return (
        f"the first message published at {datetime.fromtimestamp(target / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    )


def _plan_reset(served: Served, given: Given) -> Plan:
    topic, subscription = _names(given)
    target = _target(given)
    before, _, consumers = _backlog(served, topic, subscription)
    behind = sum(_entries_from(served, log, target) for log in _logs(served.admin, topic))
    text = [
        f"{subscription} would go on at {_place(target, given)}.",
        f"Its backlog of {counted(before, 'message')} would become what is in "
        f"{counted(behind, 'entry').replace('entrys', 'entries')}.",
        "What it acknowledged behind that place would be delivered again; what lies before it would not.",
    ]
    if consumers:
        text.append(f"What {counted(consumers, 'attached consumer')} hold or have fetched would be void.")
    return Plan(tuple(text))


def _entries_from(served: Served, log: str, target: int | MessageId) -> int:
    positions = positions_of(served, log)
    if target == MessageId.earliest:
        return positions.end
    if target == MessageId.latest or not positions.end:
        return 0
    if isinstance(target, int):
        target = served.admin.topics().get_message_id_by_timestamp(log, target)
    return positions.end - positions.number(target.ledger_id(), target.entry_id())


def _reset(served: Served, given: Given) -> str:
    topic, subscription = _names(given)
    served.admin.topics().reset_cursor(topic, subscription, _target(given))
    return f"{subscription} goes on at {given['to']}"


def _plan_expire(served: Served, given: Given) -> Plan:
    topic, subscription = _names(given)
    seconds = _number(given, "seconds")
    backlog, _, _ = _backlog(served, topic, subscription)
    text = (
        f"What was published more than {counted(seconds, 'second')} ago would count as acknowledged by "
        f"{subscription}.",
        f"Its backlog has {counted(backlog, 'message')} now.",
    )
    return Plan(text, _first_messages(served, topic, subscription, _SHOWN))


def _expire(served: Served, given: Given) -> str:
    topic, subscription = _names(given)
    before, _, _ = _backlog(served, topic, subscription)
    served.admin.topics().expire_messages(topic, subscription, _number(given, "seconds"))
    after, _, _ = _backlog(served, topic, subscription)
    return f"{counted(max(before - after, 0), 'message')} expired"


def _plan_delete_subscription(served: Served, given: Given) -> Plan:
    topic, subscription = _names(given)
    backlog, size, consumers = _backlog(served, topic, subscription)
    text = [
        f"The subscription {subscription} of {topic} would be gone, with its position.",
        f"{counted(backlog, 'message')} of {counted(size, 'byte')} would not be kept for it any more.",
    ]
    if consumers:
        text.append(f"{counted(consumers, 'attached consumer')} would get an error at the next call.")
    return Plan(tuple(text), name=subscription)


def _delete_subscription(served: Served, given: Given) -> str:
    topic, subscription = _names(given)
    served.admin.topics().delete_subscription(topic, subscription, force=True)
    return f"{subscription} deleted"


def _plan_create_subscription(served: Served, given: Given) -> Plan:
    topic, subscription = _names(given)
    where = "the first retained message" if given.get("to") == "earliest" else "the next message"
    text = f"The durable subscription {subscription} of {topic} would begin with {where}."
    return Plan((text,), is_dangerous=False)


def _create_subscription(served: Served, given: Given) -> str:
    topic, subscription = _names(given)
    begin = MessageId.earliest if given.get("to") == "earliest" else MessageId.latest
    served.admin.topics().get_partitioned_topic_metadata(topic)  # it is not to be created with it
    served.admin.topics().create_subscription(topic, subscription, begin)
    return f"{subscription} created"


# -- dead letters ------------------------------------------------------------------------------------------


def _letters(served: Served, given: Given) -> DeadLetters:
    topic, subscription = _names(given)
    return served.admin.dead_letters(topic, subscription, given.get("letters") or None)


def _all_of(first: Sequence[Message]) -> str:
    """Dead letters, of which at most 1,000 were looked at."""
    if len(first) == 1000:
        return "All 1,000 or more dead letters"
    return "The only dead letter" if len(first) == 1 else f"All {counted(len(first), 'dead letter')}"


def _plan_replay(served: Served, given: Given) -> Plan:
    letters = _letters(served, given)
    if given.get("id"):
        wanted = [each for each in letters.peek(1000) if id_text(each.message_id()) == given["id"]]
        if not wanted:
            raise ValueError(f"{letters.topic} has no dead letter {given['id']} any more")
        text = f"The dead letter {given['id']} would be published to the topic that it comes from."
        rest = "Every subscription of that topic receives it, and it is taken off this list."
    else:
        wanted = letters.peek(1000)
        text = f"{_all_of(wanted)} would be published to the topics that they come from."
        rest = "Every subscription of such a topic receives them, and they are taken off this list."
    return Plan((text, rest), tuple(map(message_form, wanted[:_SHOWN])), is_dangerous=False)


def _replay(served: Served, given: Given) -> str:
    letters = _letters(served, given)
    if not given.get("id"):
        return f"{counted(letters.replay_all(), 'dead letter')} published again"
    # The ids of partitions need the partition, which the list has.
    wanted = [each.message_id for each in letters.list(1000) if id_text(each.message_id) == given["id"]]
    if not wanted:
        raise ValueError(f"{letters.topic} has no dead letter {given['id']} any more")
    letters.replay(wanted[0])
    return f"the dead letter {given['id']} published again"


def _plan_purge(served: Served, given: Given) -> Plan:
    letters = _letters(served, given)
    first = letters.peek(1000)
    text = (
        f"{_all_of(first)} of {letters.topic} would be given up.",
        "They cannot be replayed then.",
    )
    return Plan(text, tuple(map(message_form, first[:_SHOWN])), name="purge")


def _purge(served: Served, given: Given) -> str:
    return f"{counted(_letters(served, given).purge(), 'dead letter')} given up"


# -- topics ------------------------------------------------------------------------------------------------


def _plan_publish(served: Served, given: Given) -> Plan:
    topic = _text(given, "topic")
    data = str(given.get("payload") or "").encode()
    text = f"A message of {counted(len(data), 'byte')} would be published to {topic}."
    names = ", ".join(served.admin.topics().get_subscriptions(topic)) or "no subscription"
    return Plan((text, f"It would go to {names}."), is_dangerous=False)


def _publish(served: Served, given: Given) -> str:
    topic = _text(given, "topic")
    properties = given.get("properties") or {}
    if not isinstance(properties, dict):
        raise ValueError("`properties` is an object of texts")
    served.admin.topics().get_partitioned_topic_metadata(topic)  # it is not to be created with it
    # The payload has to fit the schema of the topic, as that of any producer.
    with served.client.create_producer(topic, schema=AutoProduceBytesSchema()) as producer:
        message_id = producer.send(
            str(given.get("payload") or "").encode(),
            {str(name): str(value) for name, value in properties.items()},
            str(given.get("key") or "") or None,
        )
    return f"published as {id_text(message_id)}"


def _plan_trim(served: Served, given: Given) -> Plan:
    kept = served.admin.why_kept(_text(given, "topic"))
    due = [ledger for ledger in kept.ledgers if ledger.reason == "to be trimmed"]
    size = sum(ledger.size for ledger in due)
    text = f"{counted(len(due), 'segment')} of {counted(size, 'byte')} would be removed: nothing holds them."
    return Plan((text, "What a subscription or the retention needs stays."))


def _trim(served: Served, given: Given) -> str:
    return f"{counted(served.admin.topics().trim_topic(_text(given, 'topic')), 'segment')} removed"


def _plan_compact(served: Served, given: Given) -> Plan:
    text = (
        f"The newest message of each key of {_text(given, 'topic')} would be copied, in the background.",
        "Those that read compacted get the copies; the log stays as it is.",
    )
    return Plan(text, is_dangerous=False)


def _compact(served: Served, given: Given) -> str:
    served.admin.topics().compact(_text(given, "topic"))
    return "compaction begun"


def _plan_roll(served: Served, given: Given) -> Plan:
    text = f"The active segment of {_text(given, 'topic')} would be sealed, and the next one begun."
    return Plan((text, "Producers and consumers do not notice."), is_dangerous=False)


def _roll(served: Served, given: Given) -> str:
    return f"{counted(served.admin.topics().roll_ledger(_text(given, 'topic')), 'segment')} sealed"


def _plan_delete_topic(served: Served, given: Given) -> Plan:
    topic = _text(given, "topic")
    topics = served.admin.topics()
    logs = _logs(served.admin, topic)
    shown = [topics.get_stats(log) for log in logs]
    subscriptions = {name for stats in shown for name in stats.subscriptions}
    size = sum(stats.storage_size for stats in shown)
    attached = sum(
        len(stats.publishers) + sum(len(each.consumers) for each in stats.subscriptions.values())
        for stats in shown
    )
    text = [
        f"{topic} would be gone, with {counted(size, 'byte')} of messages"
        + (f", {counted(len(logs), 'partition')}" if topic not in logs else "")
        + f" and {counted(len(subscriptions), 'subscription')}.",
        "This cannot be undone.",
    ]
    if attached:
        text.append(
            f"{counted(attached, 'attached producer or consumer')} would get an error: close them first."
        )
    return Plan(tuple(text), name=topic.rpartition("/")[2])


def _delete_topic(served: Served, given: Given) -> str:
    topic, topics = _text(given, "topic"), served.admin.topics()
    if topics.get_partitioned_topic_metadata(topic).partitions:
        topics.delete_partitioned_topic(topic)
    else:
        topics.delete(topic)
    return f"{topic} deleted"


# -- functions and transactions ----------------------------------------------------------------------------


def _function(given: Given) -> tuple[str, str, str]:
    parts = _text(given, "function").split("/")
    if len(parts) != 3:
        raise ValueError(f"a function is TENANT/NAMESPACE/NAME, not {given['function']!r}")
    return parts[0], parts[1], parts[2]


def _of_function(text: str, method: str, is_dangerous: bool) -> Action:
    def plan(served: Served, given: Given) -> Plan:
        served.admin.functions().get_function(*_function(given))  # that there is one
        return Plan((text.format(given["function"]),), is_dangerous=is_dangerous)

    def do(served: Served, given: Given) -> str:
        getattr(served.admin.functions(), f"{method}_function")(*_function(given))
        return f"{given['function']}: {method}"

    return Action(plan, do)


def _transaction(given: Given) -> TransactionId:
    numbers = _text(given, "transaction").strip("()").split(",")
    if len(numbers) != 2 or not all(number.strip().isdigit() for number in numbers):
        raise ValueError(f"a transaction is (0,NUMBER), not {given['transaction']!r}")
    return int(numbers[0]), int(numbers[1])


def _of_transaction(text: str, method: str) -> Action:
    def plan(served: Served, given: Given) -> Plan:
        known = served.admin.transactions().get_transaction_metadata(_transaction(given))
        stored = counted(len(known.produced_partitions), "topic")
        return Plan((text, f"It is {known.status} and stored something in {stored}."))

    def do(served: Served, given: Given) -> str:
        getattr(served.admin.transactions(), method)(_transaction(given))
        return f"{given['transaction']}: done"

    return Action(plan, do)


ACTIONS: Final[dict[str, Action]] = {
    "skip": Action(_plan_skip, _skip),
    "clear": Action(_plan_clear, _clear),
    "reset": Action(_plan_reset, _reset),
    "expire": Action(_plan_expire, _expire),
    "delete-subscription": Action(_plan_delete_subscription, _delete_subscription),
    "create-subscription": Action(_plan_create_subscription, _create_subscription),
    "replay": Action(_plan_replay, _replay),
    "purge": Action(_plan_purge, _purge),
    "publish": Action(_plan_publish, _publish),
    "trim": Action(_plan_trim, _trim),
    "compact": Action(_plan_compact, _compact),
    "roll": Action(_plan_roll, _roll),
    "delete-topic": Action(_plan_delete_topic, _delete_topic),
    "start-function": _of_function("{} would be run by the supervisor of the store.", "start", False),
    "stop-function": _of_function("The workers of {} would end; its messages wait.", "stop", True),
    "restart-function": _of_function("All workers of {} would be started again.", "restart", False),
    "abort-transaction": _of_transaction("What it stored would never be delivered.", "abort_transaction"),
    "commit-transaction": _of_transaction(
        "What it stored would be delivered, in the place of the program that prepared it.",
        "commit_prepared_transaction",
    ),
}
"""Everything that the console can change, by the names in its requests."""


def action_of(given: Given) -> Action:
    """The action that a request names.

    Raises:
        ValueError: there is none of that name.
    """
    name = given.get("action")
    if name not in ACTIONS:
        raise ValueError(f"there is no action {name!r}; there are {', '.join(ACTIONS)}")
    return ACTIONS[name]

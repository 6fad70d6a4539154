"""A transport for kombu and Celery: queues are topics of a store, and there is no broker to run.

Importing this module registers the scheme, so that ``Celery(broker="embeddedpulsar:///srv/queue")`` and
``kombu.Connection("embeddedpulsar:///srv/queue")`` work. Without the import, name the class beside the URL:
``broker_transport="embeddedpulsar.frameworks.kombu:Transport"``.

A queue is a topic with one Shared subscription for each of its priorities. A message that a worker holds is
redelivered within milliseconds of its death; there is no visibility timeout. docs/celery.md has the details.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import OrderedDict
from queue import Empty
from typing import TYPE_CHECKING
from urllib.parse import unquote

from embeddedpulsar import exceptions
from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.due_entries import MultiplierRedeliveryBackoff
from embeddedpulsar.client.consumer.topic_group import ConsumerSelector
from embeddedpulsar.enums import ConsumerType, InitialPosition, SubscriptionMode
from embeddedpulsar.frameworks.engine import SYSTEM_CLOCK, threads
from embeddedpulsar.frameworks.kombu_loop import (
    LONGEST_WAIT_S,
    SCHEME,
    LoopWatch,
    due_ms_of,
    parse_connection,
    topic_part,
)
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.policy_values import InactiveTopicPolicies

try:
    from kombu.transport import TRANSPORT_ALIASES, base, virtual
    from kombu.utils.json import dumps, loads
except ImportError as error:
    raise ImportError(
        'the transport of kombu needs kombu: pip install "embeddedpulsar[celery]"', name="kombu"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Final

    from embeddedpulsar.client.consumer.consumer import Consumer
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.message import Message

NAMESPACE: Final = "public/kombu"
"""Where the topics of queues are, unless the URL or the transport options say otherwise."""
PRIORITY_STEPS: Final = (0, 3, 6, 9)
"""The priorities of a queue, each of which is a topic: a message has the highest that it reaches."""

_SUBSCRIPTION: Final = "workers"
_TRANSIENT: Final = "-transient"
_INACTIVE_S: Final = 60
_PRODUCERS: Final = 128
"""Topics to which a connection keeps producers attached."""
_URGENT_IN_A_ROW: Final = 10
"""Messages of transient queues that are delivered while other messages wait."""
_AT_ONCE: Final = MultiplierRedeliveryBackoff(0, 0, 2)
_REQUEUED_S: Final = 0.1
"""How long a message that was requeued may take to be there again."""

monotonic = SYSTEM_CLOCK.monotonic


class QoS(virtual.QoS):  # type: ignore[misc]  # kombu has no types
    """Unacknowledged messages of a channel, which their consumers hold until they are acknowledged.

    Nothing is stored again to be redelivered: the store redelivers what a channel returns, or holds when it
    ends. Any thread may acknowledge and reject.
    """

    restore_at_shutdown = False

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message: it is not delivered again, also if this process is killed now."""
        self.channel.finish(delivery_tag)
        super().ack(delivery_tag)
        self.channel.connection_changed()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Drop a message, or have it redelivered in some milliseconds, marked as such."""
        self.channel.finish(delivery_tag, is_done=not requeue)
        self._quick_ack(delivery_tag)
        self.channel.connection_changed()

    def restore_unacked(self) -> list[Any]:
        """Have all messages that the channel holds redelivered, now."""
        self.channel.give_back()
        self._flush()
        self._delivered.clear()
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Do nothing: what a channel holds when it closes is redelivered by the store."""
        self._on_collect.cancel()
        self._delivered.clear()
        self._delivered.restored = True


class Channel(virtual.Channel):  # type: ignore[misc]  # kombu has no types
    """A channel: the queues that it consumes, and the messages that it holds.

    A channel belongs to one thread, as in kombu, except that any thread may acknowledge and reject. Topics,
    bindings and messages are in the store: a message is stored when ``basic_publish`` returns.

    Attributes:
        priority_steps: priorities that a queue keeps apart, from 0 to 9; higher numbers are served first.
        is_urgent: whether all queues that it consumes are transient, as those of controls and events are.
    """

    QoS = QoS
    do_restore = False
    supports_fanout = True
    body_encoding = None
    priority_steps: Sequence[int] = PRIORITY_STEPS
    from_transport_options = (*virtual.Channel.from_transport_options, "priority_steps")

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        steps = sorted({int(step) for step in self.priority_steps} | {0}, reverse=True)
        if not 0 <= min(steps) <= max(steps) <= self.max_priority:
            raise ValueError(f"priority_steps={self.priority_steps!r}: priorities are from 0 to 9")
        self._steps: Final = steps
        self._attached: dict[str, list[Consumer[bytes]]] = {}
        self._held: dict[str, tuple[Consumer[bytes], Message[bytes]]] = {}
        self._without_acks: set[str] = set()
        self._turn = 0
        self.is_urgent = False
        self._requeued_at = -_REQUEUED_S

    # -- topics --------------------------------------------------------------------------------------------

    def _topics(self, queue: str) -> list[str]:
        """The topics of a queue, by falling priority."""
        return [self._topic(queue, step) for step in self._steps]

    def _topic(self, queue: str, step: int = 0) -> str:
        suffix = f";priority-{step}" if step else ""
        return f"persistent://{self.connection.namespace}/{topic_part(queue)}{suffix}"

    def _transient_topic(self, queue: str, step: int = 0) -> str:
        suffix = f";priority-{step}" if step else ""
        return f"persistent://{self.connection.namespace}{_TRANSIENT}/{topic_part(queue)}{suffix}"

    def _transient_topics(self, queue: str) -> list[str]:
        """The topics of a transient queue by falling priority, several if it was declared with some."""
        topics = [self._transient_topic(queue, step) for step in self._steps]
        return [topic for topic in topics[:-1] if self.connection.subscriptions(topic)] + topics[-1:]

    def _exchange_topic(self, exchange: str) -> str:
        return f"persistent://{self.connection.namespace}/exchange;{topic_part(exchange)}"

    def _is_transient(self, queue: str) -> bool:
        """Whether a queue ends with the connection that declared it."""
        transport = self.connection
        if queue in transport.durable_queues:
            return False
        return queue in transport.transient or bool(
            self.connection.subscriptions(self._transient_topic(queue))
        )

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return self._is_transient(queue) or bool(self.connection.subscriptions(self._topic(queue)))

    def prepare_queue_arguments(self, arguments: dict[str, Any] | None, **kwargs: Any) -> dict[str, Any]:
        prepared = base.to_rabbitmq_queue_arguments(arguments or {}, **kwargs)
        for name in ("x-max-length", "x-max-length-bytes"):
            if prepared.get(name) is not None:
                raise NotImplementedError(
                    f"{name}: queues of embeddedpulsar have no limit of length. Leave the argument out, or "
                    "set a quota of the topic with Admin.topics().set_backlog_quota"
                )
        return dict(prepared)

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        """Create a queue. One that is exclusive, or deleted automatically, ends with this connection."""
        arguments = kwargs.get("arguments") or {}
        transport = self.connection
        ttl_ms = arguments.get("x-message-ttl")
        if ttl_ms is not None:
            transport.ttl_ms[queue] = int(ttl_ms)
        if kwargs.get("auto_delete") or kwargs.get("exclusive"):
            steps = self._steps if arguments.get("x-max-priority") else (0,)
            transport.attach_transient(queue, [self._transient_topic(queue, step) for step in steps])
            return
        self._make_durable(queue)
        topics = transport.admin.topics()
        for topic in self._topics(queue):
            if ttl_ms is not None:
                topics.set_message_ttl(topic, max(1, -(-int(ttl_ms) // 1000)))
            if arguments.get("x-expires") is not None:
                seconds = max(1, -(-int(arguments["x-expires"]) // 1000))
                topics.set_inactive_topic_policies(
                    topic, InactiveTopicPolicies("delete_when_subscriptions_caught_up", seconds)
                )

    def _make_durable(self, queue: str) -> None:
        transport = self.connection
        if queue in transport.durable_queues:
            return
        transport.prepare_namespaces()
        for topic in self._topics(queue):
            transport.make_subscription(topic, _SUBSCRIPTION, MessageId.earliest)
        transport.durable_queues.add(queue)

    # -- bindings ------------------------------------------------------------------------------------------
    #
    # A binding is a subscription of the topic of its exchange, to which nothing is ever published: its name
    # has the routing key and the queue. That of a transient queue is non-durable: it ends with its process.

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        transport = self.connection
        transport.prepare_namespaces()
        topic = self._exchange_topic(exchange)
        is_transient = self._is_transient(queue)
        name = json.dumps([routing_key or "", queue, "transient" if is_transient else "durable"])
        if is_transient:
            transport.hold_binding(queue, topic, name)
        else:
            transport.make_subscription(topic, name, MessageId.latest)

    def get_table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        """Return the bindings of an exchange, of all processes: routing key, pattern, queue."""
        return [(key, pattern, queue) for key, pattern, queue, _ in self._bindings(exchange)]

    def _bindings(self, exchange: str) -> Iterator[tuple[str, str | None, str, str]]:
        kind = self.typeof(exchange)
        for name in self.connection.subscriptions(self._exchange_topic(exchange)):
            key, queue, _ = json.loads(name)
            yield (*kind.prepare_bind(queue, exchange, key, None), name)

    def queue_bind(
        self, queue: str, exchange: str = "", routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        """Bind a queue to an exchange, for all processes that use the store."""
        exchange = exchange or "amq.direct"
        self.state.exchanges.setdefault(
            exchange, {"type": "direct", "durable": True, "auto_delete": False, "arguments": {}, "table": []}
        )
        super().queue_bind(queue, exchange, routing_key, arguments, **kwargs)

    def queue_unbind(
        self, queue: str, exchange: str = "", routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        """Remove a binding, for all processes that use the store."""
        exchange = exchange or "amq.direct"
        self.state.binding_delete(queue, exchange, routing_key)
        for key, _, bound, name in list(self._bindings(exchange)):
            if bound == queue and key == (routing_key or ""):
                self._drop_binding(exchange, name)

    def _drop_binding(self, exchange: str, name: str) -> None:
        topic = self._exchange_topic(exchange)
        self.connection.let_binding_go(topic, name)
        try:
            self.connection.admin.topics().delete_subscription(topic, name, force=True)
        except (exceptions.SubscriptionNotFound, exceptions.TopicNotFound):
            return  # it ended with its consumer

    def _bound_exchanges(self, queue: str) -> Iterator[tuple[str, str]]:
        """The exchanges to which a queue is bound, whichever process declared them, and the bindings."""
        for topic in self.connection.admin.topics().get_list(self.connection.namespace):
            _, is_exchange, exchange = topic.rpartition("/")[2].partition("exchange;")
            if is_exchange:
                for name in self.connection.subscriptions(topic):
                    if json.loads(name)[1] == queue:
                        yield unquote(exchange), name

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange with its bindings; the queues stay, as in AMQP."""
        if if_unused and self.get_table(exchange):
            return
        self.state.exchanges.pop(exchange, None)
        self.connection.delete_topic(self._exchange_topic(exchange))

    # -- queues --------------------------------------------------------------------------------------------

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        transport = self.connection
        due_ms = due_ms_of(message)
        options: dict[str, Any] = {"deliver_at": due_ms} if due_ms else {}
        priority = self._get_message_priority(message)
        steps = [step for step in self._steps if step <= priority]
        if self._is_transient(queue):
            topics = self._transient_topics(queue) if len(steps) > 1 else ()
            wanted = (self._transient_topic(queue, step) for step in steps)
            topic = next((topic for topic in wanted if topic in topics), self._transient_topic(queue))
        else:
            self._make_durable(queue)
            topic = self._topic(queue, steps[0])
        if due_ms:
            options["properties"] = {"deliver_at": str(due_ms)}
        transport.send(topic, dumps(message).encode(), options)

    def _put_fanout(
        self, exchange: str, message: dict[str, Any], routing_key: str | None = None, **kwargs: Any
    ) -> None:
        for queue in {queue for _, _, queue in self.get_table(exchange)}:
            self._put(queue, message)

    def _consumers_of(self, queue: str) -> list[Consumer[bytes]]:
        """The consumers of a queue by falling priority, attached now if they are not."""
        consumers = self._attached.get(queue)
        if consumers is None:
            transport = self.connection
            transport.prepare_namespaces()
            if self._is_transient(queue):
                topics = self._transient_topics(queue)
                consumers = [
                    transport.subscribe(topic, _SUBSCRIPTION, subscription_mode=SubscriptionMode.NonDurable)
                    for topic in topics
                ]
            else:
                self._make_durable(queue)
                consumers = [transport.subscribe(topic, _SUBSCRIPTION) for topic in self._topics(queue)]
            self._attached[queue] = consumers
        return consumers

    def _detach(self, queue: str) -> None:
        for consumer in self._attached.pop(queue, ()):
            self.connection.end_consumer(consumer)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        consumers = self._consumers_of(queue)
        selector = self.connection.selector
        while True:
            received = selector.receive_nowait(consumers)
            if received is None:
                # What this channel has requeued is back in some milliseconds.
                left_s = self._requeued_at + _REQUEUED_S - monotonic()
                if left_s <= 0:
                    raise Empty
                if selector.request_wakeup(consumers):
                    selector.wait(consumers, left_s)
                    selector.end_wait(consumers)
                continue
            payload = self.accept(queue, *received)
            if payload is not None:
                self._requeued_at = -_REQUEUED_S
                return payload

    def accept(self, queue: str, consumer: Consumer[bytes], message: Message[bytes]) -> dict[str, Any] | None:
        """Return a received message as kombu has it; None for one that has expired, which is dropped."""
        payload: dict[str, Any] = loads(message.data())
        properties = payload["properties"]
        ttl_ms = self.connection.ttl_ms.get(queue)
        expiration = properties.get("expiration")
        limits = [int(limit) for limit in (ttl_ms, expiration) if limit is not None]
        if limits and message.publish_timestamp() + min(limits) <= self.connection.now_ms():
            consumer.acknowledge(message)
            return None
        # Its own for each delivery: a channel may still hold an earlier one of the same message.
        tag = properties["delivery_tag"] = self._next_delivery_tag()
        if message.redelivery_count():
            payload["redelivered"] = True
            payload.setdefault("headers", {})["redelivered"] = True
            properties.setdefault("delivery_info", {})["redelivered"] = True
        if queue in self._without_acks:
            consumer.acknowledge(message)
        else:
            self._held[tag] = consumer, message
        return payload

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return the next message of a queue, or None if there is none."""
        message = super().basic_get(queue, no_ack, **kwargs)
        if message is not None and no_ack:
            self.finish(message.delivery_tag)
        return message

    def finish(self, delivery_tag: str, *, is_done: bool = True) -> None:
        """Acknowledge a message that the channel holds, or return it. Any thread may call it."""
        held = self._held.pop(delivery_tag, None)
        if held is None:
            return  # returned meanwhile: it will be delivered again
        consumer, message = held
        if is_done:
            consumer.acknowledge(message)
        else:
            consumer.negative_acknowledge(message)
            self._requeued_at = monotonic()

    def give_back(self) -> None:
        """Have all messages that the channel holds redelivered now, to whichever consumer is free."""
        consumers = {consumer for consumer, _ in self._held.values()}
        self._held.clear()
        for consumer in consumers:
            consumer.redeliver_unacknowledged_messages()

    def _size(self, queue: str) -> int:
        topics = self._transient_topics(queue) if self._is_transient(queue) else self._topics(queue)
        return sum(self._backlog(topic) for topic in topics)

    def _backlog(self, topic: str) -> int:
        """The messages that no consumer holds, delayed ones included."""
        try:
            stats = self.connection.admin.topics().get_stats(topic).subscriptions[_SUBSCRIPTION]
        except (exceptions.TopicNotFound, KeyError):
            return 0
        return max(0, int(stats.msg_backlog - stats.unacked_messages))

    def _purge(self, queue: str) -> int:
        """Remove the messages that no consumer holds, delayed ones included; return how many there were."""
        count = self._size(queue)
        if self._is_transient(queue):
            for topic in self._transient_topics(queue):
                self.connection.purge(topic, SubscriptionMode.NonDurable)
        else:
            self._make_durable(queue)
            for topic in self._topics(queue):
                self.connection.purge(topic, SubscriptionMode.Durable)
        return count

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        """Delete a queue with its messages and its bindings."""
        if if_empty and self._size(queue):
            return
        if if_unused and queue in self.connection.used_queues():
            return
        for exchange, name in list(self._bound_exchanges(queue)):
            self._drop_binding(exchange, name)
        self.state.queue_bindings_delete(queue)
        self._delete(queue)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        transport = self.connection
        is_transient = self._is_transient(queue)
        self._detach(queue)
        transport.let_transient_go(queue)
        transport.durable_queues.discard(queue)
        if is_transient:
            topics = [self._transient_topic(queue, step) for step in self._steps]
        else:
            topics = self._topics(queue)
        for topic in topics:
            transport.delete_topic(topic)

    # -- consuming -----------------------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> None:
        """Begin to consume a queue: its messages are delivered by ``drain_events`` or an event loop."""
        if no_ack:
            self._without_acks.add(queue)
        else:
            self._without_acks.discard(queue)
        self._consumers_of(queue)
        super().basic_consume(queue, no_ack, *args, **kwargs)
        self._set_urgency()
        self.connection_changed()

    def _set_urgency(self) -> None:
        transient = self.connection.transient
        self.is_urgent = all(queue in transient for queue in self._active_queues)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop consuming. Messages that the channel holds can still be acknowledged."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        self._set_urgency()
        if queue is not None and queue not in self._active_queues:
            self.connection_changed()

    def basic_qos(self, *args: Any, **kwargs: Any) -> None:
        """Set how many messages the channel may hold; 0 for any number."""
        super().basic_qos(*args, **kwargs)
        self.connection_changed()

    def basic_recover(self, requeue: bool = False) -> None:
        """Have all messages that the channel holds redelivered."""
        if not requeue:
            raise NotImplementedError(
                "basic_recover(requeue=False): a channel returns what it holds to the queue"
            )
        self.qos.restore_unacked()
        self.connection_changed()

    def connection_changed(self) -> None:
        """Have the thread or the event loop of the connection look again."""
        if self.connection is not None:
            self.connection.look_again()

    def wanted(self) -> list[str]:
        """The queues from which the channel takes messages now, beginning with another one each time."""
        if not self._consumers or not self.qos.can_consume():
            return []
        queues = list(dict.fromkeys(self._active_queues))
        self._turn = turn = (self._turn + 1) % max(1, len(queues))
        return queues[turn:] + queues[:turn]

    def consumers_of(self, queues: Sequence[str]) -> list[Consumer[bytes]]:
        """The consumers of some queues, in their order."""
        return [consumer for queue in queues for consumer in self._attached.get(queue, ())]

    def queue_of(self, consumer: Consumer[bytes]) -> str | None:
        """The queue that a consumer of this channel belongs to."""
        return next((queue for queue, consumers in self._attached.items() if consumer in consumers), None)

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Deliver one message that is there.

        Raises:
            queue.Empty: there is none.
        """
        if not self.connection.deliver_next([self]):
            raise Empty

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Text is stored as it is, so that tools can show it; bytes are stored as base64."""
        encoding = encoding or ("base64" if isinstance(body, bytes) else None)
        return super().encode_body(body, encoding)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the channel. What it holds is redelivered at once, marked as such."""
        if self.closed:
            return
        transport = self.connection
        if transport is not None and transport.is_own_process:
            self.give_back()
        for queue in list(self._attached):
            self._detach(queue)
        super().close()


class Transport(virtual.Transport):  # type: ignore[misc]  # kombu has no types
    """The connection of kombu to a store.

    URL: ``embeddedpulsar://`` and what `Client` takes, ``embeddedpulsar:///srv/queue`` for the directory
    ``/srv/queue``, with options behind a question mark. They may be given as ``transport_options``, too
    (``broker_transport_options`` of Celery):

    * ``namespace``: where the topics are, ``tenant/namespace``; default is ``public/kombu``.
    * ``durability``: of messages, see `Client`: ``process``, ``interval`` or ``flush``.
    * ``priority_steps``: priorities that are kept apart, 0 to 9, higher first; default is ``[0, 3, 6, 9]``.
    * ``deadletter_queue``: as for all virtual transports.

    A connection belongs to one thread at a time. After a fork the child makes connections of its own.

    Raises:
        ValueError: the URL names no directory, or an option is unknown.
    """

    Channel = Channel
    can_parse_url = True
    default_port = 0
    driver_type = SCHEME
    driver_name = SCHEME
    polling_interval = None
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )
    connection_errors = (
        *virtual.Transport.connection_errors,
        exceptions.AlreadyClosed,
        exceptions.Timeout,
        exceptions.StorageError,
        exceptions.ConnectError,
        exceptions.NotConnected,
    )
    channel_errors = (*virtual.Transport.channel_errors, exceptions.PulsarException)

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._path, options = parse_connection(client)
        self.namespace: Final = options.pop("namespace", NAMESPACE)
        self._durability: Final = options.pop("durability", "process")
        if options:
            raise ValueError(f"unknown options of an embeddedpulsar URL: {', '.join(sorted(options))}")
        self._pid: Final = os.getpid()
        self._lock: Final = threads.RLock()
        self._store: Client | None = None
        self._admin: Admin | None = None
        self._producers: OrderedDict[str, Producer[bytes]] = OrderedDict()
        self._has_namespaces = False
        self.selector: Final = ConsumerSelector([])
        self.durable_queues: Final[set[str]] = set()
        self.transient: Final[dict[str, list[Consumer[bytes]]]] = {}
        self.ttl_ms: Final[dict[str, int]] = {}
        self._bindings: Final[dict[tuple[str, str], tuple[str, Consumer[bytes]]]] = {}
        self._announced: set[Consumer[bytes]] = set()
        self._urgent = 0
        self._watch: LoopWatch | None = None

    # -- the store -----------------------------------------------------------------------------------------

    @property
    def is_own_process(self) -> bool:
        """Whether this process made the connection, and is not a fork of that which did."""
        return os.getpid() == self._pid

    @property
    def store(self) -> Client:
        """The client of the store, opened by the first use."""
        if self._store is None:
            self._store = Client(self._path, durability=self._durability)
        return self._store

    @property
    def admin(self) -> Admin:
        """What administers the topics of the queues."""
        if self._admin is None:
            self._admin = Admin(self._path)
        return self._admin

    def now_ms(self) -> int:
        """The time, in ms since 1970."""
        return SYSTEM_CLOCK.wall_ms()

    def prepare_namespaces(self) -> None:
        """Create the namespaces of queues, once."""
        if self._has_namespaces:
            return
        namespaces = self.admin.namespaces()
        for namespace in (self.namespace, self.namespace + _TRANSIENT):
            try:
                namespaces.create_namespace(namespace)
            except exceptions.NotAllowedError:
                continue  # it exists
        transient = self.namespace + _TRANSIENT
        if namespaces.get_inactive_topic_policies(transient) is None:
            # For the topics of transient queues whose processes are killed.
            policies = InactiveTopicPolicies(max_inactive_duration_seconds=_INACTIVE_S)
            namespaces.set_inactive_topic_policies(transient, policies)
        self._has_namespaces = True

    def subscriptions(self, topic: str) -> list[str]:
        """The subscriptions of a topic; none if there is no such topic."""
        try:
            return self.admin.topics().get_subscriptions(topic)
        except exceptions.TopicNotFound:
            return []

    def make_subscription(self, topic: str, name: str, message_id: MessageId) -> None:
        """Create a durable subscription, and its topic, if there are none."""
        topics = self.admin.topics()
        # Not allowed is what exists.
        with contextlib.suppress(exceptions.NotAllowedError):
            topics.create_non_partitioned_topic(topic)
        with contextlib.suppress(exceptions.NotAllowedError):
            topics.create_subscription(topic, name, message_id)

    def subscribe(self, topic: str, subscription: str, **options: Any) -> Consumer[bytes]:
        """Attach a consumer of a Shared subscription, which fetches nothing ahead."""
        consumer = self.store.subscribe(
            topic,
            subscription,
            ConsumerType.Shared,
            receiver_queue_size=1,
            negative_ack_redelivery_backoff=_AT_ONCE,
            initial_position=InitialPosition.Earliest,
            **options,
        )
        self.selector.add(consumer)
        return consumer

    def end_consumer(self, consumer: Consumer[bytes]) -> None:
        """Close a consumer; its messages are redelivered."""
        self.selector.remove(consumer)
        consumer.close()

    def send(self, topic: str, payload: bytes, options: dict[str, Any]) -> None:
        """Store a message. Any thread may call it."""
        try:
            self._lock.acquire()
            producer = self._producers.get(topic)
            if producer is None:
                producer = self._producers[topic] = self.store.create_producer(topic)
                while len(self._producers) > _PRODUCERS:
                    self._producers.popitem(last=False)[1].close()
            else:
                self._producers.move_to_end(topic)
            try:
                producer.send(payload, **options)
            except (exceptions.AlreadyClosed, exceptions.TopicNotFound):
                # The queue was deleted. Send to the new one of its name.
                del self._producers[topic]
                producer = self._producers[topic] = self.store.create_producer(topic)
                producer.send(payload, **options)
        finally:
            self._lock.release()

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its subscriptions, also while others are attached."""
        producer = self._producers.pop(topic, None)
        if producer is not None:
            producer.close()
        try:
            self.admin.topics().delete(topic, force=True)
        except exceptions.TopicNotFound:
            return

    def purge(self, topic: str, mode: SubscriptionMode) -> None:
        """Acknowledge the messages of a topic that no consumer holds, delayed ones included."""
        now_ms = self.now_ms()
        # With a consumer that closes, so that all is written in the end.
        with self.store.subscribe(
            topic, _SUBSCRIPTION, ConsumerType.Shared, subscription_mode=mode
        ) as consumer:
            while (message := consumer.receive_nowait()) is not None:
                consumer.acknowledge(message)
            with self.store.create_reader(topic, MessageId.earliest) as reader:
                for message in reader:
                    if int(message.properties().get("deliver_at", 0)) > now_ms:
                        consumer.acknowledge(message.message_id())

    # -- transient queues ----------------------------------------------------------------------------------

    def attach_transient(self, queue: str, topics: Sequence[str]) -> None:
        """Create a queue that ends with this connection: its subscription has a consumer from now on."""
        if queue not in self.transient:
            self.prepare_namespaces()
            options = {"subscription_mode": SubscriptionMode.NonDurable}
            consumers = [self.subscribe(topic, _SUBSCRIPTION, **options) for topic in topics]
            self.transient[queue] = consumers
            self.durable_queues.discard(queue)

    def let_transient_go(self, queue: str) -> None:
        """End this connection's part in a transient queue."""
        consumers = self.transient.pop(queue, ())
        for topic, name in [key for key, (bound, _) in self._bindings.items() if bound == queue]:
            self.let_binding_go(topic, name)
        for consumer in consumers:
            self.end_consumer(consumer)
            # Producers may still be attached, as those of programs that send controls to a worker.
            if self.is_own_process and not self.subscriptions(consumer.topic()):
                self.delete_topic(consumer.topic())

    def hold_binding(self, queue: str, topic: str, name: str) -> None:
        """Bind a transient queue for as long as this connection is open."""
        if (topic, name) not in self._bindings:
            consumer = self.store.subscribe(
                topic, name, ConsumerType.Shared, subscription_mode=SubscriptionMode.NonDurable
            )
            self._bindings[topic, name] = queue, consumer

    def let_binding_go(self, topic: str, name: str) -> None:
        """Take back `hold_binding`."""
        _, consumer = self._bindings.pop((topic, name), (None, None))
        if consumer is not None:
            consumer.close()

    def used_queues(self) -> set[str]:
        """The queues that channels of this connection consume."""
        return {queue for channel in self.channels for queue in channel._active_queues}

    # -- delivering ----------------------------------------------------------------------------------------

    def deliver_next(self, channels: Sequence[Any]) -> bool:
        """Deliver the next message of the given channels to its callback. Returns False if there is none."""
        for channel in self._in_order(channels):
            queues = channel.wanted()
            consumers = channel.consumers_of(queues)
            while consumers and (received := self.selector.receive_nowait(consumers)) is not None:
                queue = channel.queue_of(received[0])
                payload = None if queue is None else channel.accept(queue, *received)
                if payload is not None:
                    # The callback may run for a long time: others are woken for what comes meanwhile.
                    self.end_wait()
                    self._urgent = self._urgent + 1 if channel.is_urgent else 0
                    self._deliver(payload, queue)
                    return True
        return False

    def _in_order(self, channels: Sequence[Any]) -> Sequence[Any]:
        """Channels of transient queues first: a worker learns of a revoked task before it comes, and
        is inspected while others wait. Not for ever."""
        if len(channels) < 2:
            return channels
        return sorted(channels, key=lambda channel: channel.is_urgent == (self._urgent >= _URGENT_IN_A_ROW))

    def wanted(self) -> list[Consumer[bytes]]:
        """The consumers from which messages may be taken now."""
        return [consumer for channel in self.channels for consumer in channel.consumers_of(channel.wanted())]

    def request_wakeup(self, consumers: list[Consumer[bytes]]) -> bool:
        """Have this process woken for some consumers, and for no others."""
        self.selector.end_wait(self._announced.difference(consumers))
        self._announced = set(consumers)
        return self.selector.request_wakeup(consumers)

    def end_wait(self) -> None:
        """Have others woken for what comes."""
        if self._announced:
            self.selector.end_wait(self._announced)
            self._announced = set()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message, waiting for it.

        Raises:
            socket.timeout: there was none within ``timeout`` seconds.
        """
        end = None if timeout is None else monotonic() + timeout
        try:
            while not self.deliver_next(self.channels):
                left_s = LONGEST_WAIT_S if end is None else min(LONGEST_WAIT_S, end - monotonic())
                if left_s <= 0:
                    raise TimeoutError(f"no message within {timeout} s")
                consumers = self.wanted()
                if self.request_wakeup(consumers):
                    self.selector.wait(consumers, left_s)
        finally:
            self.end_wait()

    def look_again(self) -> None:
        """Have the waiting thread or event loop look for messages: a channel may take more."""
        if not self.is_own_process:
            return
        if self._watch is not None:
            self._watch.look_again()
        else:
            self.selector.wake()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have an event loop of kombu deliver messages, without polling."""
        self.unregister_from_event_loop(connection, loop)
        self._watch = LoopWatch(self, loop)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Take back `register_with_event_loop`."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    # -- kombu's questions ---------------------------------------------------------------------------------

    def driver_version(self) -> str:
        """Return the version of embeddedpulsar."""
        from embeddedpulsar import __version__

        return __version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL: there are no passwords in it."""
        return uri if "://" in uri else f"{SCHEME}://{self._path}"

    def verify_connection(self, connection: Any) -> bool:
        """Whether the store is open."""
        return self._store is not None

    def establish_connection(self) -> Any:
        """Open the store.

        Raises:
            embeddedpulsar.exceptions.StorageError: the directory cannot be used as a store.
        """
        try:
            self.store  # noqa: B018 - opened here, so that errors are those of the connection
            return super().establish_connection()
        except BaseException:
            self.close_connection(self)
            raise

    def close_connection(self, connection: Any) -> None:
        """Close the channels, and leave the store. What the channels hold is redelivered."""
        self.unregister_from_event_loop(connection, None)
        super().close_connection(connection)
        for queue in list(self.transient):
            self.let_transient_go(queue)
        for topic, name in list(self._bindings):
            self.let_binding_go(topic, name)
        self._producers.clear()
        admin, self._admin = self._admin, None
        store, self._store = self._store, None
        if admin is not None:
            admin.close()
        if store is not None:
            store.close()


def register() -> None:
    """Let kombu and Celery know the scheme ``embeddedpulsar``. Importing this module does it.

    Example:
        >>> import embeddedpulsar.frameworks.kombu
        >>> from kombu import Connection
        >>> with Connection("embeddedpulsar://./jobs") as connection:
        ...     queue = connection.SimpleQueue("thumbnails")
        ...     queue.put({"file": "holiday.jpg"})
        ...     message = queue.get(timeout=10)
        ...     message.ack()
        ...     queue.close()
        ...     message.payload
        {'file': 'holiday.jpg'}
    """
    TRANSPORT_ALIASES[SCHEME] = f"{__name__}:Transport"


register()

"""Traces and metrics of a program's messages, by OpenTelemetry. Needs the extra ``otel``.

`instrument` has every producer, consumer, reader and function of the process traced; `uninstrument` restores
what it replaced. A program that calls neither imports nothing of this, and is as fast as without it.
`EmbeddedPulsarInstrumentor` is the same for ``opentelemetry-instrument`` and other users of instrumentors.

Names and attributes are those of OpenTelemetry's semantic conventions for messaging, which are in
development: a release may follow a change of theirs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, partial, wraps
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary, WeakSet

from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar.asyncio import worker_threads
from embeddedpulsar.asyncio.client import Client as AsyncClient
from embeddedpulsar.asyncio.cluster_client import ClusterAsyncioConsumer
from embeddedpulsar.asyncio.consumer import Producer as AsyncProducer
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.consumer.reader import Reader
from embeddedpulsar.client.producer.pending_entry import ErrorTaker, tell_failure
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.cluster import client as cluster
from embeddedpulsar.cluster.translation import failure
from embeddedpulsar.exceptions import AlreadyClosed, PulsarException, Timeout
from embeddedpulsar.functions.instance import Instance
from embeddedpulsar.functions.io import InstanceContext
from embeddedpulsar.message import Message
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.results import Result
from embeddedpulsar.topic_name import TopicName

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ImportError as error:
    raise ImportError(
        'embeddedpulsar.otel needs the API of OpenTelemetry: pip install "embeddedpulsar[otel]"'
    ) from error

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from embeddedpulsar.functions.io import Draft
    from embeddedpulsar.message_id import MessageId

__all__ = ["OPERATIONS", "EmbeddedPulsarInstrumentor", "instrument", "process", "uninstrument"]

OPERATIONS: Final = ("send", "receive", "process", "settle")
"""The operations that have spans, unless `instrument` is given others."""

_KINDS: Final = {
    "send": SpanKind.PRODUCER,
    "receive": SpanKind.CLIENT,
    "process": SpanKind.CONSUMER,
    "settle": SpanKind.CLIENT,
}
# Topics of the package itself: states of functions are published and read with every message.
_INTERNAL: Final = "persistent://public/functions/"
# OpenTelemetry's own key: code under it is not to be traced, that of exporters for example.
_SUPPRESSED: Final = "suppress_instrumentation"
# The contexts that the messages being processed came with. Who copies the properties of a message to
# what it sends copies its context as well, which is not that of the new message.
_IN_PROCESS: Final = contexts.create_key("embeddedpulsar-in-process")
_TRACEPARENT: Final = "traceparent"
_DURATIONS_S: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
_wall_ns, _monotonic = SYSTEM_CLOCK.wall_ns, SYSTEM_CLOCK.monotonic


class _Destination(NamedTuple):
    """A topic as spans name it.

    Attributes:
        name: full name of the topic, of a partition that of the whole.
        partition: number of the partition, None without.
        is_internal: whether it is a topic of the package itself, which has no spans.
        system: what has it, a store or a cluster.
    """

    name: str
    partition: str | None
    is_internal: bool
    system: str


def _destination(topic: str, owner: object) -> _Destination:
    """The topic of a message, or of what sends or receives; "" for one of several."""
    is_cluster = isinstance(_blocking(owner), cluster.ClusterHandle | cluster.ClusterMessage)
    return _parsed(topic, "pulsar" if is_cluster else "embeddedpulsar")


@lru_cache(maxsize=4096)
def _parsed(topic: str, system: str) -> _Destination:
    if "://" not in topic:
        return _Destination("(several topics)", None, False, system)
    parsed = TopicName.parse(topic)
    partition = None if parsed.partition < 0 else str(parsed.partition)
    return _Destination(parsed.base, partition, parsed.base.startswith(_INTERNAL), system)


class _Telemetry:
    """What one `instrument` asked for, and the tracer and the instruments that it uses. Any thread."""

    def __init__(
        self,
        clients: Sequence[Any],
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        operations: Collection[str],
    ) -> None:
        # Clients are held weakly: that one is traced is no reason to keep it.
        self._clients = WeakSet(map(_blocking, clients)) if clients else None
        self.operations: Final = frozenset(operations)
        release = version("embeddedpulsar")
        self.tracer: Final = trace.get_tracer(__name__, release, tracer_provider)
        meter = metrics.get_meter(__name__, release, meter_provider)

        self.durations: Final = tuple(
            meter.create_histogram(name, "s", explicit_bucket_boundaries_advisory=_DURATIONS_S)
            for name in ("messaging.client.operation.duration", "messaging.process.duration")
        )
        self.sent: Final = meter.create_counter("messaging.client.sent.messages", "{message}")
        self.consumed: Final = meter.create_counter("messaging.client.consumed.messages", "{message}")

    def covers(self, owner: Any) -> bool:
        """Whether what a client made, or the client itself, is to be traced now."""
        if contexts.get_value(_SUPPRESSED):
            return False
        if self._clients is None:
            return True
        below = _blocking(owner)
        # The consumer that a listener of a cluster is called with first has no client yet.
        return (below if isinstance(below, Client) else getattr(below, "_client", None)) in self._clients


_active: _Telemetry | None = None
_originals: Final[list[tuple[Any, str, Any]]] = []


def _blocking(owner: Any) -> Any:
    """The object of the blocking API below one of asyncio."""
    return getattr(owner, "_blocking", owner)


def _telemetry(owner: Any) -> _Telemetry | None:
    """What traces calls of this owner, None if nothing does."""
    telemetry = _active
    return telemetry if telemetry is not None and telemetry.covers(owner) else None


# -- one operation -------------------------------------------------------------------------------------


class _Operation:
    """A span and the measurements of one operation. Made when the operation begins; `end` is called once."""

    __slots__ = ("_attributes", "_began", "_delivers", "_is_process", "_telemetry", "span")

    def __init__(
        self,
        telemetry: _Telemetry,
        name: str,
        destination: _Destination,
        attributes: dict[str, AttributeValue],
        *,
        parent: Context | None = None,
        links: Sequence[Link] = (),
        began: tuple[int, float] | None = None,
        kind: SpanKind | None = None,
        is_pushed: bool = False,
    ) -> None:
        self._telemetry = telemetry
        self._is_process = name == "process"
        # A message is counted once: where it is received, or where a listener is called with it.
        self._delivers = name == "receive" or is_pushed
        # Those of measurements too, which must have few values: no ids, and no names that programs draw.
        self._attributes: dict[str, AttributeValue] = {
            "messaging.system": destination.system,
            "messaging.operation.name": name,
            "messaging.operation.type": name,
            "messaging.destination.name": destination.name,
        }
        if _SUBSCRIPTION in attributes:
            self._attributes[_SUBSCRIPTION] = attributes[_SUBSCRIPTION]
        start_ns, self._began = began or (_wall_ns(), _monotonic())
        if name in telemetry.operations:
            if destination.partition is not None:
                attributes["messaging.destination.partition.id"] = destination.partition
            self.span: Span = telemetry.tracer.start_span(
                f"{name} {destination.name}",
                parent,
                kind or _KINDS[name],
                self._attributes | attributes,
                links,
                start_ns,
            )
        else:
            # The context of the caller goes on, into messages as well.
            self.span = trace.NonRecordingSpan(trace.get_current_span(parent).get_span_context())

    def end(self, error: BaseException | None = None, count: int = 1) -> None:
        """End it.

        Args:
            error: why it failed, None if it did not.
            count: number of its messages.
        """
        telemetry, attributes = self._telemetry, self._attributes
        if error is not None:
            kind = type(error).__qualname__
            attributes = attributes | {"error.type": kind}
            self.span.record_exception(error)
            self.span.set_attribute("error.type", kind)
            self.span.set_status(Status(StatusCode.ERROR, f"{kind}: {error}"))
        telemetry.durations[self._is_process].record(_monotonic() - self._began, attributes)
        if attributes["messaging.operation.name"] == "send":
            telemetry.sent.add(count, attributes)
        elif self._delivers and count:
            telemetry.consumed.add(count, attributes)
        self.span.end()


_SUBSCRIPTION: Final = "messaging.destination.subscription.name"
_CLIENT_ID: Final = "messaging.client.id"
_MESSAGE_ID: Final = "messaging.message.id"
_COUNT: Final = "messaging.batch.message_count"


def _of_consumer(consumer: Any) -> dict[str, AttributeValue]:
    """The attributes of a consumer; none of a reader, which has no subscription."""
    if consumer is None or not hasattr(consumer, "subscription_name"):
        return {}
    return {_SUBSCRIPTION: consumer.subscription_name(), _CLIENT_ID: consumer.consumer_name()}


def _creation_context(message: Message[Any]) -> tuple[Context, trace.SpanContext]:
    """The context that a message was sent in, and its span, which may be invalid: there is none then."""
    context = propagate.extract(message.properties(), contexts.Context())
    return context, trace.get_current_span(context).get_span_context()


def _links(messages: Iterable[Message[Any]], *, is_batch: bool) -> list[Link]:
    links = []
    for message in messages:
        _, created = _creation_context(message)
        if created.is_valid:
            # In a batch the link says which message it is; of a single message the span has the id.
            links.append(Link(created, {_MESSAGE_ID: str(message.message_id())} if is_batch else None))
    return links


# -- sending -------------------------------------------------------------------------------------------


def _is_own_context(properties: dict[str, str]) -> bool:
    """Whether the program gave the message a context, which is then not replaced."""
    given = properties.get(_TRACEPARENT)
    came_with = cast("frozenset[str]", contexts.get_value(_IN_PROCESS) or frozenset())
    return given is not None and given not in came_with


def _begin_send(
    telemetry: _Telemetry, producer: Any, properties: dict[str, str] | None
) -> tuple[_Operation, dict[str, str]]:
    """The operation of a send, and the properties with its context."""
    attributes: dict[str, AttributeValue] = {_CLIENT_ID: producer.producer_name()}
    destination, given = _destination(producer.topic(), producer), properties or {}
    if _is_own_context(given):
        created = trace.get_current_span(propagate.extract(given, contexts.Context())).get_span_context()
        links = [Link(created)] if created.is_valid else []
        kind = SpanKind.CLIENT  # the convention for a send whose context is not that of the message
        return _Operation(telemetry, "send", destination, attributes, links=links, kind=kind), given
    operation = _Operation(telemetry, "send", destination, attributes)
    carrier = dict(given)
    propagate.inject(carrier, trace.set_span_in_context(operation.span))
    return operation, carrier


def _has_sent(operation: _Operation, message_id: MessageId) -> None:
    span = operation.span
    if span.is_recording():
        span.set_attribute(_MESSAGE_ID, str(message_id))
        if message_id.partition() >= 0:
            span.set_attribute("messaging.destination.partition.id", str(message_id.partition()))


def _is_traceable(producer: Any, properties: object) -> bool:
    # What is no dict the producer refuses, with its own error.
    is_known = properties is None or type(properties) is dict
    return is_known and not _destination(producer.topic(), producer).is_internal


@contextmanager
def _during(operation: _Operation, count: int = 1) -> Iterator[Span]:
    """Have the span of an operation current, and end it; an exception ends it as failed."""
    try:
        with trace.use_span(operation.span, record_exception=False, set_status_on_exception=False):
            yield operation.span
    except BaseException as error:
        operation.end(error, count)
        raise
    operation.end(None, count)


def _send(original: Callable[..., MessageId]) -> Callable[..., MessageId]:
    @wraps(original)
    def send(
        self: Producer[Any],
        content: Any,
        properties: dict[str, str] | None = None,
        *arguments: Any,
        **options: Any,
    ) -> MessageId:
        telemetry = _telemetry(self)
        if telemetry is None or not _is_traceable(self, properties):
            return original(self, content, properties, *arguments, **options)
        operation, carrier = _begin_send(telemetry, self, properties)
        with _during(operation):
            message_id = original(self, content, carrier, *arguments, **options)
            _has_sent(operation, message_id)
        return message_id

    return send


def _send_in_loop(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    async def send(
        self: AsyncProducer[Any],
        content: Any,
        properties: dict[str, str] | None = None,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        telemetry = _telemetry(self)
        if telemetry is None or not _is_traceable(self, properties):
            return await original(self, content, properties, *arguments, **options)
        operation, carrier = _begin_send(telemetry, self, properties)
        with _during(operation):
            message_id = await original(self, content, carrier, *arguments, **options)
            _has_sent(operation, message_id)
        return message_id

    return send


class _SendEnd(ErrorTaker):
    """The callback of one `Producer.send_async`, which ends the operation, then calls the application."""

    __slots__ = ("_callback", "_context", "_operation", "_producer")

    def __init__(self, operation: _Operation, producer: Producer[Any], callback: Any) -> None:
        self._operation, self._producer, self._callback = operation, producer, callback
        self._context = contexts.get_current()  # of the sender: the callback goes on where it was called

    def __call__(self, result: Result, message_id: MessageId) -> None:
        if result is Result.Ok:
            _has_sent(self._operation, message_id)
            self._operation.end()
        else:  # that of a cluster; a store calls `failed`
            self._operation.end(failure(result))
        if self._callback is not None:
            _within(self._context, lambda: self._callback(result, message_id))

    def failed(self, error: BaseException, message_id: MessageId) -> None:
        self._operation.end(error)
        if self._callback is None:
            # Without a callback the next flush raises the first failure; see `_flush`.
            _failures.setdefault(self._producer, error)
        else:
            _within(self._context, lambda: tell_failure(self._callback, error, message_id))

    def __repr__(self) -> str:
        return repr(self._callback)


_failures: Final[WeakKeyDictionary[Producer[Any], BaseException]] = WeakKeyDictionary()


def _send_async(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def send_async(
        self: Producer[Any],
        content: Any,
        callback: Any,
        properties: dict[str, str] | None = None,
        *arguments: Any,
        **options: Any,
    ) -> None:
        telemetry = _telemetry(self)
        # A closed producer refuses a message without a callback by an exception.
        is_refused = callback is None and not self.is_connected()
        if telemetry is None or is_refused or not _is_traceable(self, properties):
            return original(self, content, callback, properties, *arguments, **options)
        operation, carrier = _begin_send(telemetry, self, properties)
        end = _SendEnd(operation, self, callback)
        try:
            original(self, content, end, carrier, *arguments, **options)
        except BaseException as error:
            operation.end(error)  # refused, so no callback comes
            raise

    return send_async


def _flush(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def flush(self: Producer[Any]) -> None:
        original(self)
        error = _failures.pop(self, None)
        if error is not None:
            raise error

    return flush


def _send_columns(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method that sends a message for each value or row: one span, whose context all of them have. What a
    column gives a message of its own comes first."""

    @wraps(original)
    def send_columns(self: Producer[Any], *contents: Any, **options: Any) -> Any:
        telemetry, common = _telemetry(self), options.get("common_properties")
        if telemetry is None or not _is_traceable(self, common):
            return original(self, *contents, **options)
        operation, options["common_properties"] = _begin_send(telemetry, self, common)
        return _send_all(operation, lambda: original(self, *contents, **options))

    return send_columns


def _send_all(operation: _Operation, send: Callable[[], Any]) -> Any:
    try:
        with trace.use_span(operation.span, record_exception=False, set_status_on_exception=False):
            sent = send()
    except BaseException as error:
        stored = len(getattr(error, "stored", ()))
        operation.span.set_attribute(_COUNT, stored)
        operation.end(error, stored)
        raise
    operation.span.set_attribute(_COUNT, len(sent))
    operation.end(None, len(sent))
    return sent


# -- receiving -----------------------------------------------------------------------------------------


def _record_receive(owner: Any, received: Any, began: tuple[int, float]) -> None:
    """Make the span of a receive that returned a message or a list, which began before they were there."""
    telemetry, is_batch = _telemetry(owner), isinstance(received, list)
    if telemetry is None or not received:
        return
    messages: Sequence[Message[Any]] = received if is_batch else (received,)
    destination = _destination(messages[0].topic_name(), owner)
    if destination.is_internal:
        return
    attributes = _of_consumer(owner)
    if is_batch:
        attributes[_COUNT] = len(messages)
        if len({message.topic_name() for message in messages}) > 1:
            destination = destination._replace(partition=None)
    else:
        attributes[_MESSAGE_ID] = str(messages[0].message_id())
    links = _links(messages, is_batch=is_batch) if "receive" in telemetry.operations else ()
    _Operation(telemetry, "receive", destination, attributes, links=links, began=began).end(
        None, len(messages)
    )


def _record_failure(owner: Any, error: BaseException, began: tuple[int, float]) -> None:
    """Make the span of a receive that failed. No message in time is no failure, and neither is the end."""
    telemetry = _telemetry(owner)
    if (
        telemetry is None
        or not isinstance(error, PulsarException)
        or isinstance(error, Timeout | AlreadyClosed)
    ):
        return
    destination = _destination(owner.topic(), owner)
    _Operation(telemetry, "receive", destination, _of_consumer(owner), began=began).end(error, 0)


def _receive(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method that returns a message, a list of messages, or None."""

    @wraps(original)
    def receive(self: Any, *arguments: Any, **options: Any) -> Any:
        if _active is None:
            return original(self, *arguments, **options)
        began = _wall_ns(), _monotonic()
        try:
            message = original(self, *arguments, **options)
        except BaseException as error:
            _record_failure(self, error, began)
            raise
        _record_receive(self, message, began)
        return message

    return receive


def _receive_in_loop(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    async def receive_async(self: Any) -> Any:
        began = _wall_ns(), _monotonic()
        try:
            message = await original(self)
        except BaseException as error:
            _record_failure(self, error, began)
            raise
        _record_receive(self, message, began)
        return message

    return receive_async


# -- processing ----------------------------------------------------------------------------------------


def process(
    messages: Message[Any] | Sequence[Message[Any]], consumer: Any = None
) -> AbstractContextManager[Span]:
    """Return a context manager whose span says that the program handles messages.

    Listeners and functions need none: their calls have such a span. The span is current in the block, so what
    the block sends, logs or asks of other services belongs to the trace. Of one message, where no span is
    current, it continues the trace of the send; otherwise it has a link to it, and of several messages one to
    each. An exception that leaves the block is recorded. It does not acknowledge.

    Thread-safe. If the process is not instrumented, the block runs without a span.

    Args:
        messages: a message, or those that are handled together; not empty.
        consumer: that received them, also one of asyncio; it names the subscription. None for readers.

    Returns:
        A context manager of the ``opentelemetry.trace.Span``, for attributes of the program's own.

    Raises:
        ValueError: there is no message.

    Example:
        >>> import embeddedpulsar as pulsar
        >>> with pulsar.Client("memory://") as client, client.subscribe("orders", "kitchen") as consumer:
        ...     instrument(client)
        ...     message_id = client.create_producer("orders").send(b"one tea")
        ...     message = consumer.receive()
        ...     with process(message, consumer) as span:
        ...         consumer.acknowledge(message)
        ...     uninstrument()
        >>> "traceparent" in message.properties()  # without an SDK there are no spans, and no context
        False
    """
    group = (messages,) if isinstance(messages, Message) else tuple(messages)
    if not group:
        raise ValueError("process() is given no message; it takes one, or a sequence of at least one")
    return _process(group, consumer, {}, is_batch=not isinstance(messages, Message))


@contextmanager
def _process(
    messages: Sequence[Message[Any]],
    consumer: Any,
    more: dict[str, AttributeValue],
    *,
    is_batch: bool = False,
    is_pushed: bool = False,
) -> Iterator[Span]:
    telemetry = _active if consumer is None else _telemetry(consumer)
    destination = _destination(messages[0].topic_name(), messages[0])
    if telemetry is None or destination.is_internal or contexts.get_value(_SUPPRESSED):
        yield trace.INVALID_SPAN
        return
    attributes = _of_consumer(consumer) | more
    links, parent = _links(messages, is_batch=is_batch), None
    if is_batch:
        attributes[_COUNT] = len(messages)
    else:
        attributes[_MESSAGE_ID] = str(messages[0].message_id())
        context, created = _creation_context(messages[0])
        if created.is_valid and not trace.get_current_span().get_span_context().is_valid:
            parent, links = context, []
    operation = _Operation(
        telemetry, "process", destination, attributes, parent=parent, links=links, is_pushed=is_pushed
    )
    came_with = frozenset(
        value for message in messages if (value := message.properties().get(_TRACEPARENT)) is not None
    )
    # The baggage of the sender goes on with its trace.
    token = contexts.attach(contexts.set_value(_IN_PROCESS, came_with, parent))
    try:
        with _during(operation, len(messages)) as span:
            yield span
    finally:
        contexts.detach(token)


_LISTENERS: Final = {"subscribe": "message_listener", "create_reader": "reader_listener"}


def _with_listener(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a client that has a listener among its arguments."""
    signature, name = inspect.signature(original), _LISTENERS[original.__name__]

    @wraps(original)
    def opening(self: Client, *arguments: Any, **options: Any) -> Any:
        given = signature.bind(self, *arguments, **options)
        listener = given.arguments.get(name)
        if callable(listener):
            given.arguments[name] = _traced_listener(listener)
        return original(*given.args, **given.kwargs)

    return opening


def _traced_listener(listener: Callable[[Any, Any], object]) -> Callable[[Any, Any], object]:
    def traced(owner: Any, message: Message[Any]) -> object:
        if _telemetry(owner) is None:
            return listener(owner, message)
        with _process((message,), owner, {}, is_pushed=True):
            return listener(owner, message)

    return traced


def _listener_of_cluster(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def make(listener: Callable[[Any, Any], object], *rest: Any) -> Any:
        return original(_traced_listener(listener), *rest)

    return make


def _call(original: Callable[..., None]) -> Callable[..., None]:
    """The call of a function with one message, or with a window, of which it is given the newest."""

    @wraps(original)
    def call(self: Instance, message: Message[Any], *arguments: Any) -> None:
        config = self._config
        more: dict[str, AttributeValue] = {
            _SUBSCRIPTION: config.subscription,
            "messaging.embeddedpulsar.function": config.full_name,
        }
        with _process((message,), None, more):
            original(self, message, *arguments)

    return call


def _emit(original: Callable[..., None]) -> Callable[..., None]:
    """What a function publishes; with EFFECTIVELY_ONCE that is sent later, outside of the call's span."""

    @wraps(original)
    def emit(self: InstanceContext, draft: Draft) -> None:
        if _active is not None and self._send is None:
            properties = dict(draft.options.get("properties") or {})
            if not _is_own_context(properties):
                propagate.inject(properties)
                draft = draft._replace(options={**draft.options, "properties": properties})
        original(self, draft)

    return emit


# -- settling ------------------------------------------------------------------------------------------


_OUTCOMES: Final = {
    "acknowledge": "ack",
    "acknowledge_cumulative": "ack_cumulative",
    "negative_acknowledge": "nack",
    "reconsume_later": "reconsume_later",
    "reconsume_later_cumulative": "reconsume_later_cumulative",
}


@contextmanager
def _settling(consumer: Any, message: Any, method: Callable[..., Any]) -> Iterator[None]:
    telemetry = _telemetry(consumer)
    group = message if isinstance(message, list | tuple) else (message,)
    messages = [each for each in group if isinstance(each, Message)]
    destination = _destination(messages[0].topic_name() if messages else consumer.topic(), consumer)
    if telemetry is None or destination.is_internal or not group:
        yield
        return
    attributes = _of_consumer(consumer) | {"messaging.embeddedpulsar.settlement": _OUTCOMES[method.__name__]}
    is_batch = group is message
    if is_batch:
        attributes[_COUNT] = len(group)
    else:
        attributes[_MESSAGE_ID] = str(messages[0].message_id() if messages else message)
    links = _links(messages, is_batch=is_batch) if "settle" in telemetry.operations else ()
    operation = _Operation(telemetry, "settle", destination, attributes, links=links)
    with _during(operation, len(group)):
        # `reconsume_later` acknowledges: that is a part of it, and no operation of its own.
        token = contexts.attach(contexts.set_value(_SUPPRESSED, True))
        try:
            yield
        finally:
            contexts.detach(token)


def _acknowledging(original: Callable[..., None]) -> Callable[..., None]:
    """An acknowledgement of one of the forms, or its opposite."""

    @wraps(original)
    def acknowledge(self: Any, message: Any, *arguments: Any, **options: Any) -> None:
        with _settling(self, message, original):
            original(self, message, *arguments, **options)

    return acknowledge


def _acknowledging_in_loop(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    async def acknowledge(self: Any, message: Any, **options: Any) -> None:
        with _settling(self, message, original):
            await original(self, message, **options)

    return acknowledge


# -- switching it on and off ---------------------------------------------------------------------------


def _in_thread(original: Callable[..., Any]) -> Callable[..., Any]:
    """What starts the thread of a blocking call of a coroutine, which is to be in the coroutine's trace."""

    @wraps(original)
    def begin(call: Callable[[], Any], *arguments: Any) -> Any:
        return original(partial(_within, contexts.get_current(), call), *arguments)

    return begin


def _within(context: Context, call: Callable[[], Any]) -> Any:
    token = contexts.attach(context)
    try:
        return call()
    finally:
        contexts.detach(token)


_WRAPPERS: Final[tuple[tuple[Any, Callable[[Any], Any], str], ...]] = (
    (Producer, _send, "send"),
    (Producer, _send_async, "send_async"),
    (Producer, _send_columns, "send_many send_arrow"),
    (Producer, _flush, "flush"),
    (AsyncProducer, _send_in_loop, "send"),
    (Consumer, _receive, "receive receive_nowait batch_receive"),
    (Consumer, _receive_in_loop, "receive_async"),
    (Consumer, _acknowledging, " ".join(_OUTCOMES)),
    (Reader, _receive, "read_next read_nowait"),
    (Reader, _receive_in_loop, "read_next_async"),
    (Client, _with_listener, " ".join(_LISTENERS)),
    (worker_threads, _in_thread, "_begin"),
    (Instance, _call, "_call"),
    (InstanceContext, _emit, "emit"),
    # Of clusters: what calls another of these, as `receive_nowait` does, is traced by that.
    (cluster.ClusterProducer, _send, "send"),
    (cluster.ClusterProducer, _send_async, "send_async"),
    (cluster.ClusterConsumer, _receive, "receive batch_receive"),
    (cluster.ClusterConsumer, _receive_in_loop, "receive_async"),
    (cluster.ClusterConsumer, _acknowledging, "acknowledge acknowledge_cumulative negative_acknowledge"),
    (cluster.ClusterReader, _receive, "read_next"),
    (cluster.ClusterReader, _receive_in_loop, "read_next_async"),
    (cluster, _listener_of_cluster, "_listener"),
    (ClusterAsyncioConsumer, _acknowledging_in_loop, "acknowledge acknowledge_cumulative"),
)
"""Where, what a method is replaced by, and which methods."""


def instrument(
    *clients: Client | AsyncClient,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    operations: Collection[str] = OPERATIONS,
) -> None:
    """Have what this process sends, receives, processes and settles traced and measured, from now on.

    It replaces methods of the classes of this package until `uninstrument` is called. Producers and consumers
    that are open already are traced as well; listeners are, if they are given to a client afterwards. A
    second call replaces what the first asked for. Call it once at the start of each process.

    The context of a send is stored with the message, in the properties of the global propagator:
    ``traceparent`` and, with baggage, ``baggage``. So it survives the process, a backup, and a copy to a
    cluster.

    Args:
        *clients: those whose producers, consumers and readers are traced; functions and `process` always are.
            Without any, all clients of the process, also future ones.
        tracer_provider: makes the tracer; None for the global one.
        meter_provider: makes the instruments; None for the global one.
        operations: which of `OPERATIONS` have spans. All are measured.

    Raises:
        ValueError: an operation that there is none of.

    Example:
        >>> instrument(operations=["send", "process"])
        >>> uninstrument()
        >>> instrument(operations=["sned"])
        Traceback (most recent call last):
        ValueError: there is no operation 'sned'; operations are send, receive, process, settle
    """
    global _active
    for operation in operations:
        if operation not in OPERATIONS:
            raise ValueError(f"there is no operation {operation!r}; operations are {', '.join(OPERATIONS)}")
    # Methods are wrapped once; a second call replaces what the wrappers record.
    _active = _Telemetry(clients, tracer_provider, meter_provider, operations)
    if not _originals:
        for owner, wrap, names in _WRAPPERS:
            for name in names.split():
                original = owner.__dict__[name]
                _originals.append((owner, name, original))
                setattr(owner, name, wrap(original))


def uninstrument() -> None:
    """Undo `instrument`: all methods are those of before. Does nothing if there is nothing to undo.

    Spans of messages that are being sent or processed end as they began.

    Example:
        >>> from embeddedpulsar import Producer
        >>> before = Producer.send
        >>> instrument()
        >>> Producer.send is before
        False
        >>> uninstrument()
        >>> Producer.send is before
        True
    """
    global _active
    _active = None
    while _originals:
        owner, name, original = _originals.pop()
        setattr(owner, name, original)


try:
    from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]
except ImportError:  # the API alone: `instrument` is there

    class EmbeddedPulsarInstrumentor:
        """Says what it needs: instrumentors are a part of ``opentelemetry-instrumentation``."""

        def __init__(self) -> None:
            raise ImportError(
                "EmbeddedPulsarInstrumentor needs: pip install opentelemetry-instrumentation; "
                "embeddedpulsar.otel.instrument() works without it"
            )

else:

    class EmbeddedPulsarInstrumentor(BaseInstrumentor):  # type: ignore[no-redef, misc]
        """`instrument` and `uninstrument` as OpenTelemetry's instrumentors are called.

        It is registered as ``embeddedpulsar`` in the entry points ``opentelemetry_instrumentor``, so
        ``opentelemetry-instrument python program.py`` finds it. ``instrument`` takes the options of the
        function `instrument`, and ``clients`` as a list.

        Example:
            >>> EmbeddedPulsarInstrumentor().instrument()
            >>> EmbeddedPulsarInstrumentor().uninstrument()
        """

        def instrumentation_dependencies(self) -> Collection[str]:
            """Return what is instrumented: this package, in the release that has this class."""
            return (f"embeddedpulsar == {version('embeddedpulsar')}",)

        def _instrument(self, clients: Sequence[Any] = (), **options: Any) -> None:
            # `opentelemetry-instrument` passes options that concern itself.
            known = {name: options[name] for name in _OPTIONS if name in options}
            instrument(*clients, **known)

        def _uninstrument(self, **_: Any) -> None:
            uninstrument()


_OPTIONS: Final = ("tracer_provider", "meter_provider", "operations")

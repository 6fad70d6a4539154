"""The console: one page in the browser, the JSON that it reads, and what it may change.

The files of the page are in ``static``: no build makes them, and nothing comes from elsewhere. Its paths are
relative, so it works wherever the application is mounted.
"""

from __future__ import annotations

import functools
import importlib.resources
import inspect
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from embeddedpulsar.error_text import counted
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    InvalidMessage,
    InvalidTopicName,
    NotAllowedError,
    PulsarException,
    ReadOnlyStoreError,
    SubscriptionNotFound,
    TopicNotFound,
)
from embeddedpulsar.records import TypeVar
from embeddedpulsar.server import screens
from embeddedpulsar.server.actions import action_of
from embeddedpulsar.server.browsing import (
    WHOLE,
    Query,
    Start,
    find_in_partitions,
    find_messages,
    id_text,
    message_form,
    message_of,
    newest,
    parse_id,
    parse_starts,
    starts_text,
)
from embeddedpulsar.server.engine import timing
from embeddedpulsar.server.sampling import INTERVAL_S, SHARE, Names, Sampler
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from starlette.requests import Request

    from embeddedpulsar.message_id import MessageId
    from embeddedpulsar.server.served import Served

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Streams of events that are open together; more are refused, so that browsers cannot use a server up.
_MOST_STREAMS: Final = 64
# Messages that a page which follows a topic gets each time; what comes beside them is counted.
_FOLLOWED: Final = 25
_FOLLOW_S: Final = 0.5
# Partitions whose messages are shown as one list.
_MOST_TOGETHER: Final = 64
_MOST_ROWS: Final = 500
_MOST_BODY: Final = 8 << 20

R = TypeVar("R")
Get = Callable[["_Parameters"], Any]


class _Parameters:
    """The query of a request, with its values checked."""

    def __init__(self, values: Any) -> None:
        self._values: Final = values

    def text(self, name: str, default: str | None = None) -> str:
        """The value of a name; an empty one counts as none."""
        value = self._values.get(name) or default
        if value is None:
            raise ValueError(f"`{name}` is missing")
        return str(value)

    def number(self, name: str, default: int, largest: int) -> int:
        """A whole number from 0 to ``largest``."""
        text = self._values.get(name) or str(default)
        if not (text.isascii() and text.isdigit()) or int(text) > largest:
            raise ValueError(f"`{name}` is a number from 0 to {largest:,}, not {text!r}")
        return int(text)

    def flag(self, name: str) -> bool:
        """Whether the value is ``1``."""
        return bool(self._values.get(name) == "1")

    def choice(self, name: str, choices: Any, default: str) -> str:
        """A value that is one of some."""
        value = str(self._values.get(name) or default)
        if value not in choices:
            raise ValueError(f"`{name}` is one of {', '.join(choices)}, not {value!r}")
        return value

    def topic(self) -> str:
        """The full name of the topic."""
        return TopicName.parse(self.text("topic")).full


class Console:
    """What the routes of one application share. Coroutines run on the event loop, other methods in
    threads."""

    def __init__(self, served: Served) -> None:
        self._served: Final = served
        self._sampler: Final = Sampler(served.admin)
        self._names: Final = Names(served.admin)
        self._streams = 0

    # -- what is shown -------------------------------------------------------------------------------------

    def about(self, parameters: _Parameters) -> dict[str, Any]:
        """What the page needs to know first."""
        admin = self._served.admin
        return {
            "allowChanges": self._served.allow_changes and not admin.is_read_only,
            "readOnly": admin.read_only_reason,
            "time": timing.SYSTEM_CLOCK.wall_ms(),
        }

    async def overview(self, parameters: _Parameters) -> dict[str, Any]:
        """See `screens.overview`."""
        sample = await self._sampler.sample()
        return await _in_thread(screens.overview, sample, self._sampler, self._names)

    async def topics(self, parameters: _Parameters) -> dict[str, Any]:
        """See `screens.topic_list`."""
        body = functools.partial(
            screens.topic_list,
            await self._sampler.sample(),
            self._sampler,
            self._names,
            search=parameters.text("search", ""),
            order=parameters.choice("order", screens.TOPIC_ORDERS, "name"),
            is_descending=parameters.flag("descending"),
            offset=parameters.number("offset", 0, 10**9),
            count=parameters.number("count", 50, _MOST_ROWS),
        )
        return await _in_thread(body)

    async def subscriptions(self, parameters: _Parameters) -> dict[str, Any]:
        """See `screens.subscription_list`."""
        body = functools.partial(
            screens.subscription_list,
            await self._sampler.sample(),
            search=parameters.text("search", ""),
            topic=parameters.topic() if parameters.text("topic", "-") != "-" else "",
            order=parameters.choice("order", screens.SUBSCRIPTION_ORDERS, "backlog"),
            is_descending=parameters.flag("descending"),
            offset=parameters.number("offset", 0, 10**9),
            count=parameters.number("count", 50, _MOST_ROWS),
        )
        return await _in_thread(body)

    async def subscription(self, parameters: _Parameters) -> dict[str, Any]:
        """See `screens.subscription_detail`."""
        sample = await self._sampler.sample()
        topic, name = parameters.topic(), parameters.text("name")
        return await _in_thread(screens.subscription_detail, self._served.admin, sample, topic, name)

    def topic(self, parameters: _Parameters) -> dict[str, Any]:
        """See `screens.topic_detail`."""
        return screens.topic_detail(self._served.admin, parameters.topic())

    def arrivals(self, parameters: _Parameters) -> dict[str, Any]:
        """See `screens.arrivals`."""
        span_ms = 1000 * parameters.number("seconds", 900, 40 * 86_400)
        now_ms = timing.SYSTEM_CLOCK.wall_ms()
        return screens.arrivals(self._served.admin, parameters.topic(), now_ms, max(span_ms, 60_000), 60)

    async def clients(self, parameters: _Parameters) -> list[dict[str, Any]]:
        """The producers and consumers of a topic, with their processes."""
        sample = await self._sampler.sample()
        return screens.client_list(sample, parameters.topic())

    def schemas(self, parameters: _Parameters) -> list[dict[str, Any]]:
        """See `screens.schema_list`."""
        return screens.schema_list(self._served.admin, parameters.topic())

    def messages(self, parameters: _Parameters) -> dict[str, Any]:
        """A page of messages; ``from`` is an end, an id, or a time in ms since 1970."""
        topic, is_backward = parameters.topic(), not parameters.flag("forward")
        begin, is_exclusive = parameters.text("from", "end"), parameters.flag("exclusive")
        query = Query(
            topic,
            None,
            True,
            is_backward,
            parameters.number("count", 50, _MOST_ROWS) or 1,
            parameters.text("key", "") or None,
            parameters.text("text", ""),
            parameters.flag("compacted"),
        )
        if self._partitions(topic):
            page, following = find_in_partitions(self._served, query, self._starts(topic, begin, is_backward))
            behind = starts_text(following)
        else:
            start = self._start(topic, begin, is_backward)
            is_inclusive = start.is_inclusive and not is_exclusive
            query = query._replace(start=start.message_id, is_inclusive=is_inclusive)
            page = find_messages(self._served, query)
            behind = "" if page.next is None else id_text(page.next)
        return {
            "messages": [message_form(message) for message in page.messages],
            "next": behind or None,
            "read": page.read,
            "isWhole": page.is_whole,
        }

    def _start(self, topic: str, text: str, is_backward: bool) -> Start:
        if text == "end":
            return Start(None)
        if not (text.isascii() and text.isdigit()):
            return Start(parse_id(text))
        start = self._served.admin.topics().get_message_id_by_timestamp(topic, int(text))
        # The first message at that time or later belongs to those that follow it alone.
        return Start(None) if start.ledger_id() < 0 else Start(start, not is_backward)

    def _starts(self, topic: str, text: str, is_backward: bool) -> dict[str, Start]:
        if "@" in text:
            return parse_starts(topic, text)
        if text != "end" and not text.isdigit():
            raise ValueError(f"{text} is an id of a partition; choose which")
        return {log: self._start(log, text, is_backward) for log in self._partitions(topic)}

    def _partitions(self, topic: str) -> list[str]:
        """The partitions that are searched together; empty for a topic without any."""
        partitions = self._served.admin.topics().get_partitioned_topic_metadata(topic).partitions
        if partitions > _MOST_TOGETHER:
            raise ValueError(
                f"{topic} has {counted(partitions, 'partition')}; choose one to see its messages"
            )
        return [f"{topic}-partition-{number}" for number in range(partitions)]

    def message(self, parameters: _Parameters) -> dict[str, Any]:
        """One message, its payload in full."""
        message = message_of(self._served, parameters.topic(), parse_id(parameters.text("id")))
        return message_form(message, WHOLE)

    def payload(self, parameters: _Parameters) -> Response:
        """The payload of a message as a file."""
        message_id = parse_id(parameters.text("id"))
        message = message_of(self._served, parameters.topic(), message_id)
        name = id_text(message_id).replace(":", "-")
        headers = {"content-disposition": f'attachment; filename="message-{name}.bin"'}
        return Response(message.data(), 200, headers, "application/octet-stream")

    def letter_topics(self, parameters: _Parameters) -> list[dict[str, Any]]:
        """See `screens.letter_topics`."""
        return screens.letter_topics(self._served.admin, self._names)

    def letters(self, parameters: _Parameters) -> list[dict[str, Any]]:
        """See `screens.letter_list`."""
        admin, topic = self._served.admin, parameters.topic()
        letters = admin.dead_letters(
            topic, parameters.text("subscription"), parameters.text("letters", "") or None
        )
        return screens.letter_list(letters, parameters.number("count", 50, _MOST_ROWS) or 1)

    def functions(self, parameters: _Parameters) -> list[dict[str, Any]]:
        """See `screens.function_list`."""
        return screens.function_list(self._served.admin)

    def transactions(self, parameters: _Parameters) -> dict[str, Any]:
        """See `screens.transaction_list`."""
        return screens.transaction_list(self._served.admin)

    async def health(self, parameters: _Parameters) -> dict[str, Any]:
        """See `screens.health_of`."""
        sample = await self._sampler.sample()
        return await _in_thread(screens.health_of, self._served, sample)

    def check(self, parameters: _Parameters) -> dict[str, Any]:
        """See `screens.check_of`."""
        return screens.check_of(self._served.admin, parameters.topic())

    def plan(self, parameters: _Parameters) -> dict[str, Any]:
        """What an action would do; ``given`` is what would be sent to do it."""
        given = json.loads(parameters.text("given"))
        return action_of(given).plan(self._served, given).json()

    # -- what is changed -----------------------------------------------------------------------------------

    async def act(self, request: Request) -> Response:
        """Do an action. The body is JSON, so that no form of another page can send it."""
        if not self._served.allow_changes:
            return _error(403, "nothing may be changed here; see `--allow-changes` of embeddedpulsar serve")
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _error(415, "an action is sent as application/json")
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _MOST_BODY:
                return _error(413, f"an action has at most {_MOST_BODY:,} bytes")

        def do() -> dict[str, Any]:
            given = json.loads(bytes(body))
            return {"text": action_of(given).do(self._served, given)}

        return await _answered(functools.partial(_in_thread, do))

    # -- what is sent as it happens ------------------------------------------------------------------------

    async def events(self, request: Request) -> Response:
        """A stream of events: the overview, one topic, one subscription, or the last messages of a topic."""
        parameters = _Parameters(request.query_params)
        try:
            view = parameters.choice("view", _VIEWS, "overview")
            source = self._followed(parameters) if view == "messages" else self._repeated(view, parameters)
            first = await anext(source)
        except Exception as error:  # noqa: BLE001 - each has its answer
            return _failure(error)
        if self._streams >= _MOST_STREAMS:
            await source.aclose()
            return _error(503, f"{_MOST_STREAMS} pages follow the store already; close one")
        return StreamingResponse(self._sent(first, source), media_type="text/event-stream")

    async def _sent(self, first: Any, source: AsyncIterator[Any]) -> AsyncIterator[str]:
        self._streams += 1
        try:
            yield _event(first)
            # A slow browser holds the next event up, and never makes a queue.
            async for value in source:
                yield _event(value)
        except Exception as error:  # noqa: BLE001 - the page says why its figures stand still
            yield f"event: failure\ndata: {json.dumps({'reason': _reason(error)})}\n\n"
        finally:
            self._streams -= 1

    async def _repeated(self, view: str, parameters: _Parameters) -> AsyncGenerator[Any, None]:
        """A screen again and again, for a quarter of the time at most."""
        method = getattr(self, view)
        while True:
            started = timing.SYSTEM_CLOCK.monotonic()
            yield await _called(method, parameters)
            elapsed = timing.SYSTEM_CLOCK.monotonic() - started
            if await self._served.stopped(max(INTERVAL_S, (SHARE - 1) * elapsed)):
                return

    async def _followed(self, parameters: _Parameters) -> AsyncGenerator[Any, None]:
        """The newest messages of a topic since the last event, and how many came beside them."""
        topic, topics = parameters.topic(), self._served.admin.topics()
        key, text = parameters.text("key", "") or None, parameters.text("text", "")
        logs = await _in_thread(self._partitions, topic) or [topic]
        after: dict[str, MessageId] = {}

        def count() -> int:
            return sum(topics.get_stats(log).msg_in_counter for log in logs)

        def newest_of_all() -> list[dict[str, Any]]:
            messages = []
            for log in logs:
                newer, after[log] = newest(self._served, log, _FOLLOWED, after.get(log), key, text)
                messages += newer
            messages.sort(key=lambda message: message.publish_timestamp())
            return [message_form(message) for message in messages[-_FOLLOWED:]]

        counted = await _in_thread(count)
        while True:
            started = timing.SYSTEM_CLOCK.monotonic()
            messages = await _in_thread(newest_of_all)
            counter = await _in_thread(count)
            yield {"messages": messages, "came": counter - counted}
            counted = counter
            elapsed = timing.SYSTEM_CLOCK.monotonic() - started
            if await self._served.stopped(max(_FOLLOW_S, (SHARE - 1) * elapsed)):
                return


_VIEWS: Final = ("overview", "topic", "topics", "subscription", "subscriptions", "messages")


def _event(value: Any) -> str:
    # JSON has no line ends outside of its texts, and escapes those.
    return f"data: {json.dumps(value)}\n\n"


async def _in_thread(function: Callable[..., R], *arguments: Any) -> R:
    return await anyio.to_thread.run_sync(functools.partial(function, *arguments))


async def _called(method: Callable[[_Parameters], Any], parameters: _Parameters) -> Any:
    """What a method returns, which waits by itself or blocks."""
    if inspect.iscoroutinefunction(method):
        return await method(parameters)
    return await _in_thread(method, parameters)


async def _answered(body: Callable[[], Awaitable[Any]]) -> Response:
    try:
        value = await body()
    except Exception as error:  # noqa: BLE001 - each has its answer
        return _failure(error)
    return value if isinstance(value, Response) else JSONResponse(value)


_STATUSES: Final[tuple[tuple[tuple[type[Exception], ...], int], ...]] = (
    ((TopicNotFound, SubscriptionNotFound, InvalidMessage), 404),
    ((ReadOnlyStoreError,), 403),
    ((AlreadyClosed,), 503),
    ((NotAllowedError,), 409),
    ((InvalidTopicName, ValueError, KeyError), 400),
    ((PulsarException, OSError), 500),
)


def _failure(error: Exception) -> Response:
    for kinds, status in _STATUSES:
        if isinstance(error, kinds):
            return _error(status, _reason(error))
    raise error


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _error(status: int, reason: str) -> Response:
    return JSONResponse({"reason": reason}, status)


def _file_of(name: str) -> Response | None:
    """A file of the page; None if there is none of that name."""
    parts = name.split("/")
    kind = name.rpartition(".")[2]
    if any(part in ("", ".", "..") for part in parts) or kind not in _TYPES or "\\" in name or "\0" in name:
        return None
    file = importlib.resources.files("embeddedpulsar.server").joinpath("static", *parts)
    if not file.is_file():
        return None
    # Asked for again each time, and by its digest: after an upgrade no page has files of two releases.
    return Response(file.read_bytes(), 200, {"cache-control": "no-cache"}, _TYPES[kind])


def routes(served: Served) -> list[Route]:
    """The routes of the console: ``/``, ``/console/``, its files, and what they ask for."""
    console = Console(served)

    def get(path: str, method: Get) -> Route:
        async def endpoint(request: Request) -> Response:
            parameters = _Parameters(request.query_params)
            return await _answered(functools.partial(_called, method, parameters))

        return Route(f"/console/api/{path}", endpoint)

    async def home(request: Request) -> Response:
        return RedirectResponse("console/")

    async def page(request: Request) -> Response:
        return _file_of("index.html") or _error(404, "the files of the console are not installed")

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        return _file_of(name) or _error(404, f"the console has no file {name}")

    shown = {
        "about": console.about,
        "overview": console.overview,
        "topics": console.topics,
        "topic": console.topic,
        "arrivals": console.arrivals,
        "clients": console.clients,
        "schemas": console.schemas,
        "messages": console.messages,
        "message": console.message,
        "payload": console.payload,
        "subscriptions": console.subscriptions,
        "subscription": console.subscription,
        "letter-topics": console.letter_topics,
        "letters": console.letters,
        "functions": console.functions,
        "transactions": console.transactions,
        "health": console.health,
        "check": console.check,
        "plan": console.plan,
    }
    # The pages name all of these relative to themselves, so the application may be mounted below any path.
    return [
        Route("/", home),
        Route("/console", lambda request: RedirectResponse("console/")),
        Route("/console/", page),
        Route("/console/static/{name:path}", file),
        *(get(path, method) for path, method in shown.items()),
        Route("/console/api/events", console.events),
        Route("/console/api/actions", console.act, methods=["POST"]),
    ]

"""The console in a real browser, in both themes: what it shows, its keys, and its actions."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")
uvicorn = pytest.importorskip("uvicorn")
playwright = pytest.importorskip("playwright.sync_api")

from embeddedpulsar import Admin, Client, ConsumerDeadLetterPolicy, ConsumerType, Timeout  # noqa: E402
from embeddedpulsar.schema import Integer, JsonSchema, Record, String  # noqa: E402
from embeddedpulsar.server import create_app  # noqa: E402
from embeddedpulsar.testing.trial_store import trial_store  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="needs chromium")

TOKEN = "tea-and-biscuits"
HOSTILE = "<img src=x onerror=alert(1)>"
MARKUP = "\"><script>alert('x')</script>"
FULL = "persistent://public/default/"
THEMES = ("light", "dark")
WIDTHS = (380, 1440)


class Order(Record):
    table = Integer()
    item = String()


class Page:
    """A page of the browser, and what went wrong in it."""

    def __init__(self, context: Any, url: str) -> None:
        self.troubles: list[str] = []
        self.page = context.new_page()
        self.page.set_default_timeout(15_000)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: self.troubles.append(f"a dialog: {dialog.message}"))
        self.page.on("console", self._keep)
        self.page.goto(f"{url}?token={TOKEN}")
        self.page.wait_for_selector("#nav a[aria-current]")

    def _keep(self, message: Any) -> None:
        # Violations of the policy of contents are errors of the console, too.
        if message.type in ("error", "warning"):
            self.troubles.append(message.text)

    def go(self, place: str, text: str) -> None:
        """Go to a screen, and wait until it shows a text."""
        self.page.evaluate("place => { location.hash = place }", place)
        self.wait(text)

    def wait(self, text: str) -> None:
        """Wait until the screen shows a text."""
        self.page.wait_for_function("text => document.body.innerText.includes(text)", arg=text)

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        return int(
            self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        )


class Site:
    """A store that is served, and the browser."""

    def __init__(self, root: Any, url: str, browser: Any) -> None:
        self.root, self.url, self.browser = root, url, browser

    @contextmanager
    def open(self, theme: str = "light", width: int = 1440, url: str = "") -> Iterator[Page]:
        """A page in a context of its own, in which nothing may go wrong."""
        context = self.browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        try:
            page = Page(context, url or self.url)
            yield page
            assert page.troubles == []
        finally:
            context.close()


@contextmanager
def served(root: Any, **options: Any) -> Iterator[str]:
    """The address of an application that a thread serves."""
    app = create_app(root, token=TOKEN, **options)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    is_up = threading.Event()
    startup = server.startup

    async def started(sockets: Any = None) -> None:
        await startup(sockets)
        is_up.set()

    server.startup = started
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert is_up.wait(30)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        app.state.served.stop()
        thread.join(30)
        assert not thread.is_alive()


def fill(client: Client) -> None:
    """Topics, subscriptions and letters with names, keys and payloads that are markup."""
    client.subscribe(HOSTILE, MARKUP, ConsumerType.Shared, consumer_name=MARKUP).close()
    hostile = client.create_producer(HOSTILE, producer_name=MARKUP)
    for data in (MARKUP.encode(), b"\x00\xff" * 40, b'{"a": "</pre><script>alert(2)</script>"}', None):
        hostile.send(data, partition_key=MARKUP, properties={MARKUP: MARKUP, "onerror": "alert(3)"})
    orders = client.create_producer("orders", schema=JsonSchema(Order))
    client.subscribe("orders", "kitchen").close()
    for number in range(120):
        orders.send_async(Order(table=number, item="soup"), None, partition_key=f"table-{number % 5}")
    orders.flush()
    with Admin(client.get_service_info().service_url) as admin:
        admin.topics().create_partitioned_topic("legs", 3)
    legs = client.create_producer("legs", batching_enabled=False)
    for number in range(9):
        legs.send(b"leg %d" % number)
    consumer = client.subscribe(
        "mails",
        "sender",
        ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=1,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
    )
    client.create_producer("mails").send(b"Dear Sir", properties={"exception": MARKUP})
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(5000))
    with pytest.raises(Timeout):
        consumer.receive(200)
    consumer.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A store, its server and a browser, for all tests: each takes a second to begin."""
    root = tmp_path_factory.mktemp("console") / "store"
    with trial_store(root):
        with Client(root) as client:
            fill(client)
        with (
            served(root, allow_changes=True) as url,
            playwright.sync_playwright() as started,
        ):
            browser = started.chromium.launch(
                executable_path=CHROMIUM,
                args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            )
            try:
                yield Site(root, url, browser)
            finally:
                browser.close()


def topic(name: str, part: str = "") -> str:
    """The place of a topic."""
    return f"#/topic/{quote(FULL + name, safe='')}{part}"


def screens() -> list[tuple[str, str]]:
    """The place of every screen, and what it shows of the store."""
    subscription = f"{quote(FULL + HOSTILE, safe='')}/{quote(MARKUP, safe='')}"
    letters = f"#/letters/{quote(FULL + 'mails', safe='')}/sender/{quote(FULL + 'mails-sender-DLQ', safe='')}"
    return [
        ("#/overview", HOSTILE),
        ("#/topics", HOSTILE),
        (topic(HOSTILE), "not acknowledged by " + MARKUP),
        (topic(HOSTILE, "/messages"), "<script>alert(2)"),
        (topic(HOSTILE, "/subscriptions"), MARKUP),
        (topic("legs"), "legs-partition-2"),
        (topic("legs", "/messages"), "p2"),
        (topic("orders", "/clients"), '"name": "Order"'),
        ("#/subscriptions", MARKUP),
        (f"#/subscription/{subscription}", "0 of 4 entries"),
        ("#/letters", "mails"),
        (letters, "Dear Sir"),
        ("#/functions", "No functions"),
        ("#/transactions", "No transaction is open"),
        ("#/health", "Processes with producers"),
        ("#/nowhere", "There is no such screen"),
    ]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_screen(site: Site, theme: str, width: int):
    """Shows what there is as text, within the window, in the theme of the system, without an error."""
    with site.open(theme, width) as page:
        for place, text in screens():
            page.go(place, text)
            assert page.overflow() <= 0, place
            if place == topic(HOSTILE, "/messages"):
                for row in page.page.query_selector_all("tr.row"):
                    row.click()
                page.wait(MARKUP)
                assert page.page.locator("tr.detail").count() == 4
                assert page.overflow() <= 0, place
        assert page.page.locator("img:not([src='static/icon.svg'])").count() == 0
        back = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(map(int, re.findall(r"\d+", back)[:3]))
        assert (brightness > 380) == (theme == "light")


def test_long_names(site: Site):
    """Break behind their separators, with their figures in sight; what is copied is the name."""
    name, by = "payments_of.the-northern-region_" * 3, "reconciliation_worker_" * 4
    with Client(site.root) as client:
        client.subscribe(name, by).close()
    try:
        with site.open(width=380) as page:
            page.go("#/subscriptions", by)
            link = page.page.locator(f"td.name a[title='{by}']")
            assert (link.inner_text(), link.text_content()) == (by, by)
            assert link.locator("wbr").count() == by.count("_") - 1
            tops = "link => [...link.childNodes].filter(node => node.data).map(text => {"
            tops += " const all = document.createRange(); all.selectNode(text);"
            tops += " return all.getClientRects().length })"
            assert set(link.evaluate(tops)) == {1}  # no part goes over two lines
            # The figures are in sight beside it; only the reason is further to the right.
            row = page.page.locator("tr", has=link)
            oldest = row.locator("td.number:visible").nth(1).bounding_box()
            assert oldest["x"] + oldest["width"] <= 380
    finally:
        with Admin(site.root) as admin:
            admin.topics().delete(name, force=True)


def test_the_theme_is_chosen_and_kept(site: Site):
    """By the button or a key; the system decides until then."""
    with site.open("light") as page:
        color = "getComputedStyle(document.body).backgroundColor"
        before = page.page.evaluate(color)
        page.page.click("#theme")
        dark = page.page.evaluate(color)
        assert dark != before
        page.page.reload()
        page.wait("Overview")
        assert page.page.evaluate(color) == dark
        page.page.keyboard.press("T")
        assert page.page.evaluate(color) == before


def test_keys(site: Site):
    """Search, rows, screens, help."""
    with site.open() as page:
        keys = page.page.keyboard
        page.go("#/topics", "orders")
        keys.press("/")
        keys.type("orders")
        page.page.wait_for_function("() => document.querySelectorAll('tr.row').length === 1")
        keys.press("Escape")  # clears the search
        page.page.wait_for_function("() => document.querySelectorAll('tr.row').length > 3")
        keys.press("Escape")  # leaves the field
        keys.press("j")
        keys.press("j")
        keys.press("k")
        assert page.page.locator("tr.selected").count() == 1
        first = page.page.inner_text("tr.selected td.name a")
        keys.press("Enter")
        page.wait("Segments")
        assert page.page.inner_text("h1") == first
        keys.press("u")
        page.page.wait_for_selector("input[type=search]")
        keys.press("g")
        keys.press("s")
        page.wait("why it does not go on")
        keys.press("?")
        page.wait("next and previous row")
        keys.press("Escape")
        assert page.page.locator("dialog[open]").count() == 0


def test_figures_are_live(site: Site):
    """What is published while the page is open comes without a reload."""
    with site.open() as page, Client(site.root) as client:
        page.go(topic("orders", "/messages"), "119")
        page.page.click("text=Follow")
        page.wait("came since you follow")
        producer = client.create_producer("orders", schema=JsonSchema(Order))
        producer.send(Order(table=7777, item="<b>late</b>"), partition_key="late")
        page.wait("<b>late</b>")
        for number in range(5000):
            producer.send_async(Order(table=number, item="flood"), None)
        producer.flush()
        page.wait("5,001 came since you follow")
        assert page.page.locator("tr.row").count() <= 300
        page.go("#/overview", "Busiest topics")
        producer.send(Order(table=1, item="tea"))
        page.page.wait_for_function("() => document.querySelector('.chart path.line').getAttribute('d')")


def test_messages_are_searched(site: Site):
    """By key and by text, from either end."""
    with site.open() as page:
        page.go(topic("orders", "/messages"), "50 shown")
        page.page.fill("label:has-text('key') input", "table-3")
        page.page.fill("label:has-text('contains') input", '"table": 113')
        page.page.keyboard.press("Enter")
        page.wait("1 shown: that is all")
        page.page.keyboard.press("Escape")
        page.page.click("tr.row")
        page.wait('"table": 113')
        page.page.select_option("select", "start")
        page.wait("table-3")


def confirm(page: Page, button: str, verb: str, fill_in: Callable[[Any], None] = lambda dialog: None) -> None:
    """Go through the dialog of an action."""
    page.page.click(f".actions >> text={button}")
    dialog = page.page.locator("dialog[open]")
    fill_in(dialog)
    dialog.locator(".plan").wait_for()
    dialog.get_by_role("button", name=verb, exact=True).click()
    page.page.wait_for_selector(".toast")


def test_actions(site: Site):
    """Nothing is done before the page has said what would be done, and what deletes asks for the name."""
    with Client(site.root) as client, site.open() as page:
        producer = client.create_producer("tickets")
        for name in ("support", "audit"):
            client.subscribe("tickets", name).close()
        for number in range(9):
            producer.send(b"%d" % number)
        page.go(f"#/subscription/{quote(FULL + 'tickets', safe='')}/support", "0 of 9 entries")

        def four(dialog: Any) -> None:
            dialog.get_by_role("spinbutton").fill("4")
            dialog.get_by_text("Show what it would do").click()

        confirm(page, "Skip", "Skip", four)
        page.wait("4 of 9 entries")
        page.page.click(".actions >> text=Clear")
        page.wait("All 5 messages of the backlog would count as acknowledged")
        page.page.keyboard.press("Escape")
        page.wait("4 of 9 entries")
        confirm(page, "Clear", "Clear")
        page.wait("9 of 9 entries")
        page.page.click(".actions >> text=Delete")
        go = page.page.locator("dialog[open]").get_by_role("button", name="Delete", exact=True)
        page.wait("Type support to go on")
        assert go.is_disabled()
        page.page.keyboard.type("support")
        go.click()
        page.wait("audit")
        assert client.get_topic_partitions("tickets")
        reader = client.subscribe("tickets", "audit")
        assert reader.receive(5000).data() == b"0"


def test_dead_letters_are_replayed(site: Site):
    """One is looked at, with the reason of its failure, and published again."""
    with Client(site.root) as client, site.open() as page:
        place = next(place for place, text in screens() if text == "Dear Sir")
        page.go(place, "Dear Sir")
        assert page.page.inner_text("tr.row td.name") == MARKUP  # why it failed
        page.page.click("tr.row")
        page.page.wait_for_selector("tr.detail strong.bad")
        page.page.click("text=Replay this one")
        page.page.wait_for_selector("dialog[open] .plan")
        page.page.locator("dialog[open]").get_by_role("button", name="Replay", exact=True).click()
        page.wait("No dead letters.")
        consumer = client.subscribe("mails", "sender", ConsumerType.Shared)
        assert consumer.receive(5000).data() == b"Dear Sir"
        consumer.close()
        # For the other tests it is dead again.
        letter = client.create_producer("mails-sender-DLQ")
        letter.send(b"Dear Sir", properties={"exception": MARKUP, "REAL_TOPIC": FULL + "mails"})


def test_read_only(site: Site):
    """Without the right to change there is no button for it."""
    with served(site.root) as url, site.open(url=url) as page:
        for place, text in screens():
            page.go(place, text)
            assert page.page.locator(".actions, button.danger").count() == 0, place
        assert page.page.inner_text("#mode") == "read-only"
        # The other server of these tests may change the store, and has it open.
        page.go("#/health", "1 has it open; this server only looks")


def test_a_server_that_goes_away(site: Site):
    """The page says that its figures stand still."""
    context = site.browser.new_context()
    try:
        with served(site.root) as url:
            page = Page(context, url)
            page.page.wait_for_selector("#live[data-state=live]")
        page.page.wait_for_selector("#live[data-state=lost]")
    finally:
        context.close()


def test_without_the_token(site: Site):
    """Nothing is shown."""
    context = site.browser.new_context()
    try:
        page = context.new_page()
        assert page.goto(f"{site.url}console/").status == 401
        assert page.locator("#nav").count() == 0
    finally:
        context.close()

"""Who is answered, and what is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.server.conftest import BEARER, TOKEN, Site

Maker = Callable[..., Site]
HTML = {"accept": "text/html,*/*"}


def test_the_token(site: Maker, root: Path):
    """It is needed, as a bearer or in the URL; a wrong one is none, and no answer says where the store is."""
    served = site()
    refused = served.get("/nothing", None)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert "token" in refused.json()["reason"]
    assert str(root) not in refused.text
    secret = TOKEN.encode()
    for wrong in (b"Bearer wrong", b"Basic %b" % secret, b"Bearer ", b"Bearer %bx" % secret, b"Bearer \xe9"):
        assert served.ask("GET", "/nothing", [(b"authorization", wrong)]).status_code == 401
    assert served.get("/nothing").status_code == 404
    assert served.get(f"/nothing?token={TOKEN}", None).status_code == 404
    assert served.get("/nothing?token=wrong", None).status_code == 401
    assert served.get("/nothing?token=", None).status_code == 401


def test_a_browser_gets_a_cookie(site: Maker):
    """And is sent to the URL without the token. The cookie is not the token, and another server's is none."""
    served = site()
    answer = served.get(f"/nothing?a=b%20c&token={TOKEN}", HTML)
    assert (answer.status_code, answer.headers["location"]) == (303, "/nothing?a=b+c")
    text = answer.headers["set-cookie"]
    assert "HttpOnly" in text
    assert "SameSite=lax" in text
    assert TOKEN not in text
    cookie = text.partition(";")[0]
    assert served.get("/nothing", {"cookie": cookie}).status_code == 404
    assert served.get("/nothing", {"cookie": f"x=1; {cookie}"}).status_code == 404
    assert served.get("/nothing", {"cookie": f"{cookie}0"}).status_code == 401
    assert site(token="other").get("/nothing", {"cookie": cookie}).status_code == 401
    # Two slashes at its beginning would make the rest of the path a host.
    assert (
        served.get(f"http://localhost//evil.example/?token={TOKEN}", HTML).headers["location"]
        == "/evil.example/"
    )


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 404),
        ("127.0.0.1:8080", 404),
        ("[::1]:8080", 404),
        ("10.0.0.7", 404),
        ("Orders.Example:8080", 404),
        ("evil.example:8080", 421),
        ("localhost.evil.example", 421),
        ("localhost@evil.example", 421),
        ("localhost/evil", 421),
        ("", 421),
    ],
)
def test_the_host(site: Maker, host: str, status: int):
    """Addresses, localhost and names that were given: no name that another site has lead here."""
    assert site(hosts=["orders.example"]).get("/nothing", {**BEARER, "host": host}).status_code == status


def test_all_hosts(site: Maker):
    """An asterisk accepts all."""
    assert site(hosts=["*"]).get("/nothing", {**BEARER, "host": "evil.example"}).status_code == 404


def test_changes_are_refused(site: Maker):
    """Unless they are allowed, before it is looked whether there is such a path."""
    served = site()
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = served.ask(method, "/nothing", BEARER)
        assert answer.status_code == 403
        assert "--allow-changes" in answer.json()["reason"]
    assert site(allow_changes=True).ask("POST", "/nothing", BEARER).status_code == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 404),
        ({"origin": "http://localhost:8080", "sec-fetch-site": "same-origin"}, 404),
        ({"origin": "https://localhost:8080"}, 404),
        ({"origin": "http://localhost:9090", "sec-fetch-site": "same-site"}, 403),
        ({"origin": "http://localhost:9090"}, 403),
        ({"origin": "https://evil.example", "sec-fetch-site": "cross-site"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_other_sites(site: Maker, headers: dict[str, str], status: int):
    """A page of another site can have a browser send something, with the cookie, and it is refused."""
    served = site(allow_changes=True)
    cookie = served.get(f"/?token={TOKEN}", HTML).headers["set-cookie"].partition(";")[0]
    assert served.ask("POST", "/nothing", {**headers, "cookie": cookie}).status_code == status
    assert served.ask("POST", f"/nothing?token={TOKEN}", headers).status_code == 403


def test_headers_of_all_answers(site: Maker):
    """Also of refusals and of health."""
    served = site()
    for answer in (served.get("/nothing"), served.get("/nothing", None), served.get("/healthz", None)):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"


def test_no_token(site: Maker):
    """The application around it knows its users; a page of another site is refused all the same."""
    served = site(token=None, allow_changes=True)
    assert served.get("/nothing", None).status_code == 404
    assert served.ask("POST", "/nothing", {"origin": "https://evil.example"}).status_code == 403
    with pytest.raises(ValueError, match="the token is empty"):
        site(token=" ")


def test_mounted(site: Maker):
    """Paths, the redirection and the cookie are below the place where it is mounted."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    inner = site()
    outer: Any = Starlette(routes=[Mount("/queues", inner.app)])
    outer.state.served = inner.served
    around = Site(outer)
    assert around.get("/queues/healthz", None).status_code == 200
    assert around.get("/healthz", None).status_code == 404
    assert around.get("/queues/nothing", None).status_code == 401
    answer = around.get(f"/queues/nothing?token={TOKEN}", HTML)
    assert answer.headers["location"] == "/queues/nothing"
    assert "Path=/queues" in answer.headers["set-cookie"]

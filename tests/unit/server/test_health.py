"""What health says, and to whom; and the ends of an application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar import AlreadyClosed, Client
from embeddedpulsar._engine.store.root_layout import CATALOG_LOCK
from embeddedpulsar.damage import HOLE, INDEX, Damage
from embeddedpulsar.server import served as health
from tests.support.held_elsewhere import held_elsewhere
from tests.unit.server.conftest import TOKEN, Site

Maker = Callable[..., Site]
OK = {"store": "ok", "disk": "ok", "locks": "ok", "damage": "ok"}


def test_a_healthy_store(site: Maker):
    """Both answer, without a token and for any host."""
    served = site()
    assert served.get("/healthz", {"host": "pod-7"}).json() == {"status": "ok"}
    answer = served.get("/readyz", {"host": "pod-7"})
    assert (answer.status_code, answer.json()) == (200, {"status": "ready", "checks": OK})


def test_a_full_disk(site: Maker, root: Path):
    """The reason has the numbers; the path is for those with the token."""
    served = site(min_free_bytes=1 << 60)
    answer = served.get("/readyz", None)
    assert answer.status_code == 503
    assert answer.json()["status"] == "not ready"
    assert answer.json()["checks"]["disk"].endswith("and 1,099,511,627,776 MiB are wanted")
    assert str(root) not in answer.text
    assert served.get("/readyz").json()["details"] == {"disk": str(root)}


def test_a_held_lock(site: Maker, root: Path, monkeypatch: pytest.MonkeyPatch):
    """A process that is stopped with the lock of the catalog keeps all others from making topics."""
    monkeypatch.setattr(health, "_LOCKS_S", 0.01)
    served = site()
    with held_elsewhere(root / CATALOG_LOCK):
        answer = served.get("/readyz", None)
    assert answer.status_code == 503
    assert answer.json()["checks"] == OK | {
        "locks": "catalog.lock held for more than 0.01 s by another process"
    }
    assert served.get("/readyz", None).status_code == 200


def test_damage(site: Maker):
    """Of which something is lost; what was derived again is no reason."""
    served = site()
    served.served._damaged.append(Damage("t/7.idx", 7, reason="checksum", kind=INDEX))
    assert served.get("/readyz", None).status_code == 200
    served.served._damaged.append(Damage("t/7.log", 7, 3, 3, 4096, 4192, "checksum", HOLE))
    answer = served.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["damage"].startswith("1 damaged place, ")
    assert answer.json()["details"]["damage"].startswith("t/7.log: hole, entries 3 to 3")


def test_a_store_that_cannot_be_used(site: Maker):
    """It is not ready, and the process is healthy."""
    served = site()
    served.served.close()
    answer = served.get("/readyz", None)
    assert (answer.status_code, answer.json()["checks"]) == (
        503,
        {"store": "it cannot be used (AlreadyClosed)"},
    )
    assert served.get("/healthz", None).status_code == 200


def test_metrics(site: Maker, root: Path):
    """What a scrape gets, with the token only."""
    with Client(root) as client:
        client.create_producer("orders").send(b"tea")
        served = site(metrics_topics=0)
        assert served.get("/metrics", None).status_code == 401
        answer = served.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'pulsar_broker_topics_count{cluster="embeddedpulsar"} 1.0' in answer.text
    assert "orders" not in answer.text


def test_a_server_that_stops(site: Maker):
    """It is not ready, and answers without an end are ended."""
    served = site().served

    async def wait() -> tuple[bool, bool]:
        before = await served.stopped(0.0)
        asyncio.get_running_loop().call_soon(served.stop)
        return before, await served.stopped(3600.0)

    assert asyncio.run(wait()) == (False, True)
    assert served.is_stopping


def test_whose_client_is_closed(site: Maker, root: Path):
    """At the end of the application its own one; a user's one goes on."""

    async def live(app: Site) -> None:
        async with app.app.router.lifespan_context(app.app):
            assert not app.served.is_stopping

    own = site()
    asyncio.run(live(own))
    assert own.served.is_stopping
    with pytest.raises(AlreadyClosed):
        own.served.client.get_topic_partitions("orders")
    with pytest.raises(AlreadyClosed):
        own.served.admin.tenants().get_tenants()
    with Client(root) as client:
        users = site(client, token=TOKEN)
        asyncio.run(live(users))
        with pytest.raises(AlreadyClosed):
            users.served.admin.tenants().get_tenants()
        assert client.get_topic_partitions("orders") == ["persistent://public/default/orders"]


def test_how_the_store_is_opened(site: Maker, root: Path):
    """Read-only unless changes are allowed; that of a client as the client uses it."""
    assert site().served.admin.is_read_only
    assert not site(allow_changes=True).served.admin.is_read_only
    with Client(root) as client:
        served = site(client)
        assert not served.served.admin.is_read_only
        served.served.close()
    with Client("memory://") as client, pytest.raises(ValueError, match="memory://name"):
        site(client)

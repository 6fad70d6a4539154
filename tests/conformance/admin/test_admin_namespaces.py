"""Tenants and namespaces come and go, by an `Admin`."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from embeddedpulsar import (
    Admin,
    AlreadyClosed,
    Client,
    InvalidTopicName,
    NotAllowedError,
    TopicNotFound,
)
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import in_child


def test_an_empty_namespace_is_deleted(admin, client):
    """Then no topic can be made in it; its tenant stays."""
    admin.namespaces().create_namespace("acme/sales")
    admin.namespaces().delete_namespace("acme/sales")
    assert admin.namespaces().get_namespaces("acme") == []
    assert admin.tenants().get_tenants() == ["public", "pulsar", "acme"]
    with pytest.raises(TopicNotFound, match="no namespace acme/sales"):
        client.create_producer("acme/sales/orders")
    with pytest.raises(TopicNotFound, match="no namespace acme/sales"):
        admin.namespaces().delete_namespace("acme/sales")
    with pytest.raises(TopicNotFound, match="no namespace acme/sales"):
        admin.namespaces().get_topics("acme/sales")


def test_one_of_several_that_create_a_namespace_at_once_makes_it(admin):
    """The others get the error, whatever the order."""
    barrier = threading.Barrier(4)
    outcomes: list[tuple[int, bool]] = []

    def create() -> None:
        for number in range(20):
            barrier.wait(30)
            try:
                admin.namespaces().create_namespace(f"acme/n{number}")
            except NotAllowedError:
                outcomes.append((number, False))
            else:
                outcomes.append((number, True))

    workers = [threading.Thread(target=create) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(number for number, is_new in outcomes if is_new) == list(range(20))
    assert len(outcomes) == 80


@pytest.mark.in_memory
def test_a_namespace_with_topics_is_deleted_by_force_alone(admin, client):
    """With all its topics and their messages; attached producers and consumers get an error."""
    admin.namespaces().create_namespace("acme/sales")
    admin.namespaces().create_namespace("acme/sales-2")
    admin.topics().create_partitioned_topic("acme/sales/orders", 3)
    admin.topics().create_non_partitioned_topic("acme/sales-2/orders")
    producer = client.create_producer("acme/sales/orders")
    producer.send(b"soup")
    consumer = client.subscribe("acme/sales/bills", "sub")
    assert len(admin.namespaces().get_topics("acme/sales")) == 4
    with pytest.raises(
        NotAllowedError, match=r"acme/sales has .* topics, such as .*acme/sales/bills; delete"
    ):
        admin.namespaces().delete_namespace("acme/sales")
    assert len(admin.namespaces().get_topics("acme/sales")) == 4
    admin.namespaces().delete_namespace("acme/sales", force=True)
    with pytest.raises(TopicNotFound, match="was deleted"):
        producer.send(b"soup")
    with pytest.raises(AlreadyClosed, match="was deleted"):
        consumer.receive(1000)
    assert admin.topics().get_list("acme/sales-2") == ["persistent://acme/sales-2/orders"]
    admin.namespaces().create_namespace("acme/sales")
    assert admin.namespaces().get_topics("acme/sales") == []


def test_a_new_namespace_begins_without_policies(admin):
    """Those of an earlier one of its name are gone."""
    namespaces = admin.namespaces()
    namespaces.create_namespace("acme/sales")
    namespaces.set_retention("acme/sales", -1, -1)
    namespaces.delete_namespace("acme/sales")
    with pytest.raises(TopicNotFound):
        namespaces.get_retention("acme/sales")
    namespaces.create_namespace("acme/sales")
    assert namespaces.get_retention("acme/sales") is None


def test_tenants_come_and_go(admin):
    """With and without namespaces."""
    tenants, namespaces = admin.tenants(), admin.namespaces()
    tenants.create_tenant("globex")
    assert tenants.get_tenants() == ["public", "pulsar", "globex"]
    for name in ("globex", "public"):
        with pytest.raises(NotAllowedError, match=f"there is a tenant {name} in .* already"):
            tenants.create_tenant(name)
    for name in ("", "a/b", "a b", "ü"):
        with pytest.raises(InvalidTopicName):
            tenants.create_tenant(name)
    namespaces.create_namespace("globex/a")
    namespaces.create_namespace("globex/b")
    admin.topics().create_non_partitioned_topic("globex/b/orders")
    with pytest.raises(NotAllowedError, match="has the namespaces globex/a, globex/b; delete them, or"):
        tenants.delete_tenant("globex")
    tenants.delete_tenant("globex", force=True)
    assert tenants.get_tenants() == ["public", "pulsar"]
    assert namespaces.get_namespaces("globex") == []
    with pytest.raises(TopicNotFound, match="no tenant globex in"):
        tenants.delete_tenant("globex")


def test_what_belongs_to_the_system_stays(admin):
    """By force, too."""
    for force in (False, True):
        with pytest.raises(NotAllowedError, match="belongs to the system"):
            admin.namespaces().delete_namespace("pulsar/system", force=force)
        with pytest.raises(NotAllowedError, match="belongs to the system"):
            admin.tenants().delete_tenant("pulsar", force=force)


def test_the_built_in_namespaces_can_go(store_path):
    """For good: a store that is opened again does not have them either, until they are made."""
    with Admin(store_path) as admin, Client(store_path) as client:
        admin.tenants().delete_tenant("public", force=True)
        with pytest.raises(TopicNotFound, match=r"create_namespace\('public/default'\)"):
            client.create_producer("orders")
    with Admin(store_path) as admin:
        assert admin.tenants().get_tenants() == ["pulsar"]
        admin.namespaces().create_namespace("public/default")
        assert admin.namespaces().get_namespaces("public") == ["public/default"]
    assert_clean(store_path)


def test_other_processes_see_it(store_path, client):
    """At once, also those that have used the namespace."""
    with Admin(store_path) as admin:
        admin.namespaces().create_namespace("acme/sales")
        client.create_producer("acme/sales/orders").close()

        def delete() -> str:
            with Admin(store_path) as other:
                other.tenants().delete_tenant("acme", force=True)
                return "done"

        assert in_child(delete) == "done"
        assert admin.tenants().get_tenants() == ["public", "pulsar"]
        with pytest.raises(TopicNotFound, match="no namespace acme/sales"):
            client.create_producer("acme/sales/orders")
        with pytest.raises(TopicNotFound, match="no namespace acme/sales"):
            admin.namespaces().set_retention("acme/sales", 0, 0)


def fails(action: Callable[[], object], step: str) -> None:
    """Run ``action`` until it comes to a step, which fails as a death there would end it."""
    failpoints.set(step, "raise")
    try:
        with pytest.raises(failpoints.InjectedFailure):
            action()
    finally:
        failpoints.clear()


def test_policies_that_a_death_left_do_not_come_back(store_path):
    """The next namespace of that name begins without them."""
    with Admin(store_path) as admin:
        namespaces = admin.namespaces()
        namespaces.create_namespace("acme/sales")
        namespaces.set_retention("acme/sales", -1, -1)
        fails(lambda: namespaces.delete_namespace("acme/sales"), "namespace:deleted")
        assert namespaces.get_namespaces("acme") == []
        fails(lambda: namespaces.create_namespace("acme/sales"), "namespace:policies_removed")
        assert namespaces.get_namespaces("acme") == []
        namespaces.create_namespace("acme/sales")
        assert namespaces.get_retention("acme/sales") is None
    assert_clean(store_path)

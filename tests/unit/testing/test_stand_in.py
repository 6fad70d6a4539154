"""What stands in for `pulsar-client`, and how it is taken away again."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import types
from pathlib import Path

import pulsar as real
import pulsar.asyncio
import pulsar.tableview
import pytest

import embeddedpulsar
from embeddedpulsar.testing import patched_pulsar

MODULES = [name for name in sys.modules if name.partition(".")[0] in ("pulsar", "_pulsar")]
NOT_BUILT = {"pulsar.__about__"}


def test_every_module_of_pulsar_client_has_a_stand_in():
    """Its classes are those of this package, under the names of the module."""
    classes = {
        (module, name)
        for module in MODULES
        if not any(module == one or module.startswith(f"{one}.") for one in NOT_BUILT)
        for name, value in vars(sys.modules[module]).items()
        if inspect.isclass(value) and value.__module__ == module and not name.startswith("_")
    }
    with patched_pulsar():
        absent = {
            (module, name)
            for module, name in classes
            if not hasattr(importlib.import_module(module), name) and hasattr(embeddedpulsar, name)
        }
        assert absent == set()
        assert importlib.import_module("pulsar.tableview").TableView is embeddedpulsar.TableView
        assert importlib.import_module("pulsar.functions.function").Function is embeddedpulsar.Function
        assert importlib.util.find_spec("pulsar") is not None
        assert "Client" in dir(importlib.import_module("pulsar"))
    assert len(classes) > 50


def test_everything_is_restored_after_an_error():
    """Modules and the names of other modules are what they were, also if the test failed."""
    module = types.ModuleType("a_module_of_an_application")
    module.__dict__.update(pulsar=real, Client=real.Client, shared=real.ConsumerType)
    (was,) = [real]  # the name in this module is replaced, too
    sys.modules[module.__name__] = module
    before = dict(sys.modules)
    try:
        with contextlib.suppress(KeyError), patched_pulsar():
            assert module.pulsar is sys.modules["pulsar"] is real is not was
            assert issubclass(module.Client, embeddedpulsar.Client)
            assert module.shared is embeddedpulsar.ConsumerType
            raise KeyError
        assert module.pulsar is real is was
        assert module.Client is real.Client
        assert module.shared is real.ConsumerType
        assert {name: sys.modules[name] for name in MODULES} == {name: before[name] for name in MODULES}
    finally:
        del sys.modules[module.__name__]


def test_a_module_that_is_imported_inside_works_in_the_next_test(tmp_path: Path):
    """It keeps the stand-ins: in the next test they open the store of that test, and between tests none."""
    with patched_pulsar("memory://first"):
        import pulsar

        kept = pulsar.Client
    with pytest.raises(RuntimeError, match="patch_pulsar"):
        kept("pulsar://localhost:6650")
    with patched_pulsar("memory://second"), patched_pulsar(tmp_path / "store"):
        with kept("http://localhost:8080") as client:
            assert client.get_service_info().service_url == str(tmp_path / "store")
    kept("memory://").close()


def test_asyncio_and_lists_of_clusters(tmp_path: Path):
    """Every way to name a cluster leads to the store; what names a store is left as it is."""
    with patched_pulsar("memory://cafe"):
        import pulsar.asyncio

        info = pulsar.ServiceInfo("pulsar://a:6650")
        client = pulsar.asyncio.Client(pulsar.AutoClusterFailover(info, [info]))
        assert "memory://cafe" in repr(client)
        client.shutdown()
        with pulsar.Client(tmp_path / "own") as client:
            assert client.get_service_info().service_url == str(tmp_path / "own")

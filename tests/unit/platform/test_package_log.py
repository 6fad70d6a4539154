"""The log of the lower layers."""

from __future__ import annotations

import textwrap

from tests.children import run_python


def test_a_module_that_another_thread_is_importing_is_waited_for():
    """`info` finds ``logging`` among the modules before all of it is there."""
    code = """
        import sys, threading, types

        half = threading.Event()

        class Slow:
            def find_spec(self, name, path=None, target=None):
                if name != "logging":
                    return None
                sys.meta_path.remove(self)
                from importlib.util import find_spec
                spec = find_spec("logging")
                loader, load = spec.loader, spec.loader.exec_module

                def exec_module(module):
                    half.set()
                    asked.wait(0.2)
                    load(module)

                loader.exec_module = exec_module
                return spec

        asked = threading.Event()
        sys.meta_path.insert(0, Slow())
        importing = threading.Thread(target=lambda: __import__("logging"))
        from embeddedpulsar._engine.platform import package_log
        assert "logging" not in sys.modules
        importing.start()
        half.wait()
        assert not hasattr(sys.modules["logging"], "getLogger")
        package_log.info("%d ledgers", 3)
        importing.join()
        print("logged")
    """
    assert run_python(textwrap.dedent(code)) == "logged\n"

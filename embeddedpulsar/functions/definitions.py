"""The functions of a store: which there are, and whether they are to be run."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.store.policies.policy import TopicPolicy
from embeddedpulsar._engine.store.policies.policy_documents import PolicyDocuments
from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration, NotAllowedError, TopicNotFound
from embeddedpulsar.functions.function_config import FunctionConfig
from embeddedpulsar.functions.instance_context import Definition
from embeddedpulsar.functions.state_log import NAMESPACE

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.store import Store

_PREFIX: Final = "function."


class Definitions:
    """The definitions in the document of ``public/functions``: small, replaced as a whole, under the lock of
    the catalog. Any thread."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store: Final = store

    def all(self) -> dict[str, Definition]:
        """All functions by their full names, sorted.

        Raises:
            StorageError: the document is damaged.
        """
        store = self._store()
        found = PolicyDocuments(store.root, store.settings).of_namespace(NAMESPACE)
        names = sorted(key.removeprefix(_PREFIX) for key in found if key.startswith(_PREFIX))
        return {name: definition_of(found[f"{_PREFIX}{name}"]) for name in names}

    def get(self, full_name: str) -> Definition:
        """One function.

        Raises:
            TopicNotFound: there is none of that name. Also a builtin ``LookupError``.
        """
        found = self.all().get(full_name)
        if found is None:
            raise TopicNotFound(f"there is no function {full_name} in {self._store().root}")
        return found

    def create(self, config: FunctionConfig) -> Definition:
        """Add a function, to be run.

        Raises:
            NotAllowedError: there is one of that name.
        """
        made = Definition(config, uuid.uuid4().hex)
        self._store().topics.namespaces.create(NAMESPACE)

        def refuse_second(_: object, form: Any) -> Any:
            if config.full_name in self.all():
                raise NotAllowedError(f"there is a function {config.full_name} already; update or delete it")
            return form

        self._set(config.full_name, made, refuse_second)
        return made

    def change(self, full_name: str, change: Callable[[Definition], Definition]) -> None:
        """Replace a function by what ``change`` makes of it, which is called under the lock of the catalog.

        Raises:
            TopicNotFound: there is none of that name.
        """
        self._set(
            full_name, self.get(full_name), lambda _, form: definition_form(change(self.get(full_name)))
        )

    def remove(self, full_name: str) -> None:
        """Remove a function. Does nothing if there is none."""
        self._set(full_name, None)

    def _set(
        self,
        full_name: str,
        definition: Definition | None,
        amend: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        policy = TopicPolicy[Definition](
            f"{_PREFIX}{full_name}", _without_default, definition_form, definition_of, amend=amend
        )
        self._store().set_policy(NAMESPACE, policy, definition)


def _without_default(settings: object, own: object) -> Definition:
    raise LookupError("a function has no default")


def definition_form(definition: Definition) -> dict[str, Any]:
    """A definition as it is stored."""
    return {
        "config": definition.config.json(),
        "id": definition.id,
        "version": definition.version,
        "isRunning": definition.is_running,
        "restarts": definition.restarts,
    }


def definition_of(form: Any) -> Definition:
    """The definition of such a form.

    Raises:
        CorruptionError: it is none.
    """
    try:
        return Definition(
            FunctionConfig.from_json(form["config"]).check(),
            str(form["id"]),
            int(form["version"]),
            bool(form["isRunning"]),
            int(form["restarts"]),
        )
    except (InvalidConfiguration, KeyError, TypeError, ValueError) as e:
        raise CorruptionError(reason=f"the definition of a function that is none: {e!r}") from e

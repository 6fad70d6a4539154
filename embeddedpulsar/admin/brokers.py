"""Administration of the settings of a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from embeddedpulsar._engine.platform import interrupts
from embeddedpulsar._engine.store.policies.policy import OWNER
from embeddedpulsar._engine.store.policies.table import DYNAMIC_SETTINGS
from embeddedpulsar.admin.absent_methods import SaysWhatThereIs
from embeddedpulsar.error_text import nearest
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.settings import BrokerSettings, write_setting

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.policies.policy import TopicPolicy
    from embeddedpulsar._engine.store.store import Store


class Brokers(SaysWhatThereIs):
    """Shows the settings of a store, and changes those that may change while it is in use. `Admin.brokers`
    returns it.

    Settings are strings, as in ``broker.conf``. A dynamic setting holds in place of that of ``broker.conf``,
    in all processes, until it is deleted. Thread-safe. All methods raise `AlreadyClosed` if the Admin is
    closed, and a `StorageError` if files cannot be used.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    def get_runtime_configuration(self) -> dict[str, str]:
        """Return all settings as they hold now, by name.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.brokers().get_runtime_configuration()["maxMessageSize"]
            '5242880'
        """
        store = self._store()
        settings = store.settings
        names = [name for name in settings._fields if name != "unknown"]
        found = {name: write_setting(getattr(settings, name)) for name in names}
        return found | {name: store.policy(OWNER, one) for name, one in DYNAMIC_SETTINGS.items()}

    def get_dynamic_configuration_names(self) -> list[str]:
        """Return the names of the settings that can be changed, sorted.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     "allowAutoTopicCreation" in admin.brokers().get_dynamic_configuration_names()
            True
        """
        return sorted(DYNAMIC_SETTINGS)

    def get_all_dynamic_configurations(self) -> dict[str, str]:
        """Return the settings that were changed, by name."""
        return self._changed(self._store())

    def update_dynamic_configuration(self, name: str, value: str) -> None:
        """Change a setting, in all processes within 50 ms. The change is atomic, and lasts as other changes
        of an Admin do.

        Args:
            name: of the setting.
            value: as in ``broker.conf``.

        Raises:
            InvalidConfiguration: the setting cannot be changed in this way, or the value is none.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.brokers().update_dynamic_configuration("allowAutoTopicCreation", "false")
            ...     admin.brokers().get_all_dynamic_configurations()
            {'allowAutoTopicCreation': 'false'}
        """
        with interrupts.translated:
            self._store().set_policy(OWNER, _named(name), value)

    def delete_dynamic_configuration(self, name: str) -> None:
        """Undo `update_dynamic_configuration`: ``broker.conf`` decides again.

        Raises:
            InvalidConfiguration: the setting cannot be changed in this way.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.brokers().update_dynamic_configuration("allowAutoTopicCreation", "false")
            ...     admin.brokers().delete_dynamic_configuration("allowAutoTopicCreation")
            ...     admin.brokers().get_all_dynamic_configurations()
            {}
        """
        with interrupts.translated:
            self._store().set_policy(OWNER, _named(name), None)

    def _changed(self, store: Store) -> dict[str, str]:
        found = {name: store.own_policy(OWNER, one) for name, one in DYNAMIC_SETTINGS.items()}
        return {name: value for name, value in found.items() if value is not None}


def _named(name: str) -> TopicPolicy[str]:
    if name in DYNAMIC_SETTINGS:
        return DYNAMIC_SETTINGS[name]
    if name in BrokerSettings._field_defaults and name != "unknown":
        raise InvalidConfiguration(
            f"{name} is read from broker.conf when the store is opened, and cannot be changed while it is in "
            f"use; these can: {', '.join(DYNAMIC_SETTINGS)}"
        )
    near = nearest(str(name), DYNAMIC_SETTINGS, 0.6)
    hint = f"did you mean {near}?" if near else f"there are {', '.join(DYNAMIC_SETTINGS)}"
    raise InvalidConfiguration(f"there is no dynamic setting {name!r}; {hint}")

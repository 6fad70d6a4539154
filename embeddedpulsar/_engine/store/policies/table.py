"""The table of the policies of topics and namespaces: one row each, in two sheets by subject.

A row says what the policy is called in a document, which settings decide what holds without it, its range,
at which levels it can be set, and what its users see: the methods of `Admin`, their docstrings, and the
options of the command line. After a change of a row, ``make policies`` writes those anew. The code that
enforces a policy reads it by its row: ``_engine.store.policies.value(MAX_PRODUCERS)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from embeddedpulsar._engine.store.policies import admitting, keeping
from embeddedpulsar._engine.store.policies.policy import Setting, TopicPolicy
from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration
from embeddedpulsar.settings import BrokerSettings, read_setting, write_setting

ROWS: Final[Mapping[str, TopicPolicy[Any]]] = {
    f"{sheet.__name__}.{name}": row
    for sheet in (keeping, admitting)
    for name, row in vars(sheet).items()
    if isinstance(row, TopicPolicy) and row.calls
}
"""The policies that users set, by their names in the source."""

# -- settings that are changed while the store is in use -----------------------------------------------------

_PREFIX: Final = "dynamicConfiguration."


def _dynamic(setting: Setting) -> TopicPolicy[str]:
    name = setting.name

    def pack(value: str) -> str:
        if not isinstance(value, str):
            raise InvalidConfiguration(f"{name}: the value is a str, as in broker.conf, not {value!r}")
        return write_setting(read_setting(f"update of {name}", name, value.strip(), setting.default))

    return TopicPolicy(
        f"{_PREFIX}{name}", lambda settings, own: write_setting(getattr(settings, name)), pack, str
    )


DYNAMIC_SETTINGS: Final = {
    name: _dynamic(setting)
    for name, setting in sorted(
        {known.name: known for row in ROWS.values() for known in row.settings}.items()
    )
    if setting.is_dynamic
}
"""Those that Pulsar lets change, as policies of `OWNER`, in whose place they are stored."""


def stored_in(policies: Mapping[str, Any]) -> dict[str, Any]:
    """The dynamic settings that the policies of `OWNER` have, by their keys there."""
    return {key: value for key, value in policies.items() if key.startswith(_PREFIX)}


def applied_to(settings: BrokerSettings, stored: Mapping[str, Any]) -> BrokerSettings:
    """The settings with the stored ones in their places. Names of a later release are ignored.

    Raises:
        CorruptionError: a value is none.
    """
    values = {key.removeprefix(_PREFIX): value for key, value in stored.items()}
    try:
        values_read: dict[str, Any] = {
            name: read_setting("the store", name, str(value), BrokerSettings._field_defaults[name])
            for name, value in values.items()
            if name in DYNAMIC_SETTINGS
        }
    except InvalidConfiguration as e:
        raise CorruptionError(reason=f"a policy document with a setting that is none: {e}") from e
    return settings._replace(**values_read)

"""What a policy of topics and namespaces is, and the kinds of values that policies have.

A policy is read at the nearest level that has it: the topic, the partitioned topic of a partition, the
namespace. If none has it, its default follows from ``broker.conf``. The policies themselves are the rows of
`_engine.store.policies.policy_documents`. What a row says beyond `TopicPolicy.owners` is not used at run
time: the settings, the methods of `Admin`, the verbs of the command line and the page of policies are
written from it by ``tests/support/write_policies.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration
from embeddedpulsar.policy_values import from_fields, to_fields
from embeddedpulsar.records import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar
from embeddedpulsar.settings import BrokerSettings

if TYPE_CHECKING:
    from typing import Any, Final, TypeAlias

Value = TypeVar("Value")
Fields: TypeAlias = "dict[str, Any]"

OWNER: Final = "pulsar/system"
"""The namespace whose document has what holds for the whole store."""

BOTH: Final = ("topics", "namespaces")
TOPICS: Final = ("topics",)
NAMESPACES: Final = ("namespaces",)
"""The parts of an Admin whose methods set a policy, which are the levels that it can be set at."""

REQUIRED: Final = "required"
"""Stands for the default of an option that has to be given."""

LARGEST_LIMIT: Final = 1 << 31
LARGEST_NUMBER: Final = 1 << 62
NEVER: Final = -1


class ChangingTopic(Protocol):
    """What a policy that acts at once needs of a `Topic`."""

    @property
    def name(self) -> str:
        """The full name."""

    @property
    def had_producers(self) -> bool:
        """Whether there ever was a producer."""

    def set_deduplication(self, is_on: bool) -> None:
        """Drop duplicates from now on, or no longer."""


class Setting(NamedTuple):
    """A setting of ``broker.conf`` that a policy has its default from.

    Attributes:
        name: Pulsar's.
        default: decides the type, too.
        lowest: and ``highest``: the range of a number.
        choices: the valid words of a text; empty for any text.
        note: how the default differs from Pulsar's; a comment in `settings`.
        is_dynamic: whether it can be changed while the store is in use.
    """

    name: str
    default: bool | int | str
    lowest: int = 0
    highest: int = 0
    choices: tuple[str, ...] = ()
    note: str = ""
    is_dynamic: bool = False


class Option(NamedTuple):
    """An option of the verb that sets a policy.

    Attributes:
        names: as they are written on the command line, with blanks between them.
        help: what it means.
        kind: of its value: ``int``, ``str``, ``size`` (bytes with a unit), ``time`` (seconds), ``ticks`` or
            ``lag`` (milliseconds), ``types`` (of subscriptions), ``flag``, ``switch`` (a pair of names), or
            ``choice``.
        default: `REQUIRED` for none.
        choices: expression of the words of a ``choice``.
        parameter: its name in an expression, where it is not that of the long name.
        is_shown: whether the help shows the default.
    """

    names: str
    help: str = ""
    kind: str = "int"
    default: Any = REQUIRED
    choices: str = ""
    parameter: str = ""
    is_shown: bool = False


class Calls(NamedTuple):
    """The methods of `Admin` and the verbs of the command line that set, get and remove a policy.

    Attributes:
        levels: `BOTH`, or that of the two which has methods of this name.
        name: of the methods, without ``set_``.
        text: the object of a sentence that begins with Set, or a docstring that does; with ``error``, what is
            counted.
        example: an expression of a value.
        shown: lines of another example, in place of the one that follows from ``example``.
        error: raised when a limit is reached.
        parameter: the name of the argument for the value, and what it is.
        takes: the type of that argument, where it is not that of the policy. ``gives`` is likewise the
            type that ``get_`` returns.
        refused: the text of a ValueError for values of another type.
        raises: when `InvalidConfiguration` is raised.
        gets: the docstring of ``get_``; ``removes`` that of ``remove_``.
        reads: ``either`` if ``get_`` has ``applied``; ``own`` or ``applied`` for the value it returns.
        by_hand: whether the methods are written by hand, because they concern another policy, too.
        verb: the verbs, without ``set-``; empty if they are written by hand.
        help: what the policy is, for the command line.
        options: of ``set-``.
        given: expression of the value, made of the parameters of the options, where a type that is called
            with them, or the only one, is not it.
        form: the function of `cli.base` that makes of a value what is shown, as JSON or as text.
        text_form: likewise, of what ``form`` made, where text is to be another than that of JSON.
    """

    levels: tuple[str, ...]
    name: str
    text: str = ""
    example: str = "1000"
    shown: tuple[str, ...] = ()
    error: str = ""
    parameter: tuple[str, str] = ("value", "the value.")
    takes: str = ""
    gives: str = ""
    refused: str = ""
    raises: str = "the value makes no sense."
    gets: str = ""
    removes: str = "Unset the value, so that the inherited one applies. Does nothing if it is not set."
    reads: str = "either"
    by_hand: bool = False
    verb: str = ""
    help: str = ""
    options: tuple[Option, ...] = ()
    given: str = ""
    form: str = "json_form"
    text_form: str = ""


class TopicPolicy(NamedTuple, Generic[Value]):
    """One policy.

    Attributes:
        key: its name in the documents, Pulsar's own where Pulsar has the policy.
        default: the value where no level has one, from the settings and the documents of the topic itself;
            a namespace has none of these.
        pack: the form in a document; raises an error for a value that makes no sense.
        unpack: the value of such a form; `CorruptionError` for a form that is none.
        apply: called with each topic that was opened before and the value that holds for it after a change.
            None if topics read the policy when they need it.
        for_letters: the value for topics of letters that have none of their own, if ``broker.conf`` has
            ``letterTopicsExpire=false``: letters are not to be lost unseen. None for no such exception.
        amend: called with the session of the store and the form, under the catalog lock, before something is
            set. Returns what is stored; may refuse it. None for neither.
        owners: the key of the list of its owners, if `PolicyDocuments.note_owner` keeps one.
        resolve: called with a value that is to be set and the root of the store, without a lock. Returns the
            value that is set. None for the same.
        kind: the type of the value.
        title: what it is called in the page of policies.
        otherwise: what holds by default, likewise.
        settings: those of ``broker.conf`` that decide the default.
        calls: by level, or for both.
    """

    key: str
    default: Callable[[BrokerSettings, Sequence[Fields]], Value]
    pack: Callable[[Value], Any]
    unpack: Callable[[Any], Value]
    apply: Callable[[ChangingTopic, Value], None] | None = None
    for_letters: Value | None = None
    amend: Callable[[Any, Any], Any] | None = None
    owners: str = ""
    resolve: Callable[[Value, str], Value] | None = None
    kind: type[Any] = object
    title: str = ""
    otherwise: str = ""
    settings: tuple[Setting, ...] = ()
    calls: tuple[Calls, ...] = ()


Default = Callable[[BrokerSettings, Sequence[Fields]], Value]


def fields_policy(
    kind: type[Value],
    key: str,
    settings: tuple[Setting, ...],
    default: Default[Value] | None = None,
    **more: Any,
) -> TopicPolicy[Value]:
    """A policy whose value is a named tuple of `policy_values`.

    Args:
        kind: its type, with a method `check`.
        key: in the documents.
        settings: by default those that the fields have their values from, in order.
        default: another default.
        more: other fields of the policy.
    """
    # The fields have the order of the settings.
    names = [setting.name for setting in settings]

    def of_settings(settings: BrokerSettings, own: Sequence[Fields]) -> Value:
        return kind(*(getattr(settings, name) for name in names))

    # Packed and unpacked by fields with Pulsar's names, so documents read like Pulsar's.
    return TopicPolicy(
        key,
        default or of_settings,
        to_fields,
        lambda form: from_fields(kind, form),
        kind=kind,
        settings=settings,
        **more,
    )


def number_policy(
    key: str, check: Callable[[int], int], what: str, settings: tuple[Setting, ...] = (), **more: Any
) -> TopicPolicy[int]:
    """A policy whose value is a number.

    Args:
        key: in the documents.
        check: returns a number that is valid.
        what: it is, in the error for a document with another.
        settings: the one that has the default; none for 0.
        more: other fields of the policy.
    """
    default: Callable[[Any], int] = attrgetter(settings[0].name) if settings else lambda settings: 0
    return TopicPolicy(
        key,
        more.pop("default", lambda settings, own: default(settings)),
        check,
        reading(check, what),
        kind=int,
        settings=settings,
        **more,
    )


def limit_policy(key: str, setting: Setting, **more: Any) -> TopicPolicy[int]:
    """A policy that limits how many there may be; 0 is no limit."""
    return number_policy(key, checked_limit, "a limit", (setting,), **more)


def switch_policy(
    key: str, setting: Setting, pack: Callable[[bool], bool] | None = None, **more: Any
) -> TopicPolicy[bool]:
    """A policy that is on or off."""
    default: Callable[[Any], bool] = attrgetter(setting.name)
    return TopicPolicy(
        key,
        more.pop("default", lambda settings, own: default(settings)),
        pack or checked_flag,
        bool,
        kind=bool,
        settings=(setting,),
        **more,
    )


def reading(check: Callable[[Any], Value], what: str) -> Callable[[Any], Value]:
    """How a policy is read from a document, where a value that `check` refuses is damage."""

    def read(form: Any) -> Value:
        try:
            return check(form)
        except InvalidConfiguration as e:
            raise CorruptionError(reason=f"a policy document with {what} that is none: {form!r}") from e

    return read


def checked_flag(value: bool) -> bool:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise InvalidConfiguration(f"write True or False, not {value!r}")
    return value


def checked_limit(limit: int) -> int:
    """Refuse what is no limit."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= LARGEST_LIMIT:
        raise InvalidConfiguration(
            f"a limit is a number from 0, which means none, to {LARGEST_LIMIT}, not {limit!r}"
        )
    return limit


def checked_number(key: str, lowest: int) -> Callable[[int], int]:
    """The function that refuses what is no number from ``lowest`` on."""

    def check(number: int) -> int:
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if not is_number or not lowest <= number <= LARGEST_NUMBER:
            never = ", for never," if lowest == NEVER else ""
            raise InvalidConfiguration(f"{key} is a number from {lowest}{never} on, not {number!r}")
        return number

    return check


Limits: TypeAlias = "Callable[[Sequence[TopicPolicy[Any]]], list[Any]]"
"""Reads the values of some policies that hold for a topic."""


def limit_calls(levels: tuple[str, ...], name: str, text: str, error: str, help: str, options: str) -> Calls:
    """The calls of a limit, whose only option is a number."""
    return Calls(
        levels,
        name,
        text,
        error=error,
        parameter=(
            "most",
            f"the largest number, beyond which `{error}` is raised; 0 for no limit, whatever other levels "
            "say.",
        ),
        raises="``most`` is no number from 0 on.",
        gets=f"Return the largest number of {text} that is set for this name; None if none is set.",
        removes="Unset the limit, so that the inherited one applies. Does nothing if it is not set.",
        reads="own",
        verb=name.replace("_", "-"),
        help=help,
        options=(Option(options, "0 for no limit.", parameter="number"),),
    )

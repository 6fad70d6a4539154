"""Topic names: parsing, partitions, and the names of the directories of topics and subscriptions."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module

from embeddedpulsar.exceptions import InvalidTopicName
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any

PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"
PARTITION_SUFFIX = "-partition-"
MAX_PART_LENGTH = 255
NON_DURABLE_PREFIX = "n-"
_MOST_DIGITS = 9  # of the index of a partition
LIFE_SEPARATOR = "."
"""Separates the number of the second and later topics of one name, in the name of the directory."""

_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_REMEMBERED = 64  # attaching asks for the same names a dozen times, and a name takes 10 us

# Without patterns: `re` takes as long to load as ten small modules.
_PLAIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-=:."
_CHANGE_EVENTS = "__change_events"
_PENDING_ACK = "__transaction_pending_ack"
_IGNORABLE = (
    *((0x34F, 0x34F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2065, 0x2065)),
    *((0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0xE0000, 0xE0FFF)),
)
"""Characters that Unicode has displays ignore by default, beside those of category Cf."""
_SLUG = b" " * 48 + b"0123456789" + b" " * 39 + b"abcdefghijklmnopqrstuvwxyz" + b" " * 133
"""For each byte, itself if it may be in the readable part of the name of a directory, else a space."""


class TopicName(NamedTuple):
    """A parsed topic name. Immutable; equal names parse to equal values.

    Attributes:
        domain: ``persistent`` or ``non-persistent``.
        tenant: the tenant.
        namespace: the namespace; ``cluster/namespace`` in a legacy four-part name.
        local: the rest of the name, further slashes included.
        partition: index of the partition with this name, or -1.

    Example:
        >>> name = TopicName.parse("orders-partition-2")
        >>> name.full, name.partition, name.base
        ('persistent://public/default/orders-partition-2', 2, 'persistent://public/default/orders')
    """

    domain: str
    tenant: str
    namespace: str
    local: str
    partition: int = -1

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Parse a short name (``orders``), ``tenant/namespace/topic``, or a full name with its domain.

        Without a domain the name has one part or three. With a domain, the first two parts are tenant and
        namespace and the rest is the local name; but four or more parts are read as Pulsar's legacy form
        ``tenant/cluster/namespace/local``, as Pulsar's clients do.

        Raises:
            InvalidTopicName: the text is not a topic name. Stricter than Pulsar in one point: control
                characters, text that is not in Unicode NFC form and parts over 255 characters are refused.

        Example:
            >>> TopicName.parse("acme/sales/orders").full
            'persistent://acme/sales/orders'
            >>> TopicName.parse("a/b")
            Traceback (most recent call last):
            embeddedpulsar.exceptions.InvalidTopicName: Pulsar error: InvalidTopicName: 'a/b': ...
        """
        if not isinstance(text, str):
            raise InvalidTopicName(f"{text!r}: a topic name is a str, not {type(text).__name__}")
        name = _known.get(text)
        return _remember(text) if name is None else name

    @property
    def full(self) -> str:
        """The full name, which every method of this package returns."""
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"

    @property
    def base(self) -> str:
        """The full name without the suffix of a partition."""
        return self.full if self.partition < 0 else self.full.rpartition(PARTITION_SUFFIX)[0]

    @property
    def namespace_name(self) -> str:
        """``tenant/namespace``."""
        return f"{self.tenant}/{self.namespace}"

    @property
    def is_persistent(self) -> bool:
        """Whether the domain is ``persistent``."""
        return self.domain == PERSISTENT

    def of_partition(self, index: int) -> TopicName:
        """Return the name of partition ``index`` of this topic.

        Example:
            >>> TopicName.parse("orders").of_partition(3).local
            'orders-partition-3'
        """
        return self._replace(local=f"{self.local}{PARTITION_SUFFIX}{index}", partition=index)

    def __str__(self) -> str:
        return self.full


_known: dict[str, TopicName] = {}


def _remember(text: str) -> TopicName:
    """Parse a name, and know its full name too: what is asked for by a short name goes on by the full one."""
    name = _parsed(text)
    # Dropped as a whole: what is in use is back after a few calls, and keeping an order would cost each call.
    if len(_known) >= _REMEMBERED:
        _known.clear()
    _known[text] = _known[name.full] = name
    return name


def _parsed(text: str) -> TopicName:
    domain, separator, path = text.partition("://")
    if separator:
        # With a domain the local name may have slashes, in Pulsar's legacy form of four parts.
        parts = path.split("/", 3)
    else:
        domain, parts = PERSISTENT, text.split("/")
        if len(parts) == 1:
            parts = ["public", "default", text]
        elif len(parts) != 3:
            raise _invalid(text, "without a domain write 'topic' or 'tenant/namespace/topic'")
    if domain not in (PERSISTENT, NON_PERSISTENT):
        raise _invalid(text, f"the domain is persistent or non-persistent, not {domain!r}")
    if len(parts) < 3:
        raise _invalid(text, "after the domain write 'tenant/namespace/topic'")
    *owners, local = parts
    # Before the parts in general: what tenant and namespace may contain is stricter than the local name.
    for part in owners:
        if not part or part.strip(_PLAIN):  # what is left begins with a character that is not allowed
            raise _invalid(text, "tenant and namespace are made of A-Z a-z 0-9 _ - = : . and not empty")
    for part in parts:
        _check_part(text, part)
    return TopicName(domain, owners[0], "/".join(owners[1:]), local, partition_index(local))


def partition_index(name: str) -> int:
    """Return the partition index in a name, or -1: the number after the last ``-partition-``, if canonical.

    Example:
        >>> [partition_index(name) for name in ("t-partition-7", "t-partition-07", "t-partition--1", "t")]
        [7, -1, -1, -1]
    """
    # Canonical digits alone, so that one partition has one name: "-partition-07" is a topic of its own.
    base, separator, digits = name.rpartition(PARTITION_SUFFIX)
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
    is_canonical = is_number and (digits[0] != "0" or digits == "0")
    return int(digits) if base and separator and is_canonical else -1


def is_system_topic(full_name: str) -> bool:
    """Return whether a full name is one of Pulsar's system topics, which applications do not create.

    Example:
        >>> is_system_topic("persistent://a/b/__change_events"), is_system_topic("persistent://a/b/__mine")
        (True, False)
    """
    if "__" not in full_name and "://pulsar/system/" not in full_name:
        return False  # of a million names in a list, nearly all
    tenant, _, rest = full_name.partition("://")[2].partition("/")
    namespace, separator, local_name = rest.partition("/")
    if (tenant, namespace) == ("pulsar", "system"):
        return bool(separator)
    # Events of policies, logs of transactions, and the pending acknowledgements of a topic, which have its
    # name in front; the first and the last may be partitioned.
    return (
        local_name == _CHANGE_EVENTS
        or local_name.startswith((_CHANGE_EVENTS + PARTITION_SUFFIX, "__transaction_"))
        or local_name.endswith(_PENDING_ACK)
        or _PENDING_ACK + PARTITION_SUFFIX in local_name
    )


def check_visible(name: TopicName) -> None:
    """Refuse the name of a topic that is to be made, if a part of it cannot be seen.

    Topics that earlier releases made with such names can be used and deleted.

    Raises:
        InvalidTopicName: the local name has a mark that has no width, or changes the direction of the text.

    Example:
        >>> check_visible(TopicName.parse("orders"))
        >>> check_visible(TopicName.parse("orders" + chr(0x200b)))
        Traceback (most recent call last):
        embeddedpulsar.exceptions.InvalidTopicName: ...U+200B ZERO WIDTH SPACE...
    """
    # Of names in ASCII nothing is invisible: control characters are refused for all names.
    if name.local.isascii():
        return
    from unicodedata import category
    from unicodedata import name as name_of

    for character in name.local:
        is_mark = category(character) in ("Cf", "Zl", "Zp")
        if is_mark or any(first <= ord(character) <= last for first, last in _IGNORABLE):
            label = f"U+{ord(character):04X} {name_of(character, 'without a name')}"
            raise _invalid(name.full, f"the name has the invisible character {label}; leave it out")


def without_system_topics(full_names: list[str]) -> list[str]:
    """Return the names that are not those of system topics.

    Example:
        >>> without_system_topics(["persistent://a/b/c", "persistent://a/b/__change_events"])
        ['persistent://a/b/c']
    """
    return [name for name in full_names if not is_system_topic(name)]


def directory_name(full_name: str) -> str:
    """Return the directory of a topic: a hash of the full name, and a readable suffix.

    Names are not used as paths: they may contain slashes and any character, differ in case only, or be longer
    than a file name. The full name is stored in the directory and compared on open.

    Example:
        >>> directory_name("persistent://public/default/Orders EU")
        't-5pcpvgwarqibhgoqfc7qfm3g4u-orders-eu'
    """
    # The hash makes the directory unique; the rest of the name is for people that look into the store.
    local = full_name.partition("://")[2].split("/", 2)[-1] or full_name
    return _hashed("t", full_name, local)


def spread_directory_name(full_name: str) -> str:
    """Return the directory of a topic of a store with many: that of `directory_name`, in one of 1,024.

    Example:
        >>> spread_directory_name("persistent://public/default/Orders EU")
        '5p/t-5pcpvgwarqibhgoqfc7qfm3g4u-orders-eu'
    """
    name = directory_name(full_name)
    return f"{name[2:4]}/{name}"


def is_directory_of(directory: str, full_name: str) -> bool:
    """Whether a topic of that name may have that directory: of any life, in a store with many or few topics.

    Example:
        >>> is_directory_of("t-lqtqykzmdh4ywu3lsk2aj64nam-t.2", "persistent://public/default/t")
        True
        >>> is_directory_of("../../etc", "persistent://public/default/t")
        False
    """
    # The second and later topics of a name have a number behind the hash.
    first, separator, life = directory.partition(LIFE_SEPARATOR)
    if separator and not (life.isascii() and life.isdecimal()):
        return False
    # Compared as text with what the name gives, so no path can lead out of the store.
    name = directory_name(full_name)
    return first in (name, f"{name[2:4]}/{name}")


def subscription_directory_name(subscription_name: str, *, durable: bool = True) -> str:
    """Return the directory of a subscription within its topic's directory; see `directory_name`.

    Args:
        subscription_name: any text.
        durable: whether the subscription is durable; the directories of both kinds differ.

    Example:
        >>> subscription_directory_name("audit")
        's-xaptpicdu33wpz6jjuif6s6tci-audit'
    """
    return _hashed("s" if durable else NON_DURABLE_PREFIX[0], subscription_name, subscription_name)


def namespace_file_name(namespace: str) -> str:
    """Return the name of the file of ``tenant/namespace``; see `directory_name`.

    Example:
        >>> namespace_file_name("public/default")
        'ns-yd6trqzwleehpp46mz2t3pdieu-public-default'
    """
    return _hashed("ns", namespace, namespace)


@lru_cache(_REMEMBERED)
def _hashed(kind: str, name: str, readable: str) -> str:
    number = int.from_bytes(_sha256()(name.encode("utf-8")).digest()[:16], "big") << 2
    code = ""
    for shift in range(125, -1, -5):
        code += _BASE32[number >> shift & 31]
    words = readable.lower().encode("utf-8").translate(_SLUG).split()
    slug = b"-".join(words)[:40].rstrip(b"-").decode()
    return f"{kind}-{code}-{slug}" if slug else f"{kind}-{code}"


@lru_cache(1)
def _sha256() -> Any:
    # hashlib loads OpenSSL: 3 ms and 0.7 MB of each process, for names of some ten bytes.
    for module in ("_sha2", "_sha256"):  # CPython from 3.12 on, and before
        try:
            return import_module(module).sha256
        except ImportError:
            continue
    return import_module("hashlib").sha256


def _invalid(text: str, reason: str) -> InvalidTopicName:
    return InvalidTopicName(f"{text!r}: {reason}")


def _check_part(text: str, part: str) -> None:
    if not part or part in (".", ".."):
        raise _invalid(text, "no part may be empty, '.' or '..'")
    if len(part) > MAX_PART_LENGTH:
        raise _invalid(text[:80] + "...", f"a part has {len(part)} characters, {MAX_PART_LENGTH} are allowed")
    if part.isascii():
        if not part.isprintable():
            raise _invalid(text, "control characters are not allowed")
        return
    from unicodedata import category, is_normalized

    if any(category(character) in ("Cc", "Cs") for character in part):
        raise _invalid(text, "control characters and lone surrogates are not allowed")
    if not is_normalized("NFC", part):
        raise _invalid(text, "the name is not in Unicode NFC form; pass unicodedata.normalize('NFC', name)")

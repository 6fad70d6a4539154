"""The policies of an open topic: read once, and again after each change in the store."""

from __future__ import annotations

import array
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.control import StoreWord
from embeddedpulsar._engine.platform import threads
from embeddedpulsar._engine.store.policies.admitting import MAX_CONSUMERS, MAX_PRODUCERS
from embeddedpulsar._engine.store.policies.policy_documents import HeldPolicies, PolicyDocuments, ValueOf
from embeddedpulsar.exceptions import CorruptionError, StorageError
from embeddedpulsar.settings import BrokerSettings

NAME = "persistent://public/default/t"


class Counted(PolicyDocuments):
    """Counts how often documents are read."""

    reads = 0

    def documents(self, name: str, directory: str | None = None) -> list[dict[str, Any]]:
        self.reads += 1
        return super().documents(name, directory)


class Site:
    def __init__(self, root: Path) -> None:
        self.directory = root / "topics" / "t"
        self.directory.mkdir(parents=True)
        self.words = memoryview(array.array("Q", bytes(8 * 64)))
        self.documents = Counted(str(root), BrokerSettings(maxProducersPerTopic=7))
        self.now = 0.0
        self.held = HeldPolicies(self.documents, self.words, (NAME, str(self.directory)), lambda: self.now)

    def raise_word(self) -> None:
        self.words[StoreWord.POLICIES] += 1

    def write(self, **policies: int | None) -> None:
        self.documents.change_namespace("public/default", policies, durable=False)

    def change(self, **policies: int | None) -> None:
        self.raise_word()
        self.write(**policies)
        self.raise_word()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_value_is_read_once_until_a_policy_changes(site: Site) -> None:
    """However often a value is used, its documents are read once for each change of the word."""
    assert site.held.values((MAX_PRODUCERS, MAX_CONSUMERS)) == [7, 0]
    assert site.held.value(MAX_PRODUCERS) == 7
    assert site.documents.reads == 1
    site.change(max_producers_per_topic=2)
    assert site.held.value(MAX_PRODUCERS) == 2
    assert site.held.value(MAX_CONSUMERS) == 0
    assert site.documents.reads == 2
    site.change(max_producers_per_topic=None)
    assert site.held.value(MAX_PRODUCERS) == 7


def test_listeners_are_called_for_changes_of_this_topic_alone(site: Site) -> None:
    """A change of another namespace raises the word, but calls no listener; one of this topic does, once."""
    seen: list[int] = []

    def note() -> None:
        seen.append(site.held.value(MAX_PRODUCERS))

    site.held.listen(note)
    site.held.call_listeners()
    site.raise_word()
    site.documents.change_namespace("public/other", {"max_producers_per_topic": 9}, durable=False)
    site.raise_word()
    site.held.call_listeners()
    assert seen == []
    site.change(max_producers_per_topic=3)
    site.held.call_listeners()
    site.held.call_listeners()
    assert seen == [3]
    site.held.unlisten(note)
    site.held.unlisten(note)
    site.change(max_producers_per_topic=4)
    site.held.call_listeners()
    assert seen == [3]


def test_a_listener_that_a_signal_handler_overtakes_is_called_again(site: Site) -> None:
    """What it took before the next change, and uses after the handler has called it too, does not stay."""
    used: list[int] = []

    def follow() -> None:
        taken = site.held.value(MAX_PRODUCERS)
        if taken == 3:
            site.change(max_producers_per_topic=4)
            site.held.call_listeners()
        used.append(taken)

    site.held.listen(follow)
    assert site.held.value(MAX_PRODUCERS) == 7
    site.change(max_producers_per_topic=3)
    site.held.call_listeners()
    assert used == [4, 3, 4]


def test_a_look_waits_until_the_listeners_have_followed(site: Site) -> None:
    """Also if another thread has read the values already: its listeners may still use the old ones."""
    used: list[int] = []
    found: list[list[int]] = []
    is_following, go_on = threads.Event(), threads.Event()

    def follow() -> None:
        taken = site.held.value(MAX_PRODUCERS)
        is_following.set()
        assert go_on.wait(10)
        used.append(taken)

    def look() -> None:
        site.held.call_listeners()
        found.append(list(used))

    assert site.held.value(MAX_PRODUCERS) == 7
    site.held.listen(follow)
    site.change(max_producers_per_topic=3)
    first = threads.start_daemon(site.held.call_listeners, "following")
    assert is_following.wait(10)
    second = threads.start_daemon(look, "looking")
    second.join(0.05)
    assert found == []
    go_on.set()
    first.join(10)
    second.join(10)
    assert found == [[3]]


def test_what_is_read_during_a_change_is_read_again(site: Site) -> None:
    """A process that reads before the document is replaced does not keep the old value."""
    site.raise_word()
    assert site.held.value(MAX_PRODUCERS) == 7
    site.write(max_producers_per_topic=2)
    assert site.held.value(MAX_PRODUCERS) == 2
    site.raise_word()
    assert site.held.value(MAX_PRODUCERS) == 2
    reads = site.documents.reads
    assert site.held.value(MAX_PRODUCERS) == 2
    assert site.documents.reads == reads


def test_a_change_whose_process_died_is_seen_and_then_believed(site: Site) -> None:
    """The word stays odd: the documents are read until a second has passed, and once more."""
    site.raise_word()
    assert site.held.value(MAX_PRODUCERS) == 7
    site.write(max_producers_per_topic=2)  # and it dies
    assert site.held.value(MAX_PRODUCERS) == 2
    site.now = 1.5
    assert site.held.value(MAX_PRODUCERS) == 2
    reads = site.documents.reads
    assert site.held.value(MAX_PRODUCERS) == 2
    assert site.documents.reads == reads
    site.words[StoreWord.POLICIES] |= 1  # the next change
    site.write(max_producers_per_topic=3)
    site.raise_word()
    assert site.held.value(MAX_PRODUCERS) == 3


def test_a_damaged_document_is_raised_by_a_value_and_not_by_a_look(site: Site) -> None:
    """An append only looks, and goes on; the caller that needs a value gets the error."""
    site.held.listen(int)
    Path(filenames.policies_path(str(site.directory))).write_bytes(b"no document")
    site.raise_word()
    site.raise_word()
    site.held.call_listeners()
    with pytest.raises(StorageError):
        site.held.value(MAX_PRODUCERS)


def test_a_listener_that_cannot_read_its_policy_concerns_no_other(site: Site) -> None:
    """Nor the one that reads a value: an append, or a consumer."""
    seen: list[int] = []

    def fail() -> None:
        raise CorruptionError(reason="a policy that is none")

    site.held.listen(fail)
    site.held.listen(lambda: seen.append(site.held.value(MAX_PRODUCERS)))
    site.held.call_listeners()
    site.change(max_producers_per_topic=3)
    assert site.held.value(MAX_PRODUCERS) == 3
    assert seen == [3]


def test_an_append_does_not_fail_where_a_document_cannot_be_opened(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptors are left, for example; who needs a value gets the error."""
    site.held.listen(int)
    site.held.value(MAX_PRODUCERS)

    def no_descriptors(*_: object) -> list[dict[str, Any]]:
        raise OSError(24, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(site.documents, "documents", no_descriptors)
        site.raise_word()
        site.held.call_listeners()
        with pytest.raises(OSError, match="too many"):
            site.held.value(MAX_PRODUCERS)
    assert site.held.value(MAX_PRODUCERS) == 7


def test_a_question_is_asked_once_until_a_policy_changes(site: Site) -> None:
    """Of all topics that have no documents, too."""
    asked = []

    def question(value_of: ValueOf) -> int:
        asked.append(1)
        return int(value_of(MAX_PRODUCERS)) + int(value_of(MAX_CONSUMERS))

    other = HeldPolicies(site.documents, site.words, (NAME, str(site.directory)), lambda: site.now)
    assert [one.once(question) for one in (site.held, site.held, other)] == [7, 7, 7] and len(asked) == 1
    site.change(max_producers_per_topic=3)
    assert [site.held.once(question), site.held.once(question)] == [3, 3] and len(asked) == 2

"""What a survey says of a log, by its ledgers and indexes."""

from __future__ import annotations

import os

from embeddedpulsar._engine.filenames import index_path
from embeddedpulsar._engine.log.log_survey import Behind
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from tests.ledger_site import LedgerSite, send, send_batch


def one_by_one(ledger: ManagedLedger, position: Position) -> Behind:
    """`LogSurvey.behind` by the questions that ask for one figure each."""
    survey = ledger.survey()
    messages, size = ledger.messages_after(position), survey.bytes_after(position)
    return Behind(messages, size, survey.published_after(position))


def test_what_is_behind_a_position_is_found_by_one_slot(site: LedgerSite):
    """In all ledgers, at each entry, before and behind it, batches among them: as by single questions."""
    ledger = site.open(max_entries=4)
    places = [BEFORE_FIRST, Position(1 << 31, 5)]
    for number in range(11):
        site.clock.advance(0.25)
        last = send_batch(ledger, [b"x" * number, b"y"]) if number % 3 else send(ledger, b"z" * 9)
        places += [last, last.previous(), last.next(), Position(last.ledger_id, 99)]
    survey = ledger.survey()
    for place in places:
        assert survey.behind(place) == one_by_one(ledger, place), place
    assert survey.behind(BEFORE_FIRST).messages == 18 and survey.behind(last) == (0, 0, 0)


def test_a_survey_follows_the_log(site: LedgerSite):
    """What was determined holds for the state of the log at which it was: an entry and a ledger more."""
    ledger = site.open(max_entries=2)
    survey, start = ledger.survey(), BEFORE_FIRST
    assert survey.behind(start) == (0, 0, 0) and survey.ledgers() == []
    for number in range(1, 6):
        send(ledger, b"x")
        assert survey.behind(start).messages == number
        assert sum(one.entries for one in survey.ledgers()) == number
    assert survey.ledgers() is survey.ledgers()


def test_the_end_of_the_log_is_that_of_its_tail_word(site: LedgerSite):
    """Asked again and again while it moves, also into the next ledger."""
    ledger = site.open(max_entries=2)
    for _ in range(5):
        position = send(ledger, b"x")
        for _ in range(2):
            assert ledger.last_position() == position
            assert ledger.view.extent(position.ledger_id)[0] == position.entry_id


def test_figures_are_those_of_the_frames_where_the_index_is_lost(site: LedgerSite):
    """The index of a closed ledger is cut to nothing: it is derived again, and says the same."""
    ledger = site.open(max_entries=3)
    places = [send(ledger, b"x" * 50) for _ in range(5)]
    expected = [ledger.survey().behind(place) for place in places]
    ledger.close()
    os.truncate(index_path(site.directory, places[0].ledger_id), 0)
    again = site.open(max_entries=3)
    assert [again.survey().behind(place) for place in places] == expected

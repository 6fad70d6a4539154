"""A consumer whose entries come back one by one, as on Shared and Key_Shared subscriptions."""

from __future__ import annotations

import logging

import pytest

from embeddedpulsar import CumulativeAcknowledgementNotAllowedError, MessageId, MultiplierRedeliveryBackoff
from embeddedpulsar.exceptions import AlreadyClosed, InvalidConfiguration, StorageFullError
from embeddedpulsar.policies import BatchReceivePolicy
from embeddedpulsar.settings import BrokerSettings
from tests.unit.client.consumer.consumer_site import ConsumerSite, texts


@pytest.fixture
def site() -> ConsumerSite:
    return ConsumerSite()


def test_only_what_was_given_back_comes_again(site):
    """One entry of three, counted, after its delay; the others stay with the application."""
    site.publish(1, 1, 1)
    messages = site.receive()
    site.consumer.negative_acknowledge(messages[1])
    site.pass_time(0.999)
    assert site.receive() == []
    site.pass_time(0.001)
    (again,) = site.receive()
    assert (again.data(), again.redelivery_count()) == (b"1.0", 1)
    assert site.attachment.asked == [[(7, 1)]]
    assert site.woken == 1


@pytest.mark.parametrize("by_id", [False, True])
def test_the_backoff_follows_the_count_of_the_message(by_id):
    """1, 2, 4, 8 s by message; an id knows no count, so it is always the first delay."""
    site = ConsumerSite(nack_backoff=MultiplierRedeliveryBackoff(1000, 60_000, 2))
    site.publish(1)
    for count, delay_s in enumerate((1, 1, 1, 1) if by_id else (1, 2, 4, 8)):
        (message,) = site.receive()
        assert message.redelivery_count() == count
        site.consumer.negative_acknowledge(message.message_id() if by_id else message)
        site.pass_time(delay_s - 0.001)
        assert site.receive() == []
        site.pass_time(0.001)
    assert len(site.receive()) == 1


def test_what_is_acknowledged_after_a_nack_is_written_before_it_is_asked_for(site):
    """So the subscription knows that the entry is not to come again."""
    site.publish(1, 1)
    messages = site.receive()
    for message in messages:
        site.consumer.negative_acknowledge(message)
    site.pass_time(0.95)
    site.consumer.acknowledge(messages[0])
    site.pass_time(0.05)
    assert site.attachment.acknowledged == {(7, 0)}
    assert texts(site.receive()) == ["1.0"]


def test_messages_fetched_ahead_of_a_batch_that_comes_again_are_dropped(site):
    """Nothing of the old delivery is given out once the batch is under way again; other entries stay."""
    site.publish(1, 4, 1)
    messages = site.receive(3)
    assert texts(messages) == ["0.0", "1.0", "1.1"]
    site.consumer.negative_acknowledge(messages[1])
    site.pass_time(1)
    again = site.receive()
    assert texts(again) == ["2.0", "1.0", "1.1", "1.2", "1.3"]
    assert [message.redelivery_count() for message in again] == [0, 1, 1, 1, 1]


def test_an_entry_still_in_the_queue_may_be_given_back_by_its_id(site):
    """It is not delivered twice either."""
    site.publish(1, 1)
    first = site.receive(1)[0].message_id()
    site.consumer.negative_acknowledge(MessageId(-1, first.ledger_id(), 1, -1))
    site.pass_time(1)
    (again,) = site.receive()
    assert (again.data(), again.redelivery_count()) == (b"1.0", 1)


def test_ids_of_nothing_are_ignored(site):
    """Neither end of a topic is an entry."""
    for nothing in (MessageId.earliest, MessageId.latest, MessageId(-1, 7, -1, -1)):
        site.consumer.negative_acknowledge(nothing)
        site.consumer.acknowledge(nothing)
    assert site.scheduler.pending == 0


def test_nacks_leave_the_fast_path_of_acknowledgements_alone(site):
    """An acknowledged entry does not come again anyhow."""
    site.publish(1, 1)
    site.consumer.negative_acknowledge(site.receive(1)[0])
    assert site.core.acks.quick


def test_the_first_message_of_an_entry_is_told_of(site):
    """Once for each entry, when the application gets it, and not when it is fetched."""
    site.publish(1, 3, 1)
    site.receive(1)
    assert site.attachment.handed_out == [(7, 0)]
    site.receive(2)
    assert site.attachment.handed_out == [(7, 0), (7, 1)]
    site.receive()
    assert site.attachment.handed_out == [(7, 0), (7, 1), (7, 2)]


def test_an_entry_that_comes_again_is_told_of_again(site):
    """Every delivery counts."""
    site.publish(1)
    for _ in range(3):
        site.consumer.negative_acknowledge(site.receive(1)[0])
        site.pass_time(1)
    assert site.attachment.handed_out == [(7, 0)] * 3


def test_a_failure_to_tell_loses_no_message(site):
    """The message stays first in the queue."""
    site.publish(1)
    original, site.attachment.handed = site.attachment.handed, fail
    with pytest.raises(StorageFullError):
        site.consumer.receive_nowait()
    site.attachment.handed = original
    assert texts(site.receive()) == ["0.0"]


def fail(*_: object, **__: object) -> None:
    raise StorageFullError("no room")


def test_the_ack_timeout_brings_only_what_is_overdue():
    """Time runs from when the application received it; what is acknowledged or still queued is not due."""
    site = ConsumerSite(ack_timeout_ms=10_000, ack_timeout_backoff=MultiplierRedeliveryBackoff(1000, 60_000))
    site.publish(1, 2, 1, 1)
    messages = site.receive(4)
    site.consumer.acknowledge(messages[0])
    site.consumer.acknowledge(messages[1])
    site.pass_time(10.999)
    assert site.attachment.asked == []
    site.pass_time(0.001)
    assert site.attachment.asked == [[(7, 1), (7, 2)]]
    again = site.receive()
    assert texts(again) == ["3.0", "1.0", "1.1", "2.0"]
    site.pass_time(11)
    assert site.attachment.asked[1:] == [[(7, 3)]]
    site.pass_time(1)
    assert site.attachment.asked[2:] == [[(7, 1), (7, 2)]]


def test_a_nack_stops_the_ack_timeout():
    """The application said when it wants the entry."""
    site = ConsumerSite(ack_timeout_ms=10_000, nack_delay_ms=30_000)
    site.publish(2)
    site.consumer.negative_acknowledge(site.receive(1)[0])
    site.receive()
    site.pass_time(29)
    assert site.attachment.asked == []
    site.pass_time(1)
    assert site.attachment.asked == [[(7, 0)]]


def test_redelivery_of_everything_empties_the_queue(site):
    """What was fetched ahead comes again too, uncounted, and pending nacks are settled."""
    site.publish(1, 2, 1)
    messages = site.receive(2)
    site.consumer.negative_acknowledge(messages[1])
    site.consumer.acknowledge(messages[0])
    site.consumer.redeliver_unacknowledged_messages()
    again = site.receive()
    assert texts(again) == ["1.0", "1.1", "2.0"]
    assert [message.redelivery_count() for message in again] == [1, 1, 0]
    site.pass_time(5)
    assert site.attachment.asked == []


def test_who_is_not_active_redelivers_nothing(site):
    """As in Pulsar, the request of a standby is ignored."""
    site.publish(1)
    (message,) = site.receive()
    site.attachment.active = False
    site.consumer.redeliver_unacknowledged_messages()
    site.consumer.negative_acknowledge(message)
    site.pass_time(2)
    assert site.receive() == []
    assert site.attachment.asked == []


@pytest.mark.parametrize("by_id", [False, True])
def test_cumulative_acknowledgement_is_refused(site, by_id):
    """Others get messages in between."""
    site.publish(1)
    (message,) = site.receive()
    with pytest.raises(CumulativeAcknowledgementNotAllowedError, match="one by one"):
        site.consumer.acknowledge_cumulative(message.message_id() if by_id else message)


def test_only_unacknowledged_indexes_come_again():
    """With acknowledgement of batch indexes."""
    site = ConsumerSite(batch_index_ack=True)
    site.publish(4)
    messages = site.receive()
    for index in (0, 2):
        site.consumer.acknowledge(messages[index])
    site.consumer.negative_acknowledge(messages[1])
    site.pass_time(1)
    again = site.receive()
    assert texts(again) == ["0.1", "0.3"]
    for message in again:
        site.consumer.acknowledge(message)
    site.pass_time(1)
    assert site.attachment.acknowledged == {(7, 0)}


@pytest.mark.parametrize("options", [{}, {"batch_index_ack": True}])
def test_the_whole_batch_comes_again(options):
    """Without it, and where broker.conf has switched it off; earlier acknowledgements of it do not count."""
    off = BrokerSettings.parse("acknowledgmentAtBatchIndexLevelEnabled=false")
    off.check_supported()
    site = ConsumerSite(settings=off if options else None, **options)
    site.publish(3)
    messages = site.receive()
    site.consumer.acknowledge(messages[0])
    site.consumer.negative_acknowledge(messages[1])
    site.pass_time(1)
    again = site.receive()
    assert texts(again) == ["0.0", "0.1", "0.2"]
    for message in again[1:]:
        site.consumer.acknowledge(message)
    site.pass_time(1)
    assert site.attachment.acknowledged == set()
    site.consumer.acknowledge(again[0])
    site.pass_time(1)
    assert site.attachment.acknowledged == {(7, 0)}


def test_indexes_acknowledged_but_not_written_count_for_a_batch_that_comes_again():
    """Between the request and the new delivery an acknowledgement of the old one still counts."""
    site = ConsumerSite(batch_index_ack=True, ack_group_time_ms=60_000)
    site.publish(3)
    messages = site.receive()
    site.consumer.negative_acknowledge(messages[0])
    site.pass_time(1)
    site.consumer.acknowledge(messages[2].message_id())
    again = site.receive()
    for message in again[:2]:
        site.consumer.acknowledge(message)
    assert site.core.acks.done == [(7, 0)]


def test_with_receipts_an_acknowledgement_is_written_when_it_returns():
    """Neither the timer nor the number matters."""
    site = ConsumerSite(ack_receipt=True)
    site.publish(1, 2)
    messages = site.receive()
    site.consumer.acknowledge(messages[0])
    assert site.attachment.acknowledged == {(7, 0)}
    site.consumer.acknowledge(messages[1])
    assert site.attachment.commits == 1
    site.consumer.acknowledge(messages[2])
    assert site.attachment.acknowledged == {(7, 0), (7, 1)}
    assert site.attachment.commits == 2


def test_a_receipt_that_fails_is_raised():
    """The caller learns that it is not written; it is kept, and tried again after a second."""
    site = ConsumerSite(ack_receipt=True)
    site.publish(1)
    messages = site.receive()
    original, site.attachment.acknowledge = site.attachment.acknowledge, fail
    with pytest.raises(StorageFullError, match="no room"):
        site.consumer.acknowledge(messages[0])
    site.attachment.acknowledge = original
    site.pass_time(1)
    assert site.attachment.acknowledged == {(7, 0)}


def test_closing_writes_what_was_acknowledged(site):
    """And nothing comes due any more."""
    site.publish(1, 1)
    messages = site.receive()
    site.consumer.acknowledge(messages[0])
    site.consumer.negative_acknowledge(messages[1])
    site.consumer.close()
    assert site.attachment.acknowledged == {(7, 0)}
    site.pass_time(5)
    assert site.attachment.asked == []
    with pytest.raises(AlreadyClosed):
        site.consumer.receive()
    assert site.scheduler.pending == 0


def test_what_comes_due_on_a_lost_consumer_is_let_go(site):
    """Another process detached it: its entries went to others, and nothing is tried for ever."""
    site.publish(1)
    site.consumer.negative_acknowledge(site.receive()[0])

    def lost(entries: object) -> bool:
        raise AlreadyClosed("detached")

    site.attachment.redeliver_entries = lost
    site.pass_time(1)
    assert site.scheduler.pending == 0


def test_a_batch_put_back_by_batch_receive_is_not_told_of_twice(site):
    """What does not fit stays first, and its entry is told of once."""
    site.publish(1, 1)
    message = site.receive(1)[0]
    site.core.put_back(message)
    assert texts(site.receive()) == ["0.0", "1.0"]
    assert site.attachment.handed_out == [(7, 0), (7, 1)]


def test_statistics_are_logged_at_the_interval(caplog):
    """What was received and acknowledged since the last line, and in all; nothing where nothing happened."""
    site = ConsumerSite(stats_interval_s=60)
    site.publish(1, 3, 1)
    with caplog.at_level(logging.INFO, "embeddedpulsar"):
        site.pass_time(60)
        assert caplog.messages == []
        messages = site.receive(3)
        site.consumer.acknowledge(messages[0])
        site.pass_time(60)
        assert caplog.messages[-1] == (
            "Consumer c of s on persistent://public/default/t, in 60 s: received 3 messages, 9 bytes; sent 1 "
            "acknowledgements. In all: 3 messages, 9 bytes; 1 acknowledgements"
        )
        site.pass_time(60)
        assert len(caplog.messages) == 1
        site.consumer.redeliver_unacknowledged_messages()
        site.receive()
        site.pass_time(60)
        assert "received 4 messages, 12 bytes; sent 0" in caplog.messages[-1]
        assert "In all: 7 messages, 21 bytes; 1" in caplog.messages[-1]
    site.consumer.close()
    assert site.scheduler.pending == 0


def test_no_statistics_without_an_interval():
    """stats_interval_in_seconds=0 starts no timer."""
    assert ConsumerSite().scheduler.pending == 0


def test_a_queue_of_size_0_holds_nothing_back():
    """One entry is fetched with each receive; the rest stays with the subscription."""
    site = ConsumerSite(receiver_queue_size=0)
    site.publish(1, 2, 1)
    assert site.attachment.held == []
    for entry, expected in enumerate(("0.0", "1.0")):
        assert texts(site.receive(1)) == [expected]
        assert site.attachment.held == [(7, number) for number in range(entry + 1)]
    assert texts(site.receive(1)) == ["1.1"]
    assert len(site.attachment.held) == 2
    with pytest.raises(InvalidConfiguration, match="receiver_queue_size=0"):
        site.consumer.receive(timeout_millis=100)


def test_batch_receive_keeps_what_does_not_fit():
    """The message over the limit is the first of the next batch."""
    site = ConsumerSite(batch_receive=BatchReceivePolicy(10, 7, 100))
    site.publish(1, 1, 1, 1)
    assert texts(site.consumer.batch_receive()) == ["0.0", "1.0"]
    assert texts(site.consumer.batch_receive()) == ["2.0", "3.0"]
    assert site.attachment.handed_out == [(7, 0), (7, 1), (7, 2), (7, 3)]


def test_a_paused_listener_fetches_nothing():
    """What it would get stays with the subscription, for other consumers."""
    seen: list[str] = []
    site = ConsumerSite(listener=lambda consumer, message: seen.extend(texts([message])))
    site.publish(1, 2, 1)
    target = site.core.receiver._listener
    assert target is not None
    assert target.run(2)
    site.consumer.pause_message_listener()
    held = list(site.attachment.held)
    site.publish(1)
    assert not target.run(100)
    assert (seen, site.attachment.held) == (["0.0", "1.0"], held)
    site.consumer.resume_message_listener()
    target.run(100)
    assert seen == ["0.0", "1.0", "1.1", "2.0", "3.0"]
    with pytest.raises(InvalidConfiguration):
        site.consumer.receive()

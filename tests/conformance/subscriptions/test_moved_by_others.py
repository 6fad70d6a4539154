"""What a consumer does after another one moved the subscription, whatever it does first."""

from __future__ import annotations

import pytest

from embeddedpulsar import ConsumerType, MessageId, Timeout


@pytest.mark.parametrize("kind", [ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared])
@pytest.mark.parametrize("first_call", ["receive", "redeliver"])
def test_acknowledgements_count_after_a_seek_of_another(topic, kind, first_call):
    """Not only receiving notices the seek: so does giving back, and what comes then can be acknowledged."""
    consumer = topic.consumer(consumer_type=kind, consumer_name="a")
    topic.publish(3)
    assert [consumer.receive(1000) for _ in range(3)]
    other = topic.consumer(consumer_type=kind, consumer_name="b")
    other.seek(MessageId.earliest)
    other.close()
    if first_call == "redeliver":
        consumer.redeliver_unacknowledged_messages()
    for _ in range(3):
        consumer.acknowledge(consumer.receive(1000))
    consumer.close()
    last = topic.consumer(consumer_type=kind, consumer_name="c")
    with pytest.raises(Timeout):
        last.receive(50)

"""Many processes that wait for the messages of one subscription, of which few come."""

from __future__ import annotations

from pathlib import Path

from benchmarks.herd import Herd, Member


class WaitingConsumer(Member):
    """One process with a consumer."""

    def __init__(self, place: str, kind: str) -> None:
        import embeddedpulsar as pulsar

        self._client = pulsar.Client(place)
        self._consumer = self._client.subscribe("t", "s", pulsar.ConsumerType[kind])

    def receive(self) -> bytes:
        message = self._consumer.receive()
        self._consumer.acknowledge(message)
        return message.data()


class Sender:
    """The producer."""

    def __init__(self, place: str, keys: int) -> None:
        import embeddedpulsar as pulsar

        self._keys = keys
        self._client = pulsar.Client(place)
        self._producer = self._client.create_producer("t")

    def send(self, payload: bytes, number: int) -> None:
        self._producer.send(payload, partition_key=f"key-{number % self._keys}")

    def close(self) -> None:
        self._client.close()


class EmbeddedHerd(Herd):
    """Processes of one Shared or Key_Shared subscription.

    Args:
        members: How many.
        kind: Name of the type.
        keys: How many keys the messages have: on Key_Shared all but as many processes are idle.
    """

    def __init__(self, members: int, kind: str = "Shared", keys: int = 4) -> None:
        super().__init__(members)
        self.key = f"embeddedpulsar-{kind}-{members}-{keys}"
        self.name = f"embeddedpulsar {kind}, {members} processes, {keys} keys"
        self._kind = kind
        self._keys = keys

    def open(self, place: Path) -> None:
        import embeddedpulsar as pulsar

        self.store = str(place / "store")
        # The processes are forked with all modules loaded: that takes longer than everything else here.
        client = pulsar.Client(str(place / "loaded"))
        client.subscribe("t", "s", pulsar.ConsumerType[self._kind])
        client.create_producer("t").send(b"", partition_key="k")
        client.close()

    def member(self) -> Member:
        return WaitingConsumer(self.store, self._kind)

    def sender(self) -> Sender:
        return Sender(self.store, self._keys)

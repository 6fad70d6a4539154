"""Read a topic from any place: from the start, from a message, from a point in time.

A reader needs no subscription and acknowledges nothing; where it stands is the program's own business.
"""

from __future__ import annotations

import embeddedpulsar as pulsar


def texts(reader: pulsar.Reader[str]) -> str:
    """What is left to read, in one line. Iterating over a reader ends at the end of the topic."""
    return " ".join(message.value() for message in reader)


def main() -> None:
    text = pulsar.StringSchema()
    with pulsar.Client("memory://") as client:  # a private store, gone when the client closes
        with client.create_producer("log", schema=text) as producer:
            ids = [producer.send(word) for word in ("one", "two", "three", "four")]

        with client.create_reader("log", pulsar.MessageId.earliest, schema=text) as reader:
            print("all:", texts(reader))

            reader.seek(ids[1])  # behind this message
            print("behind two:", texts(reader))

            reader.seek(0)  # the first message published at this time or later, in ms since 1970
            print("since 1970:", texts(reader))

            reader.seek(pulsar.MessageId.latest)
            print("anything new?", reader.has_message_available())

        # An id is 20 bytes or so: store it, and go on from there another day.
        stored = ids[2].serialize()
        start = pulsar.MessageId.deserialize(stored)
        with client.create_reader("log", start, schema=text, start_message_id_inclusive=True) as reader:
            print("from three:", texts(reader))


if __name__ == "__main__":
    main()

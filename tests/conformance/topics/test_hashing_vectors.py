"""Keys go to the partitions where Pulsar's clients would put them."""

from __future__ import annotations

import pytest

from embeddedpulsar import HashingScheme
from embeddedpulsar._engine.format.entry import partition_hash

BOOST, JAVA, MURMUR = HashingScheme.BoostHash, HashingScheme.JavaStringHash, HashingScheme.Murmur3_32Hash

# key: its hashes, and its partitions of 3, of 5 and of 10, by BoostHash, JavaStringHash and Murmur3_32Hash.
VECTORS = {
    "key-1": ((1703803929, 101943363, 414258592), (0, 0, 1), (4, 3, 2), (9, 3, 2)),
    "order-12345": ((446388510, 478832884, 1785094598), (0, 1, 2), (0, 4, 3), (0, 4, 8)),
    "user:42": ((531237585, 2000313485, 1202103157), (0, 2, 1), (0, 0, 2), (5, 5, 7)),
    "test-key": ((845889660, 999538340, 1201382723), (0, 2, 2), (0, 0, 3), (0, 0, 3)),
    "a": ((2135870748, 97, 1009084850), (0, 1, 2), (3, 2, 0), (8, 7, 0)),
}
HASHES_ONLY = {
    "": (2133126054, 0, 0),
    "ключ": (656046269, 33309882, 442048578),
}
# From the unit tests of Pulsar's C++ client.
UPSTREAM = [
    (MURMUR, "k1", 2110152746),
    (MURMUR, "k2", 1479966664),
    (MURMUR, "key1", 462881061),
    (MURMUR, "key2", 1936800180),
    (MURMUR, "key01", 39696932),
    (MURMUR, "key02", 751761803),
    (JAVA, "keykeykeykeykey1", 434058482),
    (JAVA, "keykeykey2", 42978643),
]


@pytest.mark.parametrize(
    ("key", "hashes"), [(key, row[0]) for key, row in VECTORS.items()] + list(HASHES_ONLY.items())
)
def test_hashes(key, hashes):
    """The 31-bit numbers of the three schemes."""
    assert tuple(partition_hash(scheme)(key) for scheme in (BOOST, JAVA, MURMUR)) == hashes


@pytest.mark.parametrize(("scheme", "key", "expected"), UPSTREAM)
def test_vectors_of_the_cpp_client(scheme, key, expected):
    """What Pulsar's own tests expect."""
    assert partition_hash(scheme)(key) == expected


@pytest.mark.parametrize("partitions", [3, 5, 10])
def test_messages_arrive_where_the_vectors_say(client, partitions):
    """``hashing_scheme`` decides; the default is JavaStringHash, as in Pulsar's Java client."""
    client._core.store.topics.create_partitioned("topic", partitions)
    column = {3: 1, 5: 2, 10: 3}[partitions]
    for number, scheme in enumerate((BOOST, JAVA, MURMUR)):
        with client.create_producer("topic", hashing_scheme=scheme) as producer:
            for key, row in VECTORS.items():
                assert producer.send(b"x", partition_key=key).partition() == row[column][number]
    with client.create_producer("topic") as producer:
        assert producer.send(b"x", partition_key="user:42").partition() == VECTORS["user:42"][column][1]

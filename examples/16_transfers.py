"""Money moves between the accounts of two topics, each transfer in one transaction: the sum never changes.

Three tellers transfer at the same time; every third transfer is given up. Meanwhile a reader adds up what
is there. It finds a transfer in one topic and in the other, or in none.
"""

from __future__ import annotations

import random
from multiprocessing import Process

import embeddedpulsar as pulsar

TRANSFERS = 200
TELLERS = 3
BANKS = ("bank-a", "bank-b")


def transfer(teller: int) -> None:
    """Move random amounts, from one bank to the other and back."""
    chance = random.Random(teller)
    with pulsar.Client("./data") as client:
        producers = [client.create_producer(bank, schema=pulsar.StringSchema()) for bank in BANKS]
        for number in range(TRANSFERS):
            amount = chance.randint(-100, 100)
            txn = client.new_transaction(timeout_ms=10_000)
            producers[0].send(f"{teller}-{number} {-amount}", txn=txn)
            producers[1].send(f"{teller}-{number} {amount}", txn=txn)
            txn.commit() if number % 3 else txn.abort()


def main() -> None:
    tellers = [Process(target=transfer, args=(number,)) for number in range(TELLERS)]
    for teller in tellers:
        teller.start()
    booked: list[dict[str, int]] = [{}, {}]
    with pulsar.Client("./data") as client:
        readers = [client.create_reader(bank, pulsar.MessageId.earliest) for bank in BANKS]
        is_last = False
        while not is_last:
            is_last = not any(teller.is_alive() for teller in tellers)
            for bank, reader in zip(booked, readers, strict=True):
                for message in reader:
                    name, amount = message.data().decode().split()
                    bank[name] = int(amount)
            # A transfer that was committed between the two topics is in one of them only as yet.
            both = booked[0].keys() & booked[1].keys()
            assert sum(booked[0][name] + booked[1][name] for name in both) == 0
    print(len(both), "transfers, in both banks:", booked[0].keys() == booked[1].keys())
    print("sum of all accounts:", sum(booked[0].values()) + sum(booked[1].values()))


if __name__ == "__main__":
    main()

"""Random programs of transactions, run with embeddedpulsar, and with the Java client of Pulsar and a broker.

    python -m tests.beside_pulsar.transaction_programs --programs 100 --seed 1
    python -m tests.beside_pulsar.transaction_programs --record tests/beside_pulsar/transaction_answers.txt

A program has three topics, and two subscriptions on each of them, with one consumer. Its first line names the
types of the subscriptions; the others are:

    begin T [short]                     a transaction, which lasts some seconds or ten minutes
    send TOPIC T|- FIRST COUNT          messages mFIRST..., as one batch if there are several
    ack SUBSCRIPTION TOPIC T|- MESSAGE  of the latest delivery of that message
    cumulative SUBSCRIPTION TOPIC T|- MESSAGE
    commit T    abort T
    expire T                            wait until its timeout has passed
    drain                               receive what comes, at consumers, and at new readers of each topic
    redeliver SUBSCRIPTION TOPIC        what is not acknowledged
    reconnect SUBSCRIPTION TOPIC        close the consumer and subscribe again
    last TOPIC                          the message that is the last one, by its id

The answer to a line is "ok" or the class of the error, in Java's name; the state of a transaction behind its
end; and of a drain the messages by consumer, in their order if the type of the subscription has one.

Needs a JDK and the jars of a broker (``benchmarks/peers/pulsar.sh``); without them only the answers that were
recorded can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from embeddedpulsar import (
    Client,
    Consumer,
    ConsumerType,
    InitialPosition,
    Message,
    MessageId,
    Producer,
    PulsarException,
    Result,
)
from embeddedpulsar.testing import ManualClock, assert_clean
from tests.support.clients import present, stored

TOPICS: Final = 3
SUBSCRIPTIONS: Final = 2
TYPES: Final = ("Exclusive", "Failover", "Shared", "Key_Shared")
IN_ORDER: Final = TYPES[:2]
SETTINGS: Final = "transactionCoordinatorEnabled=true\nacknowledgmentAtBatchIndexLevelEnabled=true\n"
JAVA: Final = Path(__file__).with_name("java")
_AT_A_TIME: Final = 12
_QUIET_MS: Final = 600

Answers = list[Any]


class _Author:
    """Writes one program. It knows roughly what each consumer has, so that most lines mean something."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._types = [self._rng.choice(TYPES) for _ in range(SUBSCRIPTIONS)]
        self.lines = [" ".join(self._types)]
        self._number = self._begun = 0
        self._open: list[str] = []
        self._ended: list[str] = []
        self._sent: list[list[tuple[str, str]]] = [[] for _ in range(TOPICS)]  # transaction and message
        self._aborted: set[str] = set()
        self._received: dict[tuple[int, int], list[str]] = {}
        self._fresh: dict[tuple[int, int], list[str]] = {}
        self._place = (0, 0)

    def write(self, steps: int) -> list[str]:
        """A program of about that many lines."""
        for topic in range(TOPICS):
            for _ in range(self._rng.randint(1, 3)):
                self._send("-", topic)
        self._drain()
        choices = {
            self._begin: 4,
            self._any_send: 9,
            self._acknowledge: 10,
            self._end: 4,
            self._drain: 3,
            self._redeliver: 1,
            self._reconnect: 1,
            self._last: 2,
        }
        if self._rng.random() < 0.1:
            self._let_expire()
        for _ in range(steps):
            self._rng.choices(list(choices), list(choices.values()))[0]()
        self._finish()
        return self.lines

    def _finish(self) -> None:
        while self._open:
            self._end()
        self._drain()
        for subscription in range(SUBSCRIPTIONS):
            for topic in range(TOPICS):
                self.lines.append(f"reconnect {subscription} {topic}")
        self._drain()
        self.lines += [f"last {topic}" for topic in range(TOPICS)]

    def _begin(self) -> None:
        if len(self._open) < 3:
            name = f"T{self._begun}"
            self._begun += 1
            self._open.append(name)
            self.lines.append(f"begin {name}")

    def _transaction(self) -> str:
        if self._ended and self._rng.random() < 0.06:
            return self._rng.choice(self._ended)
        return self._rng.choice([*self._open, *self._open, "-"])

    def _any_send(self) -> None:
        self._send(self._transaction(), self._rng.randrange(TOPICS))

    def _send(self, transaction: str, topic: int) -> None:
        count = self._rng.choice((1, 1, 1, 2, 3, 5))
        self.lines.append(f"send {topic} {transaction} {self._number} {count}")
        self._sent[topic] += [(transaction, f"m{self._number + i}") for i in range(count)]
        self._number += count

    def _acknowledge(self) -> None:
        if self._rng.random() < 0.6:  # mostly where something was done before: there are the conflicts
            self._place = self._rng.randrange(SUBSCRIPTIONS), self._rng.randrange(TOPICS)
        place = self._place
        fresh, every = self._fresh.get(place, []), self._received.get(place, [])
        if not every:
            return
        message = self._rng.choice(fresh if fresh and self._rng.random() < 0.75 else every)
        is_ordered = self._types[place[0]] in IN_ORDER
        word = "cumulative" if is_ordered and self._rng.random() < 0.4 else "ack"
        if word == "ack" and message in fresh:
            fresh.remove(message)
        self.lines.append(f"{word} {place[0]} {place[1]} {self._transaction()} {message}")

    def _end(self) -> None:
        if not self._open:
            return
        name = self._rng.choice(self._open)
        self._open.remove(name)
        self._ended.append(name)
        if self._rng.random() < 0.6:
            self.lines.append(f"commit {name}")
        else:
            self._aborted.add(name)
            self.lines.append(f"abort {name}")
        if self._rng.random() < 0.1:
            self.lines.append(f"{self._rng.choice(('commit', 'abort'))} {name}")

    def _let_expire(self) -> None:
        name = f"T{self._begun}"
        self._begun += 1
        self._open.append(name)
        self._aborted.add(name)
        self.lines.append(f"begin {name} short")
        self._send(name, self._rng.randrange(TOPICS))
        for _ in range(3):
            self._acknowledge()
        self._send(name, self._rng.randrange(TOPICS))
        self.lines.append(f"expire {name}")
        self._open.remove(name)
        self._ended.append(name)
        self._drain()
        self.lines.append(f"{self._rng.choice(('commit', 'abort'))} {name}")

    def _drain(self) -> None:
        self.lines.append("drain")
        for topic in range(TOPICS):
            visible = []
            for transaction, message in self._sent[topic]:
                if transaction in self._open:
                    break
                if transaction not in self._aborted:
                    visible.append(message)
            for subscription in range(SUBSCRIPTIONS):
                place = subscription, topic
                known = self._received.setdefault(place, [])
                self._fresh.setdefault(place, []).extend(one for one in visible if one not in known)
                known.extend(one for one in visible if one not in known)

    def _redeliver(self) -> None:
        self.lines.append(f"redeliver {self._place[0]} {self._place[1]}")
        self._drain()

    def _reconnect(self) -> None:
        self.lines.append(f"reconnect {self._place[0]} {self._place[1]}")
        self._drain()

    def _last(self) -> None:
        self.lines.append(f"last {self._rng.randrange(TOPICS)}")


def program_of(seed: int) -> list[str]:
    """The lines of the program of a seed."""
    return _Author(seed).write(random.Random(seed).randint(8, 40))


def comparable(program: Sequence[str], answers: Sequence[Any]) -> Answers:
    """Answers in which what has no order is sorted."""
    types = program[0].split()
    found: Answers = []
    for answer in answers:
        if isinstance(answer, dict):
            answer = {
                place: texts
                if place[0] == "r" or types[int(place[0])] in IN_ORDER
                else " ".join(sorted(texts.split()))
                for place, texts in answer.items()
            }
        found.append(answer)
    return found


# -- Pulsar --------------------------------------------------------------------------------------------


def is_pulsar_here() -> bool:
    """Whether there are a JDK and the jars."""
    from benchmarks.peers.pulsar_standalone import JARS

    return shutil.which("javac") is not None and any(JARS.glob("pulsar-broker-*.jar"))


def run_with_pulsar(programs: Sequence[Sequence[str]], place: Path) -> list[Answers]:
    """Start a broker in a directory, run the programs, several at a time, and stop it."""
    from benchmarks.peers.pulsar_standalone import JARS, Broker

    classes = place / "classes"
    library = f"{JARS}/*"
    subprocess.run(
        ["javac", "-nowarn", "-cp", library, "-d", str(classes), str(JAVA / "TransactionPrograms.java")],
        check=True,
        capture_output=True,
    )
    (place / "programs").write_text("\n\n".join("\n".join(program) for program in programs))
    broker = Broker(place, is_tuned=True, settings=SETTINGS)
    try:
        subprocess.run(
            [
                *("java", "-Xmx512m", "-cp", f"{classes}{os.pathsep}{library}", "TransactionPrograms"),
                *(broker.url, "program-", str(place / "programs"), str(place / "answers")),
                *(str(_AT_A_TIME), str(_QUIET_MS)),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=(place / "java.log").open("wb"),
        )
    finally:
        broker.stop()
    lines = (place / "answers").read_text().splitlines()
    return [comparable(program, json.loads(line)) for program, line in zip(programs, lines, strict=True)]


# -- embeddedpulsar ------------------------------------------------------------------------------------

_SHORT_MS: Final = 8_000
_HOUSEKEEPING_S: Final = 100
"""Whose acknowledgements ended with a timeout hears of it when the store is looked after, at the latest."""
_NAMES: Final = {
    "TransactionConflict": "TransactionConflictException",
    "InvalidTxnStatusError": "InvalidTxnStatusException",
    "TransactionTimeout": "InvalidTxnStatusException",
    "TransactionHasOperationFailed": "TransactionHasOperationFailedException",
    "TransactionNotFound": "TransactionNotFoundException",
    "NotAllowedError": "NotAllowedException",
}


class StoreRun:
    """One program in a store of its own, on a clock that stands still."""

    def __init__(self, root: Path, program: Sequence[str]) -> None:
        self._clock = ManualClock(wall_ms=1_700_000_000_000)
        self._clock.__enter__()
        self._client = Client(root)
        self._types = [ConsumerType[name.replace("_", "")] for name in program[0].split()]
        self._consumers: dict[str, Consumer] = {}
        self._received: dict[str, dict[str, Message]] = {}
        self._ids: list[dict[tuple[int, int, int], str]] = [{} for _ in range(TOPICS)]
        self._transactions: dict[str, Any] = {"-": None}
        self._producers: list[tuple[Producer, Producer]] = []
        for topic in range(TOPICS):
            for subscription in range(SUBSCRIPTIONS):
                self._subscribe(f"{subscription}/{topic}")
            single = self._client.create_producer(f"topic-{topic}", producer_name=f"single-{topic}")
            batched = self._client.create_producer(
                f"topic-{topic}",
                producer_name=f"batched-{topic}",
                batching_enabled=True,
                batching_max_publish_delay_ms=3_600_000,
            )
            self._producers.append((single, batched))

    def close(self) -> None:
        try:
            self._client.close()
        finally:
            self._clock.__exit__(None, None, None)

    def run(self, program: Sequence[str]) -> Answers:
        """The answers to the lines."""
        found = []
        for line in program[1:]:
            word, *words = line.split()
            found.append(getattr(self, f"_{word}")(*words))
        return found

    def _subscribe(self, place: str) -> None:
        subscription, topic = place.split("/")
        self._consumers[place] = self._client.subscribe(
            f"topic-{topic}",
            f"s{subscription}",
            self._types[int(subscription)],
            initial_position=InitialPosition.Earliest,
            batch_index_ack_enabled=True,
            ack_group_time_ms=0,
        )
        self._received[place] = {}

    def _begin(self, name: str, short: str = "") -> str:
        self._transactions[name] = self._client.new_transaction(timeout_ms=_SHORT_MS if short else 600_000)
        return "ok"

    def _send(self, topic: str, name: str, first: str, count: str) -> str:
        numbers = range(int(first), int(first) + int(count))
        stored: list[MessageId] = []
        failures: list[Result] = []

        def answered(result: Result, message_id: MessageId) -> None:
            if result is Result.Ok:
                stored.append(message_id)
            else:
                failures.append(result)

        def send() -> None:
            transaction = self._transactions[name]
            options = {} if transaction is None else {"txn": transaction}
            single, batched = self._producers[int(topic)]
            if len(numbers) == 1:
                stored.append(single.send(f"m{first}".encode(), **options))
                return
            for number in numbers:
                batched.send_async(f"m{number}".encode(), answered, **options)
            batched.flush()

        answer = _outcome(send)
        self._ids[int(topic)].update(
            (_key_of(message_id), f"m{number}") for number, message_id in zip(numbers, stored, strict=False)
        )
        return _NAMES.get(failures[0].name, failures[0].name) if failures else answer

    def _ack(self, subscription: str, topic: str, name: str, message: str, word: str = "acknowledge") -> str:
        place = f"{subscription}/{topic}"
        if message not in self._received[place]:
            return "absent"
        transaction = self._transactions[name]
        options = {} if transaction is None else {"txn": transaction}
        acknowledge = getattr(self._consumers[place], word)
        return _outcome(lambda: acknowledge(self._received[place][message], **options))

    def _cumulative(self, subscription: str, topic: str, name: str, message: str) -> str:
        return self._ack(subscription, topic, name, message, "acknowledge_cumulative")

    def _commit(self, name: str) -> str:
        return f"{_outcome(self._transactions[name].commit)} {self._transactions[name].state.name}"

    def _abort(self, name: str) -> str:
        return f"{_outcome(self._transactions[name].abort)} {self._transactions[name].state.name}"

    def _expire(self, name: str) -> str:
        self._clock.advance(_SHORT_MS / 1000 + _HOUSEKEEPING_S)
        return str(self._transactions[name].state.name)

    def _drain(self) -> dict[str, str]:
        found = {}
        for place, consumer in self._consumers.items():
            messages = present(consumer)
            self._received[place].update({message.data().decode(): message for message in messages})
            found[place] = " ".join(message.data().decode() for message in messages)
        for topic in range(TOPICS):
            messages = stored(self._client, f"topic-{topic}")
            found[f"r/{topic}"] = " ".join(message.data().decode() for message in messages)
        return {place: texts for place, texts in sorted(found.items()) if texts}

    def _redeliver(self, subscription: str, topic: str) -> str:
        return _outcome(self._consumers[f"{subscription}/{topic}"].redeliver_unacknowledged_messages)

    def _reconnect(self, subscription: str, topic: str) -> str:
        self._consumers[f"{subscription}/{topic}"].close()
        self._subscribe(f"{subscription}/{topic}")
        return "ok"

    def _last(self, topic: str) -> str:
        found: MessageId = self._consumers[f"0/{topic}"].get_last_message_id()
        return "none" if found.entry_id() < 0 else self._ids[int(topic)].get(_key_of(found), "other")


def _key_of(message_id: MessageId) -> tuple[int, int, int]:
    return message_id.ledger_id(), message_id.entry_id(), max(message_id.batch_index(), 0)


def _outcome(call: Any) -> str:
    try:
        call()
    except PulsarException as error:
        return _NAMES.get(type(error).__name__, type(error).__name__)
    return "ok"


def run_with_store(program: Sequence[str], root: Path) -> Answers:
    """The answers of embeddedpulsar in a new store, which is audited in the end."""
    run = StoreRun(root, program)
    try:
        answers = run.run(program)
    finally:
        run.close()
    assert_clean(root)
    return comparable(program, answers)


# -- what Pulsar answered ------------------------------------------------------------------------------

RECORDED: Final = Path(__file__).with_name("transaction_answers.txt")


def write_answers(path: Path, runs: Iterable[tuple[Sequence[str], Answers]]) -> None:
    """Write programs with their answers as text: the types, then a line and its answer."""
    texts = []
    for program, answers in runs:
        lines = [f"{line} => {json.dumps(answer)}" for line, answer in zip(program[1:], answers, strict=True)]
        texts.append("\n".join([program[0], *lines]))
    path.write_text("\n\n".join(texts) + "\n", "utf-8")


def read_answers(path: Path = RECORDED) -> list[tuple[list[str], Answers]]:
    """Programs and their answers, as they were written."""
    runs = []
    for text in path.read_text("utf-8").strip().split("\n\n"):
        types, *lines = text.split("\n")
        pairs = [line.split(" => ", 1) for line in lines]
        runs.append(([types, *(line for line, _ in pairs)], [json.loads(answer) for _, answer in pairs]))
    return runs


class _Comparison:
    """Walks through a program with both answers, and knows what differs on purpose (docs/compatibility.md):

    * Ending a transaction again as it has ended is no error, nor is aborting one whose timeout has
      passed.
    * When a transaction aborts, what it had acknowledged comes again, to a consumer of any type. Pulsar
      gives everything again that is not acknowledged, if there is one active consumer, and nothing to it
      if it had acknowledged cumulatively.
    * What is acknowledged cumulatively in an open transaction is passed over, and comes if that aborts.
      Pulsar delivers it to a consumer that begins anew.
    * What is acknowledged, or is in a transaction, does not come again. In Pulsar it may be on its way,
      and a cumulative acknowledgement in a batch forgets which messages behind it were acknowledged one
      by one.
    * Pulsar loses what an aborted transaction had acknowledged one by one if it had acknowledged
      cumulatively as well, and what it had acknowledged of a batch of which a part was acknowledged
      cumulatively without it.
    * A message of a batch cannot be acknowledged in two transactions, nor twice in one. Pulsar lets that
      pass in some cases, and then loses one of them. From there on nothing can be compared.
    """

    def __init__(self, program: Sequence[str]) -> None:
        self._types = program[0].split()
        self._pending: dict[str, dict[str, set[str]]] = {}  # by transaction and place
        self._through: dict[str, str] = {}  # place to transaction
        self._delivered: dict[str, set[str]] = {}
        self._acknowledged: dict[str, set[str]] = {}
        self._released: dict[str, set[str]] = {}
        self._ever_released: dict[str, set[str]] = {}
        self._owed: dict[str, set[str]] = {}
        self._is_over = False

    def is_alike(self, line: str, theirs: Any, ours: Any) -> bool:
        """Whether these are equal, or differ on purpose."""
        word, *words = line.split()
        if self._is_over:
            return True
        if word == "drain":
            verdicts = [
                self._drained(place, theirs.get(place, ""), ours.get(place, "")) for place in {*theirs, *ours}
            ]
            return all(verdicts)
        if word in ("ack", "cumulative"):
            self._is_over = self._note_acknowledgement(word, f"{words[0]}/{words[1]}", *words[2:], ours)
            return self._is_over or bool(theirs == ours)
        if word == "reconnect":
            self._delivered.pop(f"{words[0]}/{words[1]}", None)
        elif word in ("commit", "abort", "expire"):
            self._note_end(words[0], ours)
            if _IS_ENDED_AGAIN.get((word, ours)) == theirs or (theirs, ours) == _IS_LATE:
                return True
        return bool(theirs == ours)

    def _note_acknowledgement(self, word: str, place: str, name: str, message: str, ours: str) -> bool:
        """True if ours refuses what is pending already."""
        if ours == "ok" and name == "-":
            self._acknowledged.setdefault(place, set()).add(message)
        elif ours == "ok" and word == "ack":
            self._pending.setdefault(name, {}).setdefault(place, set()).add(message)
        elif ours == "ok":
            self._through[place] = name
        elif ours == "TransactionConflictException" and word == "ack":
            return any(message in places.get(place, ()) for places in self._pending.values())
        return False

    def _note_end(self, name: str, answer: str) -> None:
        is_committed = "COMMITTED" in answer
        for place, messages in self._pending.pop(name, {}).items():
            for kept in (self._acknowledged,) if is_committed else (self._released, self._ever_released):
                kept.setdefault(place, set()).update(messages)
        for place, owner in list(self._through.items()):
            if owner == name:
                del self._through[place]
                if not is_committed:
                    self._owed.setdefault(place, set()).update(self._delivered.get(place, ()))
                    self._ever_released.setdefault(place, set()).update(self._delivered.get(place, ()))

    def _drained(self, place: str, theirs: str, ours: str) -> bool:
        his, own = theirs.split(), ours.split()
        if place[0] == "r":
            return his == own
        delivered = self._delivered.setdefault(place, set())
        acknowledged = self._acknowledged.get(place, set())
        released = self._released.pop(place, set()) - acknowledged
        owed = self._owed.setdefault(place, set())
        repeated, more = set(his) - set(own), set(own) - set(his)
        pending = {one for places in self._pending.values() for one in places.get(place, ())}
        is_alike = len(own) == len(set(own)) and not (acknowledged | pending) & set(own)
        is_alike &= more <= owed | released | self._ever_released.get(place, set())
        if self._types[int(place[0])] in IN_ORDER:
            is_passed = place in self._through
            is_alike &= own == sorted(own, key=lambda name: int(name[1:]))
            is_alike &= repeated - acknowledged <= delivered - released or is_passed
            if is_passed:
                owed |= repeated
        else:
            is_alike &= repeated <= acknowledged | pending
        owed -= set(own)
        delivered.update(own)
        return bool(is_alike)


_IS_ENDED_AGAIN: Final = {
    (word, f"ok {state}"): f"InvalidTxnStatusException {state}"
    for word, state in (("commit", "COMMITTED"), ("abort", "ABORTED"))
}
_IS_LATE: Final = ("InvalidTxnStatusException TIME_OUT", "ok ABORTED")


def differences(program: Sequence[str], theirs: Answers, ours: Answers) -> list[str]:
    """The lines whose answers differ, but not on purpose, with both."""
    comparison = _Comparison(program)
    return [
        f"{number}: {line}\n  Pulsar         {his}\n  embeddedpulsar {own}"
        for number, (line, his, own) in enumerate(zip(program[1:], theirs, ours, strict=True), 1)
        if not comparison.is_alike(line, his, own)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run programs with both, and print where they differ; or record what Pulsar answers."""
    parser = argparse.ArgumentParser(prog="python -m tests.beside_pulsar.transaction_programs")
    parser.add_argument("--programs", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="of the first (default 1)")
    parser.add_argument("--record", type=Path, help="write the answers of Pulsar that are the same twice")
    options = parser.parse_args(arguments)
    if not is_pulsar_here():
        print("a JDK and the jars of Pulsar are needed (benchmarks/peers/pulsar.sh)", file=sys.stderr)
        return 2
    programs = [program_of(seed) for seed in range(options.seed, options.seed + options.programs)]
    with tempfile.TemporaryDirectory() as place:
        theirs = run_with_pulsar(programs, Path(place))
    if options.record is not None:
        with tempfile.TemporaryDirectory() as place:
            again = run_with_pulsar(programs, Path(place))
        runs = [
            run
            for run, other in zip(zip(programs, theirs, strict=True), again, strict=True)
            if run[1] == other
        ]
        write_answers(options.record, runs)
        print(f"{len(runs)} of {len(programs)} programs")
        return 0
    unlike = 0
    for seed, (program, answers) in enumerate(zip(programs, theirs, strict=True), options.seed):
        with tempfile.TemporaryDirectory() as place:
            found = differences(program, answers, run_with_store(program, Path(place) / "store"))
        unlike += bool(found)
        if found:
            print(f"== seed {seed}: {program[0]}", found[0], sep="\n")
    print(f"{unlike} of {len(programs)} programs differ")
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())

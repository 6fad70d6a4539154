"""The power goes at any moment; the disk kept any part of what was not flushed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.txn.transaction import Transaction
from embeddedpulsar._engine.txn.transaction_state import Outcome
from tests.support.disks.crash_image import CrashState
from tests.support.disks.fake_disk import FakeDisk
from tests.transaction_site import Process, assert_whole

NEXT_BOOT = b"C" * 16


class Moment:
    """One captured power loss: the disk, and what had been answered and tried until then."""

    def __init__(self, state: CrashState, answers: dict[int, str], tried: dict[int, str]) -> None:
        self.state = state
        self.answers = answers
        self.tried = tried


def run_script(root: Path, durability: str, every: int) -> list[Moment]:
    """Commits, aborts, prepares and their ends with compactions; captured before every n-th call."""
    moments: list[Moment] = []
    answers, tried = dict[int, str](), dict[int, str]()
    fake = FakeDisk(root)
    with disk.use(fake):

        def capture(call: str, path: str) -> None:
            if fake.count % every == 0:
                moments.append(Moment(fake.capture(), dict(answers), dict(tried)))

        fake.on_call = capture
        with Process(root, durability=durability, compact_bytes=400) as process:
            for number in range(24):
                transaction = process.begun()
                txn_id, kind = transaction.id, ("commit", "abort", "prepare", "end")[number % 4]
                tried[txn_id] = kind
                if kind == "commit":
                    transaction.commit()
                elif kind == "abort":
                    transaction.abort()
                else:
                    transaction.prepare(f"label {txn_id}")
                    answers[txn_id] = "prepare"
                    if kind == "end":
                        tried[txn_id] = "commit prepared"
                        transaction.commit()
                answers[txn_id] = kind
            fake.on_call = None
    return moments


@pytest.mark.parametrize(("durability", "every"), [("flush", 2), ("process", 2)])
def test_power_loss(tmp_path: Path, durability: str, every: int) -> None:
    """At level "flush" what was answered holds; at every level what is prepared does, and no id comes
    twice."""
    root, image = tmp_path / "root", tmp_path / "image"
    root.mkdir()
    moments = run_script(root, durability, every)
    assert len(moments) > 30
    rng = random.Random(7)
    for moment in moments:
        image.mkdir()
        moment.state.write_image(rng, str(image))
        shutil.rmtree(image / "clients", ignore_errors=True)
        with Process(image, boot=NEXT_BOOT) as after:
            log = after.log
            fresh = after.begun()
            assert fresh.id > max(moment.tried, default=0)
            waiting = {prepared.txn_id: prepared for prepared in log.prepared()}
            for txn_id, kind in moment.tried.items():
                outcome, answer = log.outcome(txn_id), moment.answers.get(txn_id)
                assert outcome in (Outcome.COMMITTED, Outcome.ABORTED, Outcome.PREPARED)
                if kind == "abort":
                    assert outcome is Outcome.ABORTED
                if durability == "flush" and answer in ("commit", "end"):
                    assert outcome is Outcome.COMMITTED
                if answer == "prepare" and kind == "prepare":
                    assert outcome is Outcome.PREPARED
                if answer in ("prepare", "end") and kind == "commit prepared":
                    assert outcome in (Outcome.COMMITTED, Outcome.PREPARED)
                if kind == "prepare" and answer is None:
                    assert outcome in (Outcome.PREPARED, Outcome.ABORTED)
                assert (outcome is Outcome.PREPARED) == (txn_id in waiting)
            fresh.commit()
            for prepared in waiting.values():
                assert prepared.label == f"label {prepared.txn_id}"
                Transaction.resume(log, prepared).abort()
            assert_whole(log)
            assert after.damage == []
        shutil.rmtree(image)

"""A store that was just made, after a power loss."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from embeddedpulsar import Client
from embeddedpulsar._engine.platform import disk
from tests.support.clients import send, stored
from tests.support.disks.fake_disk import FakeDisk


def test_a_store_keeps_its_name(tmp_path: Path):
    """With the directories above it that were made: what was flushed is found where it was."""
    above = tmp_path / "above"
    above.mkdir()
    fake = FakeDisk(above)
    with disk.use(fake), Client(above / "one" / "two" / "store", durability="flush") as client:
        send(client, "orders", b"tea")
        state = fake.capture()
    for seed in range(20):
        image = tmp_path / "image"
        image.mkdir()
        state.write_image(random.Random(seed), str(image))
        root = image / "one" / "two" / "store"
        shutil.rmtree(root / "clients", ignore_errors=True)
        with Client(root) as client:
            assert [message.data() for message in stored(client, "orders")] == [b"tea"]
        shutil.rmtree(image)

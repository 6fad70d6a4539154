"""End-to-end encryption: a shop takes orders that only the kitchen can read.

The shop has the public key, the kitchen the private one. Whoever has but the directory sees that there is
an order, and not what it says. Needs: pip install "embeddedpulsar[crypto]"
"""

from __future__ import annotations

import sys
from pathlib import Path

import embeddedpulsar as pulsar

try:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
except ImportError:
    sys.exit('this example needs: pip install "embeddedpulsar[crypto]"')

EARLIEST = pulsar.InitialPosition.Earliest


def make_keys() -> None:
    """What `openssl genrsa -out private.pem 2048` does, and `openssl rsa -pubout`."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    Path("private.pem").write_bytes(private)
    Path("public.pem").write_bytes(public)


def main() -> None:
    make_keys()
    with pulsar.Client("./data") as client:
        shop_keys = pulsar.CryptoKeyReader("public.pem", "")
        with client.create_producer("orders", encryption_key="kitchen", crypto_key_reader=shop_keys) as shop:
            shop.send(b"a birthday cake for Ada", {"wish": "a surprise"})

        consume = pulsar.ConsumerCryptoFailureAction.CONSUME
        curious = client.create_reader("orders", pulsar.MessageId.earliest, crypto_failure_action=consume)
        message = curious.read_next()
        print("the curious see", len(message.data()), "bytes, a cake among them:", b"cake" in message.data())

        kitchen_keys = pulsar.CryptoKeyReader("", "private.pem")
        with client.subscribe(
            "orders", "kitchen", initial_position=EARLIEST, crypto_key_reader=kitchen_keys
        ) as kitchen:
            message = kitchen.receive(timeout_millis=10_000)
            print("the kitchen reads:", message.data().decode(), "-", message.properties()["wish"])
            kitchen.acknowledge(message)


if __name__ == "__main__":
    main()

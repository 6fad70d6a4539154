"""Key pairs for tests of encryption, made here and now."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from embeddedpulsar import CryptoKeyReader, EncryptionKeyInfo


@cache
def key_pair(kind: str = "rsa", number: int = 0) -> tuple[bytes, bytes]:
    """A public and a private key in PEM form; the same ones for the same arguments."""
    if kind == "rsa":
        key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey = rsa.generate_private_key(65537, 2048)
    else:
        curve = {"ec": ec.SECP256R1, "secp521r1": ec.SECP521R1}[kind]
        key = ec.generate_private_key(curve())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return public, key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())


def key_files(directory: Path, kind: str = "rsa", number: int = 0) -> CryptoKeyReader:
    """A key reader over two files."""
    public, private = directory / f"{kind}-{number}.pub.pem", directory / f"{kind}-{number}.pem"
    for path, pem in zip((public, private), key_pair(kind, number), strict=True):
        path.write_bytes(pem)
    return CryptoKeyReader(str(public), str(private))


def sealing(keys: CryptoKeyReader, **options: Any) -> dict[str, Any]:
    """Options of a producer that encrypts with key ``app``."""
    return {"encryption_key": "app", "crypto_key_reader": keys, **options}


class KeyRing(CryptoKeyReader):
    """Keys by name and version, of which the newest is given to producers; notes who asked for what."""

    def __init__(self, kind: str = "ec") -> None:
        self.kind = kind
        self.version = 1
        self.asked: list[tuple[str, str, str]] = []
        self.is_broken = False

    def get_public_key(self, key_name: str, metadata: dict[str, str]) -> EncryptionKeyInfo:
        """The newest."""
        self._ask("public", key_name, str(self.version))
        return EncryptionKeyInfo(key_pair(self.kind, self.version)[0], {"version": str(self.version)})

    def get_private_key(self, key_name: str, metadata: dict[str, str]) -> EncryptionKeyInfo:
        """The one of that version."""
        self._ask("private", key_name, metadata["version"])
        return EncryptionKeyInfo(key_pair(self.kind, int(metadata["version"]))[1])

    def _ask(self, kind: str, name: str, version: str) -> None:
        self.asked.append((kind, name, version))
        if self.is_broken:
            raise OSError("the key server is down")

"""Wrapping a data key with a public key, and unwrapping it with the private one.

RSA: OAEP with SHA-1 and MGF1 over SHA-1, no label, as Pulsar's clients do (what they call
``RSA_PKCS1_OAEP_PADDING``), so each unwraps what the other wrapped.

Elliptic curves: what is stored is an ephemeral public key of the same curve (X9.62, uncompressed) and the
data key, wrapped as RFC 3394 says, under HKDF-SHA256 of the shared secret; the info is ``embeddedpulsar data
key`` and both public keys. Pulsar's Java client uses the ECIES of a library there, which is another scheme.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.exceptions import CryptoError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.padding import OAEP

_INFO: Final = b"embeddedpulsar data key"
DATA_KEY_SIZE: Final = 32


def require_cryptography() -> None:
    """Make sure that there is something to encrypt with.

    Raises:
        ImportError: the extra ``crypto`` is not installed.
    """
    try:
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise ImportError(
            'end-to-end encryption needs cryptography: pip install "embeddedpulsar[crypto]"'
        ) from error


def wrap(public_pem: bytes, data_key: bytes, name: str) -> bytes:
    """Wrap a data key for the holder of the private key.

    Args:
        public_pem: RSA or elliptic curve.
        data_key: 32 bytes.
        name: of the key, for the text of errors.

    Raises:
        CryptoError: no such public key.
    """
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key: Any = _loaded(load_pem_public_key, (public_pem,), "public", name)
    try:
        if isinstance(key, rsa.RSAPublicKey):
            return key.encrypt(data_key, _oaep())
        if isinstance(key, ec.EllipticCurvePublicKey):
            return _wrap_by_curve(key, data_key)
    except ValueError as error:
        raise CryptoError(f"the public key {name!r} does not wrap a data key: {error}") from error
    raise _unsupported("public", name, key)


def unwrap(private_pem: bytes, wrapped: bytes, name: str) -> bytes:
    """Unwrap a data key.

    Raises:
        CryptoError: no such private key, or not the one the data key was wrapped for.
    """
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.keywrap import InvalidUnwrap

    key: Any = _loaded(_private_key, (private_pem,), "private", name)
    try:
        if isinstance(key, rsa.RSAPrivateKey):
            data_key = key.decrypt(wrapped, _oaep())
        elif isinstance(key, ec.EllipticCurvePrivateKey):
            data_key = _unwrap_by_curve(key, wrapped)
        else:
            raise _unsupported("private", name, key)
    except (ValueError, InvalidUnwrap) as error:
        raise CryptoError(
            f"the private key {name!r} is not the one this message was encrypted for"
        ) from error
    if len(data_key) != DATA_KEY_SIZE:
        raise CryptoError(f"the private key {name!r} gives a data key of {len(data_key)} bytes, not 32")
    return data_key


@lru_cache(maxsize=16)
def _private_key(pem: bytes) -> Any:
    """A private key. Loading one of RSA checks its primes, which costs a hundred times what unwrapping does,
    and every producer has data keys of its own."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return load_pem_private_key(pem, None)


def _loaded(load: Any, arguments: tuple[Any, ...], kind: str, name: str) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        return load(*arguments)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CryptoError(
            f"the {kind} key {name!r} is no {kind} key in PEM form (without a password): {error}"
        ) from error


def _unsupported(kind: str, name: str, key: object) -> CryptoError:
    return CryptoError(
        f"the {kind} key {name!r} is a {type(key).__name__}; use an RSA key or one on an elliptic curve"
    )


def _oaep() -> OAEP:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    # SHA-1 as part of OAEP is sound, and what Pulsar's clients use.
    return padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)


def _wrap_by_curve(public: ec.EllipticCurvePublicKey, data_key: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.keywrap import aes_key_wrap

    own = ec.generate_private_key(public.curve)
    point = _point(own.public_key())
    secret = own.exchange(ec.ECDH(), public)
    return point + aes_key_wrap(_derived(secret, point, _point(public)), data_key)


def _unwrap_by_curve(private: ec.EllipticCurvePrivateKey, wrapped: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.keywrap import aes_key_unwrap

    own = _point(private.public_key())
    point, rest = wrapped[: len(own)], wrapped[len(own) :]
    other = ec.EllipticCurvePublicKey.from_encoded_point(private.curve, point)
    secret = private.exchange(ec.ECDH(), other)
    return aes_key_unwrap(_derived(secret, point, own), rest)


def _point(public: ec.EllipticCurvePublicKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def _derived(secret: bytes, ephemeral: bytes, recipient: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(hashes.SHA256(), 32, None, _INFO + ephemeral + recipient).derive(secret)

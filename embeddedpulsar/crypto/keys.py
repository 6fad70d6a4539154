"""Where public and private keys come from.

Wrapping a data key with a public key, and unwrapping it with the private one.

RSA: OAEP with SHA-1 and MGF1 over SHA-1, no label, as Pulsar's clients do (what they call
``RSA_PKCS1_OAEP_PADDING``), so each unwraps what the other wrapped.

Elliptic curves: what is stored is an ephemeral public key of the same curve (X9.62, uncompressed) and the
data key, wrapped as RFC 3394 says, under HKDF-SHA256 of the shared secret; the info is ``embeddedpulsar data
key`` and both public keys. Pulsar's Java client uses the ECIES of a library there, which is another scheme.
"""

from __future__ import annotations

from functools import lru_cache

from embeddedpulsar.exceptions import CryptoError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final

    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.padding import OAEP


class EncryptionKeyInfo(NamedTuple):
    """A key, and what is to be known of it.

    Attributes:
        key: in PEM form.
        metadata: of a public key, stored in the clear with every message it serves, so that the consumer's
            key reader may choose by it (a version, say).

    Example:
        >>> EncryptionKeyInfo(b"-----BEGIN PUBLIC KEY-----...", {"version": "3"}).metadata
        {'version': '3'}
    """

    key: bytes
    metadata: dict[str, str] = {}


class Encryption(NamedTuple):
    """What of a producer's options is about encryption.

    Attributes:
        names: of the public keys; none for a producer whose entries are encrypted before it gets them.
        reader: where they come from.
    """

    names: tuple[str, ...]
    reader: CryptoKeyReader


class CryptoKeyReader:
    """Key files for end-to-end encryption: one pair, whatever name a key is asked for by.

    Producers read the public key, consumers and readers the private one; give ``""`` for the one that is not
    needed. Consumers that pass encrypted messages on to a dead letter or retry topic need both. RSA keys, and
    keys on elliptic curves, in PEM form; private keys without a password. The files are read when they are
    needed, again and again, so a key may be exchanged while programs run.

    Derive from it, without calling its ``__init__``, to fetch keys from elsewhere: define `get_public_key`,
    `get_private_key` or both. They may be called by any thread, also by several at once, and should return
    soon: senders and receivers wait for them.

    Args:
        public_key_path: a PEM file.
        private_key_path: a PEM file.

    Raises:
        ValueError: an argument is not a str.

    Example:
        >>> class Keys(CryptoKeyReader):
        ...     def __init__(self, private_keys):
        ...         self.private_keys = private_keys
        ...     def get_private_key(self, key_name, metadata):
        ...         return EncryptionKeyInfo(self.private_keys[key_name, metadata["version"]])
        >>> Keys({("orders", "3"): b"PEM"}).get_private_key("orders", {"version": "3"}).key
        b'PEM'
    """

    def __init__(self, public_key_path: str, private_key_path: str) -> None:
        for name, value in (("public_key_path", public_key_path), ("private_key_path", private_key_path)):
            if not isinstance(value, str):
                raise ValueError(
                    f"Argument {name} is expected to be of type 'str' and not '{type(value).__name__}'"
                )
        self.public_key_path = public_key_path
        self.private_key_path = private_key_path

    def get_public_key(self, key_name: str, metadata: dict[str, str]) -> EncryptionKeyInfo:
        """Return the public key of that name. Called with an empty ``metadata``.

        Raises:
            CryptoError: the file cannot be read.

        Example:
            >>> with open("public.pem", "wb") as file:
            ...     written = file.write(b"-----BEGIN PUBLIC KEY-----...")
            >>> CryptoKeyReader("public.pem", "").get_public_key("orders", {}).key
            b'-----BEGIN PUBLIC KEY-----...'
        """
        return EncryptionKeyInfo(_read(self.public_key_path, "public", key_name))

    def get_private_key(self, key_name: str, metadata: dict[str, str]) -> EncryptionKeyInfo:
        """Return the private key of that name, for which the metadata of its public key came along.

        Raises:
            CryptoError: the file cannot be read.
        """
        return EncryptionKeyInfo(_read(self.private_key_path, "private", key_name))


def _read(path: str, kind: str, key_name: str) -> bytes:
    if not path:
        raise CryptoError(f"the key reader has no {kind} key for {key_name!r}; give it {kind}_key_path")
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CryptoError(f"the {kind} key {key_name!r} could not be read: {error}") from error


# Names the use of the derived key, so that the same secret gives no key for anything else (RFC 5869).
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
    # A key that is too short for the data key, for example: RSA of 512 bits.
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
    # A key of another length was not wrapped by a producer of Pulsar's format.
    if len(data_key) != DATA_KEY_SIZE:
        raise CryptoError(f"the private key {name!r} gives a data key of {len(data_key)} bytes, not 32")
    return data_key


# The PEM text is the key of the cache, so a file that is exchanged is loaded again. 16 keys are more than a
# program has at a time.
@lru_cache(maxsize=16)
def _private_key(pem: bytes) -> Any:
    """A private key. Loading one of RSA checks its primes, which costs a hundred times what unwrapping does,
    and every producer has data keys of its own."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return load_pem_private_key(pem, None)


def _loaded(load: Any, arguments: tuple[Any, ...], kind: str, name: str) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm

    # UnsupportedAlgorithm: a curve or a form that this build of the library does not have. TypeError: a
    # private key with a password.
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

    # An ephemeral key pair for this data key alone; its private half is forgotten here.
    own = ec.generate_private_key(public.curve)
    point = _point(own.public_key())
    secret = own.exchange(ec.ECDH(), public)
    return point + aes_key_wrap(_derived(secret, point, _point(public)), data_key)


def _unwrap_by_curve(private: ec.EllipticCurvePrivateKey, wrapped: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.keywrap import aes_key_unwrap

    # The length of a point depends on the curve, so the recipient's own one says where the wrapped key
    # begins.
    own = _point(private.public_key())
    point, rest = wrapped[: len(own)], wrapped[len(own) :]
    # Refuses a point that is not on the curve, which could give the private key away.
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

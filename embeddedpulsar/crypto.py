"""End-to-end encryption: a data key per producer, wrapped by public keys, opened by private ones.

Everything that needs the package ``cryptography`` (extra ``crypto``) is here, and imports it when it is first
used. docs/format/frame.md has the bytes.

Where public and private keys come from.

Wrapping a data key with a public key, and unwrapping it with the private one.

RSA: OAEP with SHA-1 and MGF1 over SHA-1, no label, as Pulsar's clients do (what they call
``RSA_PKCS1_OAEP_PADDING``), so each unwraps what the other wrapped.

Elliptic curves: what is stored is an ephemeral public key of the same curve (X9.62, uncompressed) and the
data key, wrapped as RFC 3394 says, under HKDF-SHA256 of the shared secret; the info is ``embeddedpulsar data
key`` and both public keys. Pulsar's Java client uses the ECIES of a library there, which is another scheme.

Entries encrypted with the data key of their producer, and decrypted with a private key.

Staged rows, encrypted with a key of their file that is stored nowhere.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache

from embeddedpulsar._engine.format.entry import EncodedEntry
from embeddedpulsar._engine.format.entry_decoder import ENVELOPE, TAG_SIZE, EntryView, SealedView
from embeddedpulsar._engine.format.sealed_entry import Cipher, opened_view, pack_keys, seal_entry
from embeddedpulsar._engine.platform import fork
from embeddedpulsar.encryption import EncryptedKey, EncryptionContext, EncryptionFacts
from embeddedpulsar.exceptions import CorruptionError, CryptoError, PulsarException
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


# Four hours, as Pulsar's Java client keeps a data key.
REFRESH_S: Final = 4 * 3600.0
_RETRY_S: Final = 60.0
_PREFIX_SIZE: Final = 4
_ALIGNMENT: Final = 8
# The limit that NIST SP 800-38D has for vectors made at random. Those here count, which would allow more.
_MOST_ENTRIES: Final = 1 << 32


class EntryCipher:
    """Encrypts the entries of one attachment of a producer to a topic.

    Role: makes a data key of 32 random bytes, has it wrapped by every public key, and uses it for four hours;
    then the keys are read again and the next one is made. If that fails the old one remains in use,
    ``on_stale`` is called, and after a minute it is tried again.

    Invariants: no initialization vector is used twice with one key: it is four random bytes of the key's and
    a counter of eight, of which a key sees 2^32 at most. A forked child makes a key of its own before it
    encrypts anything. Neither data keys nor private keys are ever written, logged or part of an error.

    Callers: one thread at a time (under the producer's lock).

    Args:
        topic: full name, which is authenticated with every entry.
        names: of the public keys, at least one.
        reader: where those come from.
        monotonic: the time in seconds.
        on_stale: called when the key could not be exchanged in time.

    Raises:
        ImportError: the extra ``crypto`` is not installed.
        CryptoError: a public key is not to be had.
    """

    def __init__(
        self,
        topic: str,
        names: Sequence[str],
        reader: CryptoKeyReader,
        monotonic: Callable[[], float],
        on_stale: Callable[[Exception], object],
    ) -> None:
        require_cryptography()
        self._topic = topic
        self._names = tuple(names)
        self._reader = reader
        self._monotonic = monotonic
        self._on_stale = on_stale
        self._encrypt: Cipher
        self._renew()

    def seal(self, encoded: EncodedEntry, last_sequence_id: int) -> EncodedEntry:
        """Encrypt an encoded entry, of which ``last_sequence_id`` is the highest.

        Raises:
            CryptoError: in a forked child, a public key is not to be had.
        """
        # A forked child has the key and the counter of its parent: with the next entry of each, one vector
        # would serve two texts, which reveals both. The child's first entry has a key of its own.
        if fork.GENERATION != self._generation:
            self._renew()
        elif self._monotonic() >= self._due or self._count >= _MOST_ENTRIES:
            self._exchange()
        # Four random bytes of the key and a counter of eight: 12 bytes, as AES-GCM takes them without
        # hashing.
        iv = self._prefix + self._count.to_bytes(8, "big")
        self._count += 1  # before it is used: an interrupt may waste one, never give it twice
        return seal_entry(encoded, self._topic, last_sequence_id, self._fields, iv, self._encrypt)

    @property
    def growth(self) -> int:
        """The most bytes by which encryption makes an entry larger that is no part of a chunked message."""
        # The fields and the ciphertext are each padded to the alignment of frames.
        return ENVELOPE.size + len(self._fields) + TAG_SIZE + 2 * _ALIGNMENT

    def _exchange(self) -> None:
        try:
            # A key reader may fail for a while, a key server being down. The old key is as good as before, so
            # messages go on; the application is notified, and the next try is in a minute.
            self._renew()
        except Exception as error:
            # Except where the counter is at its end: a vector that repeats would give texts away, so nothing
            # more is encrypted.
            if self._count >= _MOST_ENTRIES:
                raise
            self._due = self._monotonic() + _RETRY_S
            self._on_stale(error)

    def _renew(self) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        data_key = os.urandom(DATA_KEY_SIZE)
        # Before anything of this object changes: if a public key cannot be read, the old key stays in use as
        # a whole.
        wrapped = [self._wrapped(name, data_key) for name in self._names]
        self._fields = pack_keys(wrapped)
        cipher: Any = AESGCM(data_key)
        self._encrypt = cipher.encrypt
        self._prefix = os.urandom(_PREFIX_SIZE)
        self._count = 0
        self._generation = fork.GENERATION
        self._due = self._monotonic() + REFRESH_S

    def _wrapped(self, name: str, data_key: bytes) -> EncryptedKey:
        try:
            # The reader is the application's: what it raises has no type that a caller of `send` could
            # expect.
            key, metadata = self._reader.get_public_key(name, {})
        except PulsarException:
            raise
        except Exception as error:
            raise CryptoError(f"the key reader has no public key {name!r}: {error!r}") from error
        return EncryptedKey(name, wrap(key, data_key, name), dict(metadata))


_MOST_KEYS: Final = 256
"""Data keys that are remembered: each producer has one at a time."""


class EntryOpener:
    """Decrypts the entries of one topic.

    Role: finds a key of an entry that its reader can unwrap. Unwrapping costs a millisecond, so unwrapped
    keys are remembered. Nothing is remembered of failures: a key may appear later.

    Thread-safe: the worst two threads can do is unwrap a key twice.

    Args:
        topic: full name.
        reader: where private keys come from; None if there are none.

    Raises:
        ImportError: there is a reader, and the extra ``crypto`` is not installed.
    """

    def __init__(self, topic: str, reader: CryptoKeyReader | None) -> None:
        if reader is not None:
            require_cryptography()
        self._topic = topic
        self._reader = reader
        self._known: OrderedDict[bytes, Any] = OrderedDict()

    def open(self, sealed: SealedView) -> EntryView:
        """Decrypt an entry.

        Raises:
            CryptoError: there is no key for it, or it is not what its producer encrypted.
        """
        facts, plain = self.plain(sealed)
        try:
            view = opened_view(sealed, plain)
        except CorruptionError as error:
            raise CryptoError(f"entry {sealed.ledger_id}:{sealed.entry_id}: {error.reason}") from error
        view.encryption = EncryptionContext(facts)
        return view

    def plain(self, sealed: SealedView) -> tuple[EncryptionFacts, bytes]:
        """What stands behind the metadata of an entry; errors as in `open`."""
        # Without a reader nothing is looked up: each entry that is asked for fails alike.
        if self._reader is None:
            raise CryptoError("there is no crypto_key_reader; give one with the private key")
        from cryptography.exceptions import InvalidTag

        try:
            # Topic, flags, counts and all of the body before the ciphertext are authenticated, so an entry
            # that was changed or copied to another topic fails here.
            facts = sealed.facts(self._topic, False)
            cipher = self._cipher(facts.keys)
            return facts, cipher.decrypt(facts.param, sealed.payload, facts.associated_data)
        except InvalidTag:
            raise CryptoError(
                f"entry {sealed.ledger_id}:{sealed.entry_id} is not what its producer encrypted for "
                f"{self._topic}: it was changed, or copied from elsewhere"
            ) from None
        except CorruptionError as error:
            raise CryptoError(f"entry {sealed.ledger_id}:{sealed.entry_id}: {error.reason}") from error

    def knows(self, sealed: SealedView) -> bool:
        """Whether a data key of the entry was unwrapped: what failed nevertheless was the entry alone."""
        # A key is known by its wrapped bytes: names and metadata may be the same for many data keys.
        try:
            return any(key.value in self._known for key in sealed.keys_wrapped())
        except CorruptionError:
            # An entry whose fields cannot be read is to blame itself; no key would open it.
            return True

    def _cipher(self, keys: tuple[EncryptedKey, ...]) -> Any:
        # One data key is wrapped once for each recipient: any of them will do, one that is known already at
        # no cost.
        for key in keys:
            cipher = self._known.get(key.value)
            if cipher is not None:
                return cipher
        # The first error is shown: the keys behind it are those of other recipients, which this reader need
        # not have.
        errors = []
        for key in keys:
            try:
                return self._unwrapped(key)
            except CryptoError as error:
                errors.append(error)
        raise errors[0] if errors else CryptoError("the entry names no key")

    def _unwrapped(self, key: EncryptedKey) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        assert self._reader is not None
        try:
            # The metadata of the public key came with the message, so that the reader may choose a version.
            pem, _ = self._reader.get_private_key(key.name, dict(key.metadata))
        except CryptoError:
            raise
        except Exception as error:
            raise CryptoError(f"the key reader has no private key {key.name!r}: {error!r}") from error
        cipher = AESGCM(unwrap(pem, key.value, key.name))
        # Kept by age of unwrapping. Producers exchange their keys, so old ones are of use for old messages
        # alone.
        self._known[key.value] = cipher
        while len(self._known) > _MOST_KEYS:
            self._known.popitem(last=False)
        return cipher


_IV_SIZE: Final = 12


class RowsCipher:
    """Encrypts the records of one staged file, or decrypts them in the same order. Invariants: a key
    serves one file. Callers: one thread.

    Args:
        key: of the file; None for a new one.
    """

    def __init__(self, key: bytes | None = None) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        # A key serves one file, so a counter from 1 is a vector that never repeats.
        self.key: Final = key or os.urandom(DATA_KEY_SIZE)
        self._cipher: Final[Any] = AESGCM(self.key)
        self._count = 0

    def encrypt(self, parts: list[Any]) -> list[Any]:
        """The columns of the next record, as they are staged."""
        return [self._cipher.encrypt(self._iv(), b"".join(parts), None)]

    def decrypt(self, columns: Any) -> bytes:
        """The columns of the next record."""
        return bytes(self._cipher.decrypt(self._iv(), columns, None))

    def _iv(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(_IV_SIZE, "big")

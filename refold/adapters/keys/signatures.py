"""Signatures with the store's Ed25519 key, and their verification."""

from __future__ import annotations

import hashlib
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from refold.adapters.keys.master import decoded
from refold.domain.errors import InvalidConfiguration

SIGNING_KEY: Final = "signing key"
SIGNING_KEY_CONTEXT: Final = b"refold signing key"


class Signer:
    """Signs certificates and tree heads with an Ed25519 key (RFC 8032).

    public_key: the public half, 32 bytes.
    key_id:     the name of the key in signed statements.
    """

    def __init__(self, private: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(private)
        self.public_key = self._key.public_key().public_bytes_raw()
        self.key_id = key_id(self.public_key)

    def sign(self, message: bytes) -> bytes:
        """Return the signature of ``message``, 64 bytes."""
        return self._key.sign(message)


def key_id(public_key: bytes) -> str:
    """Return the name of a public key: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def signed_by(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the key signed exactly this message."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_pem(public_key: bytes) -> str:
    """Return the public key in the form for other tools (PEM, SubjectPublicKeyInfo)."""
    key = Ed25519PublicKey.from_public_bytes(public_key)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, form).decode()


def read_public_key(text: str) -> bytes:
    """Read a public key in PEM, base64 or hex.

    Raises InvalidConfiguration for other text.
    """
    try:
        if "BEGIN PUBLIC KEY" in text:
            key = serialization.load_pem_public_key(text.strip().encode())
            if not isinstance(key, Ed25519PublicKey):
                raise ValueError
            raw = key.public_bytes_raw()
        else:
            (raw,) = decoded(text)
        Ed25519PublicKey.from_public_bytes(raw)
    except ValueError:
        raise InvalidConfiguration(
            "this is not an Ed25519 public key: give PEM, or 32 bytes in base64 or hex"
        ) from None
    return raw

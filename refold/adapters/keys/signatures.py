"""Signatures: the store's own Ed25519 key, and checking with the public half alone."""

from __future__ import annotations

import hashlib

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from refold.adapters.keys.master import decoded
from refold.domain.errors import InvalidConfiguration

SETTING, CONTEXT = "signing key", b"refold signing key"


class Signer:
    """What signs certificates and tree heads: an Ed25519 key (RFC 8032).

    ``public_key`` is its public half, 32 bytes; ``key_id`` names it in what is signed.
    """

    def __init__(self, private: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(private)
        self.public_key = self._key.public_key().public_bytes_raw()
        self.key_id = key_id(self.public_key)

    def sign(self, message: bytes) -> bytes:
        """The signature of ``message``, 64 bytes."""
        return self._key.sign(message)


def key_id(public_key: bytes) -> str:
    """The name of a public key: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def signed_by(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the key signed exactly this message."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_pem(public_key: bytes) -> str:
    """The public key as other tools read it (PEM, SubjectPublicKeyInfo)."""
    key = Ed25519PublicKey.from_public_bytes(public_key)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, form).decode()


def read_public_key(text: str) -> bytes:
    """A public key from PEM, base64 or hex; raises InvalidConfiguration for others."""
    try:
        if "BEGIN PUBLIC KEY" in text:
            key = serialization.load_pem_public_key(text.strip().encode())
            raw = key.public_bytes_raw() if isinstance(key, Ed25519PublicKey) else b""
        else:
            (raw,) = decoded(text)
        Ed25519PublicKey.from_public_bytes(raw)
    except ValueError:
        raise InvalidConfiguration(
            "this is not an Ed25519 public key: give PEM, or 32 bytes in base64 or hex"
        ) from None
    return raw

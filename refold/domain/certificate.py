"""Certificates: signed statements of what was erased, held back, or let in again.

A statement names nobody.  Who it is about is a hash with a salt that is handed over
once and kept nowhere: whoever has the salt can show whose erasure it was.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import orjson

from refold.domain.canonical import canonical
from refold.domain.chain import length_prefixed
from refold.domain.events import JsonObject

FORMAT: Final = "refold-certificate/1"
SALT: Final = 32
_DOMAIN: Final = b"refold certificate 1\n"
_SUBJECT: Final = b"refold:subject:1"
_PARTS: Final = {"certificate", "key_id", "public_key", "signature"}


class Signed(NamedTuple):
    """A statement with the signature over it, and the key that made it, for its name.

    Who checks it must know the key from elsewhere: a forger would name another.
    """

    statement: dict[str, Any]
    key_id: str
    public_key: bytes
    signature: bytes

    def message(self) -> bytes:
        """The bytes that are signed."""
        return message(self.statement)

    def to_json(self) -> JsonObject:
        """The certificate as it is kept and handed out."""
        return {
            "certificate": self.statement,
            "key_id": self.key_id,
            "public_key": base64.b64encode(self.public_key).decode(),
            "signature": base64.b64encode(self.signature).decode(),
        }

    @classmethod
    def read(cls, text: str | bytes) -> Signed:
        """What ``to_json`` gave, whatever stands beside it; raises ValueError."""
        found: Any = orjson.loads(text)
        if not isinstance(found, dict) or not set(found) >= _PARTS:
            raise ValueError("this is no certificate of Refold")
        statement = found["certificate"]
        if not isinstance(statement, dict) or statement.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        if not all(isinstance(found[name], str) for name in _PARTS - {"certificate"}):
            raise ValueError("a part of it is not text")
        public, signature = (
            base64.b64decode(found[name], validate=True)
            for name in ("public_key", "signature")
        )
        return cls(statement, found["key_id"], public, signature)


def message(statement: JsonObject) -> bytes:
    """The bytes of a statement that are signed."""
    return _DOMAIN + canonical(statement)


def subject(salt: bytes, user_id: str, sessions: Sequence[str] | None = None) -> str:
    """The hash that stands for a user, or for these sessions of one."""
    names = [user_id, *sorted(sessions or ())]
    parts = (_SUBJECT, salt, *(name.encode() for name in names))
    return hashlib.sha256(length_prefixed(parts)).hexdigest()


def timestamp(microseconds: int) -> str:
    """A moment as certificates write it: RFC 3339, in UTC."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    return moment.isoformat().replace("+00:00", "Z")

"""Tags that stand for a value: the same for equal values of one user."""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable
from typing import Final

from refold.redaction.fold import fold
from refold.redaction.plan import Tagger
from refold.redaction.types import canonical

_NOT_DIGIT = re.compile(r"[^0-9]")
_NOT_ALNUM = re.compile(r"[\W_]")
_CHINA = re.compile(r"(?:00)?86(?=1[3-9][0-9]{9}$)")
# Types whose values are written with and without spaces, dots and dashes.
_GROUPED: Final = frozenset(
    (
        *("BANK_CARD", "IBAN", "BANK_ACCOUNT", "ROUTING_NUMBER", "ID_CARD", "HKID"),
        *("TWID", "MACAU_ID", "USCC", "STUDENT_ID", "EMPLOYEE_ID", "PASSPORT", "VIN"),
        *("DRIVER_LICENSE", "LICENSE_PLATE", "SSN", "ITIN", "EIN", "TAX_ID", "VAT"),
        *("NATIONAL_ID", "HEALTH_ID", "NIR", "NHS_NUMBER", "MAC"),
    )
)


def tag(key: bytes, type: str, value: str) -> str:  # noqa: A002 - what it is called
    """Eight characters that stand for ``value`` of that ``type`` under a user's key.

    Whoever has the key can try all telephone numbers: it is to be kept apart from the
    events, and to be destroyed with the user.
    """
    kind = canonical(type)
    message = f"{kind}\0{plain(kind, value)}".encode("utf-8", "surrogatepass")
    digest = hmac.digest(key, message, "sha256")
    return base64.b32encode(digest).decode().lower()[:8]


def plain(type: str, value: str) -> str:  # noqa: A002 - what it is called
    """``value`` however it was written, so that equal values have one tag."""
    text = fold(value).text.strip()
    if type == "PHONE":
        return _CHINA.sub("", _NOT_DIGIT.sub("", text))
    if type == "EMAIL":
        return text.replace("%40", "@").lower()
    return _NOT_ALNUM.sub("", text).upper() if type in _GROUPED else text


def tagger(user_key: bytes | Callable[[], bytes]) -> Tagger:
    """What gives each value its tag; a key that is a function is asked for once.

    It is asked when the first value is found, so that a text without any costs nothing.
    """
    held: list[bytes] = [user_key] if isinstance(user_key, bytes) else []

    def tagged(type: str, value: str) -> str:  # noqa: A002 - what it is called
        if not held and callable(user_key):
            held.append(user_key())
        return tag(held[0], type, value)

    return tagged

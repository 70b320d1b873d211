"""What is nothing but base64: a payload for programs, that no rule or reader reads."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NotBase64
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Final

# A stub and the row of a blob take some hundred bytes: below this little is won, and
# keys, certificates and tokens, which people do read in a log, are smaller.
FROM_BYTES: Final = 4096

_URI: Final = re.compile(r"data:[\w!#$%&'*+./;=^`|~\"-]{0,200};base64,", re.A | re.I)
# PEM breaks after 64 characters, mail after 76; lists of words after fewer.
_LEAST_WIDTH: Final = 60
_CHARACTERS: Final = re.compile(r"[A-Za-z0-9+/_=\r\n-]+")
_STANDARD: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_URL_SAFE: Final = re.compile(r"[A-Za-z0-9_-]+={0,2}")
# Of each kind of character the least share.  In base64 of binaries and of text about
# two fifths are capitals, two fifths small and a tenth digits; in words run together
# one in six is a capital at most, and hex has one kind of letter.
_LEAST: Final = (
    (ascii_uppercase.encode(), 0.2),
    (ascii_lowercase.encode(), 0.2),
    (digits.encode(), 0.04),
)


def start_of_payload(text: str) -> int | None:
    """Where the payload begins, if ``text`` is one from there on; None if it is not.

    A payload is base64 that decodes, of at least ``FROM_BYTES`` with what is before
    it: a ``data:`` URI's head, or nothing.  Bare, it must look encoded too, for
    letters alone decode as well.
    """
    if len(text) < FROM_BYTES:
        return None
    uri = _URI.match(text)
    start = uri.end() if uri else 0
    if not _CHARACTERS.fullmatch(text, start):
        return None
    payload = _on_one_line(text[start:])
    if not _decodes(payload):
        return None
    return start if uri or _mixed(payload.encode()) else None


def _on_one_line(text: str) -> str:
    """Without the breaks after each so many characters that mail and PEM put in."""
    lines = text.splitlines()
    if len(lines) == 1:
        return lines[0]
    width = len(lines[0]) if lines else 0
    even = {len(line) for line in lines[:-1]} == {width} and len(lines[-1]) <= width
    return "".join(lines) if even and width >= _LEAST_WIDTH else ""


def _mixed(payload: bytes) -> bool:
    return all(
        len(payload.translate(None, kind)) <= len(payload) * (1 - least)
        for kind, least in _LEAST
    )


def _decodes(payload: str) -> bool:
    """Whether it is base64, padded, or of the URL-safe kind, padded or not."""
    if _STANDARD.fullmatch(payload) and len(payload) % 4 == 0:
        alphabet = None
    elif _URL_SAFE.fullmatch(payload):
        alphabet = b"-_"
        bare = payload.rstrip("=")
        payload = bare + "=" * (-len(bare) % 4)
    else:
        return False
    try:
        b64decode(payload, altchars=alphabet, validate=True)
    except (NotBase64, ValueError):
        return False
    return True

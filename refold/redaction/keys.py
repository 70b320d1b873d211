"""Judges of keys and tokens of a known form: issued by a vendor, sent in a header."""

from __future__ import annotations

import base64
import binascii
import re

from refold.redaction.rule import Candidate
from refold.redaction.secret import ATTRIBUTE, VARIABLE, entropy, made_up

_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SCHEME = re.compile("[A-Z0-9]+(?:-[A-Z0-9]+)+")
# Keys for tests hold words like fake, and open doors all the same.
_FOR_SHOW = re.compile(r"example|x{5,}|\*{3}|\.{3}|your[-_]|placeholder")
_HEADER = re.compile(rb'"(?:alg|enc)"\s{0,8}:')
_COOKIE = re.compile(r"[\w.\-]+=([^\s;]+)")
# Words that stand in a URL of documentation for what belongs there.
_ANY_LOGIN = re.compile(
    r"(?i)(?:my|your|some|db|the)?[_-]?(?:pass(?:word|wd)?|pwd|secret|token|pw|p)"
)
_ANY_HOST = re.compile(
    r"(?i)@(?:(?:my|your|some|db|the|proxy)?[_-]?(?:host(?:name)?|server|domain|ip|address)"
    r"|\.\.\.|x+)(?![\w\-])"
)


def issued(found: Candidate) -> bool:
    """A key whose form hardly anything else has: only made-up ones are refused."""
    value = found.value
    return len(set(value[-48:])) >= 4 and not _FOR_SHOW.search(value[:256].lower())


def varied(found: Candidate) -> bool:
    """A key whose form something else might have: it must also look random."""
    value = found.value[:256]
    many = len(re.findall("[0-9]", value)) >= 2
    return entropy(value) >= 3 and (many or _jumbled(value)) and not made_up(value)


def _jumbled(value: str) -> bool:
    return len(re.findall("[A-Z]", value)) >= 3 and len(re.findall("[a-z]", value)) >= 3


def mixed(found: Candidate) -> bool:
    """A value of letters in both cases and digits in no order."""
    value = found.value[:256]
    both = re.search("[A-Z]", value) and re.search("[a-z]", value)
    digits = len(re.findall("[0-9]", value)) >= 2
    return varied(found) and entropy(value) >= 3.4 and digits and bool(both)


def azure_secret(found: Candidate) -> bool:
    return mixed(found) and not found.value.startswith("~")


def escaped(found: Candidate) -> bool:
    """A token that holds percent escapes, as no run of base64 does."""
    return "%" in found.value and varied(found)


def jwt(found: Candidate) -> bool:
    """The first part decodes to a header that names an algorithm."""
    head = found.value.partition(".")[0]
    try:
        header = base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)).strip()
    except ValueError:
        return False
    return header[:1] == b"{" and header[-1:] == b"}" and bool(_HEADER.search(header))


def encoded_key(found: Candidate) -> bool:
    """Base64 of a private key in PEM; its first line says so."""
    head = re.sub(r"\\+n", "", found.value[:128])
    plain = base64.b64decode(head[: len(head) // 4 * 4])
    return b"PRIVATE KEY" in plain


def bearer(found: Candidate) -> bool:
    value = found.value
    return bool(
        re.search("[0-9]", value)
        and not _SCHEME.fullmatch(value)
        and entropy(value) >= 3
        and not made_up(value)
        and not ATTRIBUTE.fullmatch(value)
        and "://" not in value
    )


def authorization(found: Candidate) -> bool:
    """What follows a scheme, or stands alone, in a header that authorizes."""
    return (
        len(set(re.findall("[0-9]", found.value))) >= 2
        and found.after(1) not in tuple("([")
        and bearer(found)
    )


def basic(found: Candidate) -> bool:
    """Base64 of ``user:password``."""
    try:
        plain = base64.b64decode(found.value + "=" * (-len(found.value) % 4))
    except (ValueError, binascii.Error):
        return False
    return b":" in plain and all(32 <= byte < 127 for byte in plain)


def docker_auth(found: Candidate) -> bool:
    return basic(found)


def cookie(found: Candidate) -> bool:
    """Cookies of which one holds a token."""
    return any(_token(value) for value in _COOKIE.findall(found.value[:8192]))


def _token(value: str) -> bool:
    return (
        len(value) >= 12
        and len(re.findall("[0-9]", value[:128])) >= 2
        and bool(re.search("[A-Za-z]", value[:128]))
        and entropy(value) >= 3
        and not (VARIABLE.match(value) or ATTRIBUTE.fullmatch(value) or made_up(value))
    )


def session(found: Candidate) -> bool:
    """The id of a session that opens it; a UUID in a log only names one."""
    return _token(found.value) and not _UUID.fullmatch(found.value)


def signature(found: Candidate) -> bool:
    return varied(found) and not VARIABLE.match(found.value)


def url_password(found: Candidate) -> bool:
    """The password of a URL, unless it is a variable, masked, or of documentation."""
    value = found.value
    if VARIABLE.match(value) or set(value) <= set("*xX.-_"):
        return False
    return not (_ANY_LOGIN.fullmatch(value) and _ANY_HOST.match(found.after(24)))


def url_token(found: Candidate) -> bool:
    """A token in the place of a URL's user."""
    value = found.value
    return (
        varied(found)
        and len(re.findall("[0-9]", value)) >= 2
        and bool(re.search("[A-Za-z]", value))
        and entropy(value) >= 3.3
    )


def near_vendor(found: Candidate) -> bool:
    """A long mixed value beside the name of a vendor; not a path, host or version."""
    value = found.value
    return (
        varied(found)
        and len(re.findall("[0-9]", value)) >= 3
        and not re.search(r"/[a-z]|\.[a-z]|[0-9]\.[0-9]", value)
        and not re.fullmatch(r"[a-z0-9]*[a-z]{4,}[-_][a-z0-9_\-]*", value)
    )


def told(found: Candidate) -> bool:
    """A value that a sentence says is a secret: as mixed as no word is."""
    value = found.value
    return (
        varied(found)
        and len(re.findall("[0-9]", value)) >= 3
        and bool(re.search("[A-Za-z]", value))
        and not re.search("[a-z]{6}", value)
    )

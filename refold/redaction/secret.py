"""Judges of secrets: what looks random or chosen, and is not code or a stand-in."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter
from math import log2

from refold.redaction.rule import Candidate

# As much of a long value as needs a closer look.
_ENOUGH = 128
_STAND_IN = re.compile(
    r"example|x{4,}|your[-_]|[-_]here|change[-_]?me|placeholder|dummy|\.{3}|\*{3}"
)
_VARIABLE = re.compile(
    r"\$[A-Za-z_{(]|--|\$\$|%[({A-Za-z]|[<{]|#\{|@\{|\[REDACTED|&[a-z]+;"
    r"|(?i:env|vault|secret|op|ssm|arn|file)[:!]"
)
_LITERAL = re.compile(
    r"(?i)(?:none|null|nil|true|false|undefined|nan|yes|no|on|off|string|str|bytes?"
    r"|u?int(?:eger)?(?:8|16|32|64)?|float(?:32|64)?|number|bool(?:ean)?|object|any|text"
    r"|password|passwd|required|optional|hidden|default|redacted|masked|empty|unset|n/a"
    r"|varchar|char|email|bearer|basic|unknown|missing|invalid|disabled|enabled"
    r"|utf-?8|base(?:32|64)|md5|sha-?(?:1|224|256|384|512)|hs256|rs256|bcrypt|argon2(?:id)?"
    r"|oauth2?|oidc|v[0-9]+)"
)
_WORDS = re.compile(r"[A-Za-z]+(?:[-_./:\\ ]+[A-Za-z]+)*[-_./:?!]*")
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_ATTRIBUTE = re.compile(r"[A-Za-z_$][\w$]*(?:(?:\.|->|::)[A-Za-z_$][\w$]*)+")
_NUMBERED = re.compile(r"([A-Za-z_$]+?)_?[0-9]{1,2}")
_PATH = re.compile(
    r"(?:[A-Za-z]:)?(?:\\+|/|~|\.{1,2}/)[\w.\-/\\~]*|[a-z][a-z0-9+.\-]*://.*"
)
_ROLE = re.compile(
    r"(?i)(?:pass(?:word|wd|phrase)?|pwd|token|tok|secret|key|cred|value|val|param|arg|var"
    r"|str|string|text|data|input|output|user|name|node|type|line|item|idx|index|id|num"
    r"|field|config|expected|actual|result|test|tmp|temp|buf|hash)$"
)
_COUNTED = (
    "next|prev|page|paging|continuation|cursor|sync|resume|eos|bos|pad|unk|sep|cls|mask"
    "|start|end|stop|first|last|max|min|num|per|of|special|count|cancell?ation"
)
_NO_SECRET_TOKEN = re.compile(
    rf"(?:(?<![A-Za-z])(?i:{_COUNTED})|(?<=[a-z])(?:{_COUNTED.title()}))[-_ .]?$"
)


def entropy(text: str) -> float:
    """Shannon's entropy in bits per character, of as much as tells."""
    text = text[:_ENOUGH]
    total = len(text)
    return -sum(n / total * log2(n / total) for n in Counter(text).values())


def _made_up(value: str) -> bool:
    """Whether it was written for documentation."""
    return bool(_STAND_IN.search(value[:_ENOUGH].lower()))


def random_looking(found: Candidate) -> bool:
    """What follows a vendor's prefix: varied, and not made up for documentation."""
    return entropy(found.value) >= 3 and not _made_up(found.value)


def aws_secret(found: Candidate) -> bool:
    return entropy(found.value) >= 3.5 and not _made_up(found.value)


def jwt(found: Candidate) -> bool:
    """The first part decodes to a header that names an algorithm."""
    head = found.value.partition(".")[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (ValueError, RecursionError):
        return False
    return isinstance(header, dict) and ("alg" in header or "enc" in header)


def bearer(found: Candidate) -> bool:
    value = found.value
    return bool(
        re.search("[0-9]", value)
        and not re.fullmatch("[A-Z0-9]+(?:-[A-Z0-9]+)+", value)  # a scheme
        and entropy(value) >= 3.2
        and not _made_up(value)
        and not _ATTRIBUTE.fullmatch(value)
    )


def basic(found: Candidate) -> bool:
    """Base64 of ``user:password``."""
    try:
        plain = base64.b64decode(found.value + "=" * (-len(found.value) % 4))
    except (ValueError, binascii.Error):
        return False
    return b":" in plain and all(32 <= byte < 127 for byte in plain)


def url_password(found: Candidate) -> bool:
    """The password of a URL, unless it is a variable or masked."""
    value = found.value
    return not (_VARIABLE.match(value) or set(value) <= set("*xX.-_"))


def password(found: Candidate) -> bool:
    """A value that somebody called a password."""
    value = _chosen(found)
    if value is None or len(value) < 4:
        return False
    if " " in value:
        return _phrase(found)
    return not _WORDS.fullmatch(value)


def token(found: Candidate) -> bool:
    """A value called a token, a secret or a key: made by a machine, so mixed."""
    value = _chosen(found)
    if value is None or len(value) < 8 or " " in value:
        return False
    kinds = bool(re.search("[A-Za-z]", value)) + len(re.findall("[0-9]", value))
    return (
        kinds >= 3
        and entropy(value) >= 2.5
        and not _NO_SECRET_TOKEN.search(found.text[: found.match.start()][-16:])
    )


def password_of_key(found: Candidate) -> bool:
    """The whole text under a key that is called a password."""
    value = found.value
    return len(value) >= 4 and not (_stands_in(value) or _sentence(value))


def token_of_key(found: Candidate) -> bool:
    """The whole text under a key that is called a token, a secret or a key."""
    value = found.value
    return (
        len(value) >= 8
        and " " not in value
        and bool(re.search("[0-9]", value))
        and bool(re.search("[A-Za-z]", value))
        and entropy(value) >= 2.5
        and not (_stands_in(value) or _WORDS.fullmatch(value) or _PATH.fullmatch(value))
    )


def chinese_password(found: Candidate) -> bool:
    """What stands after 密码：; a plain word counts where nothing else follows it."""
    value = found.value
    if len(value) < 4 or _stands_in(value):
        return False
    return not _WORDS.fullmatch(value) or found.after(1) in "\n\r,，。;；\"'"


def _chosen(found: Candidate) -> str | None:
    """The value of an assignment, or None if it is code or stands for another."""
    value, quote = found.value, _quote(found)
    if _stands_in(value) or _PATH.fullmatch(value):
        return None
    if quote:
        return value if found.after(1) in ("", "\\", quote) else None
    code = (
        found.after(1) in tuple("([{")
        or _ATTRIBUTE.fullmatch(value)
        or (_NAME.fullmatch(value) and _is_name(value))
    )
    return None if code else value


def _quote(found: Candidate) -> str:
    return found.before(1) if found.before(1) in ("'", '"', "`") else ""


def _is_name(value: str) -> bool:
    """Whether a bare word is more likely a variable than a secret."""
    numbered = _NUMBERED.fullmatch(value)
    return bool(_ROLE.search((numbered[1] if numbered else value)[-16:]))


def _stands_in(value: str) -> bool:
    return bool(
        _VARIABLE.match(value)
        or _LITERAL.fullmatch(value)
        or _made_up(value)
        or len(set(value[:_ENOUGH])) == 1
    )


def _phrase(found: Candidate) -> bool:
    """Some words that were chosen: called a passphrase, or few and with a digit."""
    words = found.value.count(" ") + 1
    if "phrase" in found.match.group().lower()[:10]:
        return 3 <= words <= 12
    return words <= 4 and bool(re.search("[0-9]", found.value))


def _sentence(value: str) -> bool:
    """Text about a password rather than one."""
    return "\n" in value or value.count(" ") > 7 or value.endswith((".", "?", ":"))

"""Judges of secrets: what looks random or chosen, and is not code or a stand-in."""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from math import log2

from refold.redaction.checks import Candidate
from refold.redaction.checks.names import (
    ABOUT,
    KEY_OWNERS,
    NO_KEY_OF,
    OF_KIND,
    patterns,
    words,
)

_LIKE = patterns("secrets")
_LETTER, _DIGIT = re.compile("[A-Za-z]"), re.compile("[0-9]")
# As much of a long value as needs a closer look.
_ENOUGH = 128
_BITS = (0.0, *(n * log2(n) for n in range(1, _ENOUGH + 1)))
_NO_KEY = re.compile(rf"(?i)(?:{'|'.join(NO_KEY_OF)})$")
_COUNTED = "|".join(words("counted"))
_NO_SECRET_TOKEN = re.compile(
    rf"(?:(?<![A-Za-z])(?i:{_COUNTED})|(?<=[a-z])(?:{_COUNTED.title()}))[-_ .]?$"
)
_SENTENCE_WORDS = frozenset(words("of_sentences"))
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def entropy(text: str) -> float:
    """Shannon's entropy in bits per character, of as much as tells."""
    text = text[:_ENOUGH]
    total = len(text)
    if not total:
        return 0.0
    return log2(total) - sum(map(_BITS.__getitem__, map(text.count, set(text)))) / total


def random(found: Candidate) -> bool:
    """A value as mixed as chance makes it, whatever it is of."""
    return entropy(found.value) >= 3


def made_up(value: str) -> bool:
    """Whether it was written for documentation."""
    return bool(_LIKE.STAND_IN.search(value[:_ENOUGH].lower()))


def _for_show(value: str) -> bool:
    """Whether a chosen value is nothing but words of documentation.

    People build passwords on such words: digits or signs beside them make it one.
    """
    lower = value[:_ENOUGH].lower()
    if not _LIKE.STAND_IN.search(lower):
        return False
    rest = _LIKE.STAND_IN.sub("", lower)
    mask = _LIKE.MASKED.search(lower) or value.endswith(("EXAMPLE", "EXAMPLEKEY"))
    return bool(mask) or len(re.findall("[0-9!@#$%^&*+?]", rest)) < 2


def odd(value: str) -> bool:
    """Whether a bare value in prose or below its name is hardly a word or a code.

    It has letters and digits or signs, and is no version, date, path or such a name as
    ``sha256``, ``user1`` or ``RFC2104``.
    """
    if len(value) < 6 or not (_LETTER.search(value) and _DIGIT.search(value)):
        return False
    return not (
        _elsewhere(value)
        or _LIKE.NO_ODDITY.fullmatch(value)
        or _LIKE.VERSION.fullmatch(value)
        or _LIKE.UUID.fullmatch(value)
        or _LIKE.ATTRIBUTE.fullmatch(value)
        or (_LIKE.NAME.fullmatch(value) and _is_name(value))
    )


def aws_secret(found: Candidate) -> bool:
    """Forty characters beside the name of the key, as mixed as base64."""
    return entropy(found.value) >= 3.5 and not made_up(found.value)


def password(found: Candidate) -> bool:
    """A value that somebody called a password."""
    # Most of what is none is soon told: a text may hold thousands of such names.
    if _LIKE.LITERAL.fullmatch(found.value.rstrip("=")) or not _of_secret(found):
        return False
    if _loose(found):
        return odd(found.value) and _tied(found)
    return _given(found)


def named(found: Candidate) -> bool:
    """The value of a pair of which the other half is a name of a secret."""
    return _of_secret(found) and _given(found)


def _given(found: Candidate) -> bool:
    if _LIKE.LITERAL.fullmatch(found.value.rstrip("=")):
        return False
    if _argument(found) and not _plain_secret(found.value):
        return False
    if _in_environment(found) and " " not in found.value:
        return len(found.value) >= 4 and not _elsewhere(found.value)
    value = _chosen(found)
    if value is None or len(value) < 4:
        return False
    if " " in value:
        return _phrase(found)
    return not (_LIKE.WORDS.fullmatch(value) or value.isalpha()) or _jumbled(value)


def token(found: Candidate) -> bool:
    """A value called a token, a secret or a key: made by a machine, so mixed."""
    value = found.value
    # What is soon told comes first: a text may hold thousands of such names.
    if len(value) < 8 or " " in value or not _of_secret(found):
        return False
    if _loose(found) and not (odd(value) and _tied(found)):
        return False
    letters = bool(_LETTER.search(value, 0, _ENOUGH))
    mixed = letters + len(_DIGIT.findall(value, 0, _ENOUGH)) >= 3
    if not (mixed or _jumbled(value) or _dense(value)):
        return False
    if _LIKE.VERSION.fullmatch(value):
        return False
    if _argument(found) and not _plain_secret(value):
        return False
    return (
        _chosen(found) is not None
        and entropy(value) >= 2.5
        and not _NO_SECRET_TOKEN.search(_named(found, 16))
    )


def key(found: Candidate) -> bool:
    """A value called the key of something that a key opens."""
    name = _named(found, 20).rstrip("-_ .").lower()
    return name.endswith(KEY_OWNERS) and token(found)


def _joined(found: Candidate) -> str:
    """What the name goes on with: ``_PROD`` of ``TOKEN_PROD``."""
    return found.match["joined"] if "joined" in found.match.re.groupindex else ""


def _link(found: Candidate) -> str:
    """What stands between the name and the value."""
    match = found.match
    start = match.end("joined") if "joined" in match.re.groupindex else match.start()
    return found.text[start : found.start]


def _of_secret(found: Candidate) -> bool:
    """Whether the name, with what it is joined with, still is a secret's."""
    return not ABOUT.search(_joined(found))


def _loose(found: Candidate) -> bool:
    """Whether only the value can tell: the name is another's, or the tie is weak."""
    link = _link(found)
    return (
        not OF_KIND.fullmatch(_joined(found))
        or _short(found)
        or bool(_LIKE.BROKEN.search(link) and not _LIKE.BLOCK.search(link))
        or bool(_LIKE.CELL.search(link))
    )


def _short(found: Candidate) -> bool:
    """Whether the name is one that means other things too, and no value is quoted."""
    name = found.match.group()[:5].lower()
    return bool(_LIKE.SHORT.match(name)) and found.before(1) not in tuple("\"'")


def _tied(found: Candidate) -> bool:
    """Whether a sign ties the value to its name, or it is all that is on its line."""
    link = _link(found)
    if _LIKE.BROKEN.search(link) or _LIKE.CELL.search(link):
        return bool(_LIKE.ENDS.match(found.after(8)) or found.after(1) == ",")
    return bool(re.search("[=:：＝]", link))


def _named(found: Candidate, length: int) -> str:
    """What stands before the word that named the value."""
    start = found.match.start()
    return found.text[max(0, start - length) : start]


def flag(found: Candidate) -> bool:
    """The value of an option for a password; a mere word after a space is prose."""
    named = found.text[found.match.start() : found.start]
    if found.value.startswith(("pass:", "env:", "file:")):
        return False  # as openssl has them, where a rule of its own takes the rest
    return typed(found) if set(named) & set("=\"'`") else _given(found)


def sql(found: Candidate) -> bool:
    """What SQL identifies a user by, and no prose about what something is."""
    return (
        typed(found)
        and not _LIKE.ATTRIBUTE.fullmatch(found.value)
        and (found.match.group().startswith("IDENTIFIED") or not found.value.isalpha())
    )


def typed(found: Candidate) -> bool:
    """A password that was typed after an option that takes one: a word will do."""
    value = found.value
    called = found.after(1) in tuple("([{")
    return not (len(value) < 3 or _stands_in(value) or value[0] == "-" or called)


def typed_alone(found: Candidate) -> bool:
    """A secret that was typed as an argument by itself, where words may stand too."""
    value = found.value
    if "=" in value[:-2] or not typed(found):
        return False
    signs = re.search("[!@#$%^&*]", value)
    return bool(signs or odd(value) or _LIKE.UUID.fullmatch(value))


def piped(found: Candidate) -> bool:
    """What a command prints for another that reads a password."""
    return not (_elsewhere(found.value) or found.value.startswith("-"))


def login(found: Candidate) -> bool:
    """What stands after a user and a colon, where programs take a login."""
    value = found.value
    called = re.match(r"[A-Za-z_]\w*\(", value)
    return not (len(value) < 3 or value.isdigit() or _stands_in(value) or called)


def login_argument(found: Candidate) -> bool:
    """A login that is an argument by itself, where a group may follow the colon too."""
    user = found.text[: found.start - 1]
    mere = _LIKE.WORDS.fullmatch(found.value) or found.value == user
    return login(found) and not mere


def env_key(found: Candidate) -> bool:
    """A value of something that may be a key: long, mixed, and no digest of a file."""
    value = found.value
    return (
        len(value) >= 16
        and len(_DIGIT.findall(value, 0, _ENOUGH)) >= 2
        and bool(_LIKE.KEYLIKE.fullmatch(value))
        and entropy(value) >= 3.2
        and _chosen(found) is not None
        and not (_LIKE.DIGEST.fullmatch(value) or _LIKE.UUID.fullmatch(value))
        and not _NO_KEY.search(_named(found, 16))
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
        and bool(_DIGIT.search(value))
        and bool(_LETTER.search(value))
        and entropy(value) >= 2.5
        and not (_elsewhere(value) or _LIKE.WORDS.fullmatch(value))
    )


def chinese_password(found: Candidate) -> bool:
    """What stands after 密码：; a plain word counts where nothing else follows it."""
    value = found.value
    if len(value) < 4 or _stands_in(value):
        return False
    if found.match.end() - found.match.start() - len(value) < 4 and not re.search(
        "[^\u4e00-\u9fff]|[是为]", found.before(1)
    ):
        return odd(value)  # nothing but the name stands before it
    return not _LIKE.WORDS.fullmatch(value) or found.after(1) in "\n\r,，。;；\"'"


def _chosen(found: Candidate) -> str | None:
    """The value of an assignment, or None if it is code or stands for another."""
    value, quote = found.value, found.before(1)
    if _elsewhere(value):
        return None
    if quote and quote in "'\"`":
        return value if found.after(1) in ("", "\\", quote) else None
    long = len(value) >= 20 and len(_DIGIT.findall(value)) >= 3
    code = (
        value.startswith("?")
        or found.after(1) in tuple("([{")
        or (_LIKE.ATTRIBUTE.fullmatch(value) and not (long and entropy(value) >= 4))
        or (_LIKE.NAME.fullmatch(value) and _is_name(value))
    )
    return None if code else value


def _plain_secret(value: str) -> bool:
    """Whether it is no code, or has more signs than code has."""
    if _LIKE.PLAIN_SECRET.fullmatch(value):
        return True
    signs = set(re.findall("[!@#$%^&*~?]", value))
    return len(signs) >= 3 and " " not in value and bool(_DIGIT.search(value))


def _argument(found: Candidate) -> bool:
    """Whether the name and the value are arguments, of a call or in a list."""
    named = found.text[found.match.start() : found.start]
    return "," in named or "(" in named


def _in_environment(found: Candidate) -> bool:
    """Whether it stands as in a file of variables: ``DB_PASSWORD=letmein``."""
    after = found.after(1)
    return (
        bool(_LIKE.VARIABLE_SET.match(found.match.group()))
        and found.before(1) in ("=", "'", '"')
        and (after in tuple("\\'\";),|&") or not after.isascii() or not after.strip())
    )


def _jumbled(value: str) -> bool:
    """Whether the case of its letters changes more often than names change it."""
    value = value[:_ENOUGH]
    return (
        len(value) >= 10
        and value.isalnum()
        and len(_LIKE.TURN.findall(value)) >= 0.45 * len(value)
    )


def _dense(value: str) -> bool:
    """Whether a long value with a digit within it changes case more than names do."""
    turns = len(_LIKE.TURN.findall(value[:_ENOUGH]))
    within = _DIGIT.search(value, 0, min(len(value) - 1, _ENOUGH))
    return len(value) >= 16 and within is not None and turns >= len(value) / 4


def _is_name(value: str) -> bool:
    """Whether a bare word is more likely a variable than a secret."""
    numbered = _LIKE.NUMBERED.fullmatch(value)
    return bool(_LIKE.ROLE.search((numbered[1] if numbered else value)[-16:]))


def _stands_in(value: str) -> bool:
    return bool(
        _LIKE.VARIABLE.match(value)
        or _LIKE.FORMAT.search(value)
        or _LIKE.LITERAL.fullmatch(value.rstrip("="))
        or _for_show(value)
        or len(set(value[:_ENOUGH])) == 1
    )


def _elsewhere(value: str) -> bool:
    """Whether the secret is not here: a variable, a stand-in, the path of a file."""
    return _stands_in(value) or bool(_LIKE.PATH.fullmatch(value))


def _phrase(found: Candidate) -> bool:
    """Some words that were chosen: called a passphrase, or few and with a digit."""
    words = found.value.count(" ") + 1
    if _LIKE.APP_PASSWORD.fullmatch(found.value):
        return True
    if "phrase" in found.match.group().lower()[:10]:
        return 3 <= words <= 12
    return words <= 4 and bool(re.search("[0-9]", found.value))


def _sentence(value: str) -> bool:
    """Text about a password rather than one."""
    value = value.rstrip("\r\n")
    if "\n" in value or value.count(" ") > 7:
        return True
    ends = value.endswith((".", "?", ":"))
    return ends and (" " in value or bool(_LIKE.WORDS.fullmatch(value)))


_HEADER = re.compile(rb'"(?:alg|enc)"\s{0,8}:')


def issued(found: Candidate) -> bool:
    """A key whose form hardly anything else has: only made-up ones are refused."""
    value = found.value
    return not _LIKE.BLANK.fullmatch(value[-16:]) and not _LIKE.FOR_SHOW.search(
        value[:256].lower()
    )


def varied(found: Candidate) -> bool:
    """A key whose form something else might have: it must also look random."""
    value = found.value[:256]
    many = len(_DIGIT.findall(value)) >= 2
    cases = min(len(re.findall("[A-Z]", value)), len(re.findall("[a-z]", value)))
    return entropy(value) >= 3 and (many or cases >= 3) and not made_up(value)


def mixed(found: Candidate) -> bool:
    """A value of letters in both cases and digits in no order."""
    value = found.value[:256]
    both = re.search("[A-Z]", value) and re.search("[a-z]", value)
    digits = len(_DIGIT.findall(value)) >= 2
    return varied(found) and entropy(value) >= 3.4 and digits and bool(both)


def azure_secret(found: Candidate) -> bool:
    """A mixed value that does not go on from a tilde."""
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


def bearer(found: Candidate) -> bool:
    """A token in a header; not the name of a scheme, a URL or code."""
    value = found.value
    return bool(
        re.search("[0-9]", value)
        and not _LIKE.SCHEME.fullmatch(value)
        and entropy(value) >= 3
        and not made_up(value)
        and not _LIKE.ATTRIBUTE.fullmatch(value)
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
    except ValueError:
        return False
    return b":" in plain and all(32 <= byte < 127 for byte in plain)


def docker_auth(found: Candidate) -> bool:
    """A login in the configuration of Docker or npm."""
    return basic(found)


def cookie(found: Candidate) -> bool:
    """Cookies of which one holds a token."""
    return any(_token(value) for value in _LIKE.COOKIE.findall(found.value[:8192]))


def _token(value: str) -> bool:
    return (
        len(value) >= 12
        and len(re.findall("[0-9]", value[:128])) >= 2
        and bool(re.search("[A-Za-z]", value[:128]))
        and entropy(value) >= 3
        and not (
            _LIKE.VARIABLE.match(value)
            or _LIKE.ATTRIBUTE.fullmatch(value)
            or made_up(value)
        )
    )


def session(found: Candidate) -> bool:
    """The id of a session that opens it; a UUID in a log only names one."""
    return _token(found.value) and not _LIKE.UUID.fullmatch(found.value)


def signature(found: Candidate) -> bool:
    """The signature of a URL; not a variable that stands for one."""
    return varied(found) and not _LIKE.VARIABLE.match(found.value)


def url_password(found: Candidate) -> bool:
    """The password of a URL, unless it is a variable, masked, or of documentation."""
    value = found.value
    if _LIKE.VARIABLE.match(value) or set(value) <= set("*xX.-_…"):
        return False
    if not _LIKE.ANY_LOGIN.fullmatch(value):
        return True
    here = found.after(10) == "@localhost"
    return not (
        _LIKE.ANY_HOST.match(found.after(24)) or (here and found.before(5) == "user:")
    )


def url_token(found: Candidate) -> bool:
    """A token in the place of a URL's user."""
    value = found.value
    if found.after(14).startswith(":x-oauth-basic"):
        return True
    return (
        varied(found)
        and len(_DIGIT.findall(value)) >= 2
        and bool(_LETTER.search(value))
        and entropy(value) >= 3.3
    )


def near_vendor(found: Candidate) -> bool:
    """A long mixed value beside the name of a vendor; not a path, host or version."""
    value = found.value
    return (
        varied(found)
        and len(_DIGIT.findall(value)) >= 3
        and not re.search(r"/[a-z]|\.[a-z]|[0-9]\.[0-9]", value)
        and not re.fullmatch(r"[a-z0-9]*[a-z]{4,}[-_][a-z0-9_\-]*", value)
    )


def said(found: Candidate) -> bool:
    """What a sentence calls a password: no word, number or name is written so."""
    value = found.value
    digits = len(_DIGIT.findall(value))
    signs = len(re.findall("[!@#$%^&*?]", value))
    quoted = found.before(1) in tuple("\"'`*") and len(set(value)) > 3
    tied = quoted or found.match["tie"] or not value.islower() or digits >= 3
    return (
        odd(value)
        and bool(tied)
        and (digits >= 3 or signs > 0 or quoted or (digits >= 1 and len(value) >= 9))
    )


def docker_config(found: Candidate) -> bool:
    """Base64 of the file in which Docker keeps logins."""
    # An image in base64 has these first letters somewhere, but no JSON behind them.
    head = found.value[:64].replace("\n", "").rstrip("=")
    text = base64.b64decode(head[: len(head) // 4 * 4])
    return re.match(rb'\s*\{\s*"(?:auths?|cred|HttpHeaders)', text) is not None


def wif(found: Candidate) -> bool:
    """A key of Bitcoin as wallets write it, with its checksum."""
    number = 0
    for character in found.value:
        number = number * 58 + _BASE58.index(character)
    data = number.to_bytes(40, "big").lstrip(b"\0")
    digest = sha256(sha256(data[:-4]).digest()).digest()
    return data[:1] in (b"\x80", b"\xef") and digest[:4] == data[-4:]


def beside(found: Candidate) -> bool:
    """What stands in a column of secrets."""
    value = found.value
    return len(value) >= 4 and not (_elsewhere(value) or value.isdigit())


def mnemonic(found: Candidate) -> bool:
    """As many words as a seed has, and none that only sentences have."""
    some = re.findall("[a-z]{3,8}", found.value)
    return len(some) in (12, 15, 18, 21, 24) and not _SENTENCE_WORDS.intersection(some)


def told(found: Candidate) -> bool:
    """A value that a sentence says is a secret: as odd as no word is."""
    value = found.value
    signs = len(re.findall("[!@#$%^&*?]", value))
    return odd(value) and (len(_DIGIT.findall(value)) >= 2 or signs > 0)


def declared(found: Candidate) -> bool:
    """The value of a variable that a command or a file sets."""
    return _given(found) if "pass" in found.match["name"].lower() else token(found)

"""Checks of secrets: values that look random or chosen, and are no code or stand-in."""

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

_PATTERNS = patterns("secrets")
_LETTER = re.compile("[A-Za-z]")
_DIGIT = re.compile("[0-9]")
_SIGN = re.compile("[!@#$%^&*?]")
# The part of a long value that is looked at closely.
_PREFIX = 128
# n * log2(n) for each number of characters, for the entropy.
_BITS = (0.0, *(n * log2(n) for n in range(1, _PREFIX + 1)))
_NO_KEY = re.compile(rf"(?i)(?:{'|'.join(NO_KEY_OF)})$")
_COUNTED = "|".join(words("counted"))
_NO_SECRET_TOKEN = re.compile(
    rf"(?:(?<![A-Za-z])(?i:{_COUNTED})|(?<=[a-z])(?:{_COUNTED.title()}))[-_ .]?$"
)
_SENTENCE_WORDS = frozenset(words("of_sentences"))
_LITERALS = frozenset(words("literals"))
_LONGEST_LITERAL = max(map(len, _LITERALS))
_ROLES = words("roles")
_LONGEST_ROLE = max(map(len, _ROLES))
_STAND_INS = words("stand_ins")
_BEGIN_PATH = frozenset("\\/~.")
_BEGIN_VERSION = frozenset("v0123456789")
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def entropy(text: str) -> float:
    """Return Shannon's entropy of the start of a text, in bits per character."""
    text = text[:_PREFIX]
    total = len(text)
    if not total:
        return 0.0
    counts = map(text.count, set(text))
    return log2(total) - sum(map(_BITS.__getitem__, counts)) / total


def random(candidate: Candidate) -> bool:
    """A value as mixed as a random one."""
    return entropy(candidate.value) >= 3


def made_up(value: str) -> bool:
    """Whether the value was written for documentation."""
    return _has_stand_in(value[:_PREFIX].lower())


def _has_stand_in(lower: str) -> bool:
    """Whether a text in lower case has a word or sign of documentation."""
    return any(map(lower.__contains__, _STAND_INS))


def _for_show(value: str) -> bool:
    """Whether a chosen value consists of words of documentation only.

    People build passwords from such words by adding digits or signs.
    """
    lower = value[:_PREFIX].lower()
    if not _has_stand_in(lower):
        return False
    if _PATTERNS.MASKED.search(lower) or value.endswith(("EXAMPLE", "EXAMPLEKEY")):
        return True
    rest = _PATTERNS.STAND_IN.sub("", lower)
    return len(re.findall("[0-9!@#$%^&*+?]", rest)) < 2


def odd(value: str) -> bool:
    """Whether a bare value in prose or below its name is hardly a word or a code.

    It has letters and digits, and is no version, date, path or such a name as
    ``sha256``, ``user1`` or ``RFC2104``.
    """
    if len(value) < 6:
        return False
    if not _LETTER.search(value) or not _DIGIT.search(value):
        return False
    if _elsewhere(value):
        return False
    if _PATTERNS.CHOSEN.fullmatch(value):
        return True
    if _PATTERNS.NO_ODDITY.fullmatch(value) or _is_version(value):
        return False
    if _PATTERNS.UUID.fullmatch(value) or _is_attribute(value):
        return False
    return not (_PATTERNS.NAME.fullmatch(value) and _is_variable(value))


def aws_secret(candidate: Candidate) -> bool:
    """Forty characters next to the name of the key, as mixed as base64."""
    return entropy(candidate.value) >= 3.5 and not made_up(candidate.value)


def password(candidate: Candidate) -> bool:
    """A value that is called a password."""
    value = candidate.value
    # Cheap tests come first: a text may hold thousands of such names.
    if _is_literal(value) or not _of_secret(candidate) or _is_verdict(candidate):
        return False
    if _loose(candidate):
        return odd(value) and _tied(candidate)
    return _is_password_value(candidate)


def _is_verdict(candidate: Candidate) -> bool:
    """Whether it is the name of a test that passed: ``--- PASS: TestTwo_ways``."""
    if not candidate.match.group().startswith("PASS:"):
        return False
    before = _before_name(candidate, 4)
    return before.endswith(("--- ", "===")) or candidate.value.startswith("Test")


def named(candidate: Candidate) -> bool:
    """The value of a pair whose other half is a name of a secret."""
    return _of_secret(candidate) and _is_password_value(candidate)


def _is_literal(value: str) -> bool:
    """Whether it is a literal of a language, such as ``None`` or ``true``."""
    bare = value.rstrip("=")
    if len(bare) <= _LONGEST_LITERAL and bare.lower() in _LITERALS:
        return True
    # The number of a version, such as v2.
    return bare[:1] in ("v", "V") and bare[1:].isdecimal() and bare.isascii()


def _is_password_value(candidate: Candidate) -> bool:
    """Whether the value of a password's name is a password, and no code or word."""
    if _is_literal(candidate.value):
        return False
    if _is_argument(candidate) and not _plain_secret(candidate.value):
        return False
    if _in_environment(candidate) and " " not in candidate.value:
        return len(candidate.value) >= 4 and not _elsewhere(candidate.value)
    value = _assigned(candidate)
    if value is None or len(value) < 4:
        return False
    if " " in value:
        return _phrase(candidate)
    is_word = value.isalpha() or _PATTERNS.WORDS.fullmatch(value)
    return not is_word or _jumbled(value)


def token(candidate: Candidate) -> bool:
    """A value that is called a token, a secret or a key; a machine made it."""
    value = candidate.value
    # Cheap tests come first: a text may hold thousands of such names.
    if len(value) < 8 or " " in value or not _of_secret(candidate):
        return False
    if _loose(candidate) and not (odd(value) and _tied(candidate)):
        return False
    kinds = len(_DIGIT.findall(value, 0, _PREFIX))
    if _LETTER.search(value, 0, _PREFIX):
        kinds += 1
    is_mixed = kinds >= 3  # a letter and two digits, or three digits
    if not (is_mixed or _jumbled(value) or _dense(value)):
        return False
    if _is_version(value) or _PATTERNS.TYPED_NUMBER.fullmatch(value):
        return False
    if _is_argument(candidate) and not _plain_secret(value):
        return False
    if _assigned(candidate) is None or entropy(value) < 2.5:
        return False
    if _PATTERNS.UUID.fullmatch(value) and _PATTERNS.OF_REQUEST.search(
        _before_name(candidate, 16)
    ):
        return False  # it makes a request that is sent twice count once
    return not _NO_SECRET_TOKEN.search(_before_name(candidate, 16))


def key(candidate: Candidate) -> bool:
    """A value that is called the key of something that a key opens."""
    name = _before_name(candidate, 20).rstrip("-_ .").lower()
    return name.endswith(KEY_OWNERS) and token(candidate)


def _name_suffix(candidate: Candidate) -> str:
    """The rest of a joined name: ``_PROD`` of ``TOKEN_PROD``."""
    if "joined" not in candidate.match.re.groupindex:
        return ""
    return candidate.match["joined"]


def _link(candidate: Candidate) -> str:
    """The text between the name and the value."""
    match = candidate.match
    start = match.start()
    if "joined" in match.re.groupindex:
        start = match.end("joined")
    return candidate.text[start : candidate.start]


def _of_secret(candidate: Candidate) -> bool:
    """Whether the name together with its suffix is still the name of a secret."""
    suffix = _name_suffix(candidate)
    if not suffix:
        return True
    if _PATTERNS.SOURCE_FILE.search(suffix) and _link(candidate).startswith("::"):
        return False  # the name of a test
    return not ABOUT.search(suffix)


def _loose(candidate: Candidate) -> bool:
    """Whether the value alone must decide: the name or the link proves little."""
    link = _link(candidate)
    suffix = _name_suffix(candidate)
    if (suffix and not OF_KIND.fullmatch(suffix)) or _short(candidate):
        return True
    if _PATTERNS.BROKEN.search(link) and not _PATTERNS.BLOCK.search(link):
        return True
    return bool(_PATTERNS.CELL.search(link))


def _short(candidate: Candidate) -> bool:
    """Whether the name has other meanings, too, and the value is not quoted."""
    start = candidate.match.start()
    name = candidate.text[start : start + 5].lower()
    if name[:1] != "p" or not _PATTERNS.SHORT.match(name):
        return False
    if candidate.before(1) in ('"', "'"):
        return False
    # Joined with another word, as in DB_PASS and rootPass, it has one meaning.
    joined = _before_name(candidate, 1)
    return not (joined.isalnum() or joined == "_")


def _tied(candidate: Candidate) -> bool:
    """Whether a sign ties the value to its name, or the value fills its line."""
    link = _link(candidate)
    if _PATTERNS.BROKEN.search(link) or _PATTERNS.CELL.search(link):
        return bool(_PATTERNS.ENDS.match(candidate.after(8))) or (
            candidate.after(1) == ","
        )
    return bool(re.search("[=:：＝]", link))


def _before_name(candidate: Candidate, length: int) -> str:
    """Up to ``length`` characters before the word that names the value."""
    start = candidate.match.start()
    return candidate.text[max(0, start - length) : start]


def flag(candidate: Candidate) -> bool:
    """The value of an option for a password; a mere word after a space is prose."""
    if candidate.value.startswith(("pass:", "env:", "file:")):
        return False  # openssl's notation: another rule takes the rest
    option = candidate.text[candidate.match.start() : candidate.start]
    if "`" in option and candidate.value.isalpha():
        return False  # the name of something in a text about code
    if set(option) & set("=\"'`"):
        return typed(candidate)
    return _is_password_value(candidate)


def sql(candidate: Candidate) -> bool:
    """The password of a user in SQL; no prose about identification."""
    if not typed(candidate) or _is_attribute(candidate.value):
        return False
    is_keyword = candidate.match.group().startswith("IDENTIFIED")
    return is_keyword or not candidate.value.isalpha()


def typed(candidate: Candidate) -> bool:
    """A password that was typed after an option for one; it may be a word."""
    value = candidate.value
    if len(value) < 3 or _stands_in(value) or value[0] == "-":
        return False
    return not _is_called(candidate)


def _is_called(candidate: Candidate) -> bool:
    """Whether a bracket follows, as behind the name of a function or an array."""
    return candidate.after(1) in ("(", "[", "{")


def typed_alone(candidate: Candidate) -> bool:
    """A secret that was typed as an argument by itself, where words are common."""
    value = candidate.value
    if "=" in value[:-2] or not typed(candidate) or _PATTERNS.CALL.match(value):
        return False
    if re.search("[!@#$%^&*]", value) or odd(value):
        return True
    return bool(_PATTERNS.UUID.fullmatch(value))


def piped(candidate: Candidate) -> bool:
    """The output of a command for another one that reads a password."""
    return not (_elsewhere(candidate.value) or candidate.value.startswith("-"))


def login(candidate: Candidate) -> bool:
    """The text after a user and a colon, where programs take a login."""
    value = candidate.value
    if len(value) < 3 or value.isdigit() or _stands_in(value):
        return False
    return not re.match(r"[A-Za-z_]\w*\(", value)


def login_argument(candidate: Candidate) -> bool:
    """A login that is an argument by itself; a group may follow the colon, too."""
    user = candidate.text[: candidate.start - 1]
    is_group = candidate.value == user or _PATTERNS.WORDS.fullmatch(candidate.value)
    return login(candidate) and not is_group


def env_key(candidate: Candidate) -> bool:
    """A value of a possible key: long, mixed, and no digest of a file."""
    value = candidate.value
    if len(value) < 16 or len(_DIGIT.findall(value, 0, _PREFIX)) < 2:
        return False
    if not _PATTERNS.KEYLIKE.fullmatch(value) or entropy(value) < 3.2:
        return False
    if _assigned(candidate) is None:
        return False
    if _PATTERNS.DIGEST.fullmatch(value) or _PATTERNS.UUID.fullmatch(value):
        return False
    return not _NO_KEY.search(_before_name(candidate, 16))


def password_of_key(candidate: Candidate) -> bool:
    """The whole text under a key that is called a password."""
    value = candidate.value
    return len(value) >= 4 and not (_stands_in(value) or _sentence(value))


def token_of_key(candidate: Candidate) -> bool:
    """The whole text under a key that is called a token, a secret or a key."""
    value = candidate.value
    if len(value) < 8 or " " in value:
        return False
    if value.isdigit():
        # Ten and thirteen digits may be a time.
        return len(value) not in (10, 11, 13) and entropy(value) >= 2.5
    if not _DIGIT.search(value) or not _LETTER.search(value) or entropy(value) < 2.5:
        return False
    return not (_elsewhere(value) or _PATTERNS.WORDS.fullmatch(value))


def chinese_password(candidate: Candidate) -> bool:
    """The text after 密码：; a plain word counts only if nothing else follows it."""
    value = candidate.value
    if len(value) < 4 or _stands_in(value):
        return False
    link_length = candidate.match.end() - candidate.match.start() - len(value)
    has_sign = re.search("[^\u4e00-\u9fff]|[是为]", candidate.before(1))
    if link_length < 4 and not has_sign:
        return odd(value)  # nothing but the name stands before it
    if not _PATTERNS.WORDS.fullmatch(value):
        return True
    return candidate.after(1) in "\n\r,，。;；\"'"


def _assigned(candidate: Candidate) -> str | None:
    """The value of an assignment, or None if it is code or stands for another."""
    value = candidate.value
    quote = candidate.before(1)
    if _elsewhere(value):
        return None
    if quote and quote in "'\"`":
        is_closed = candidate.after(1) in ("", "\\", quote)
        return value if is_closed else None
    if value.startswith("?") or _is_called(candidate):
        return None
    if _is_attribute(value) and not _PATTERNS.CHOSEN.fullmatch(value):
        is_long = len(value) >= 20 and len(_DIGIT.findall(value)) >= 3
        if not (is_long and entropy(value) >= 4):
            return None
    if _PATTERNS.NAME.fullmatch(value) and _is_variable(value):
        return None
    return value


def _plain_secret(value: str) -> bool:
    """Whether the value is no code, or has more signs than code has."""
    if _PATTERNS.PLAIN_SECRET.fullmatch(value):
        return True
    signs = set(re.findall("[!@#$%^&*~?]", value))
    return len(signs) >= 3 and " " not in value and bool(_DIGIT.search(value))


def _is_argument(candidate: Candidate) -> bool:
    """Whether the name and the value are arguments, of a call or in a list."""
    before_value = candidate.text[candidate.match.start() : candidate.start]
    return "," in before_value or "(" in before_value


def _in_environment(candidate: Candidate) -> bool:
    """Whether it stands as in a file of variables: ``DB_PASSWORD=letmein``."""
    if not _PATTERNS.VARIABLE_SET.match(candidate.match.group()):
        return False
    if candidate.before(1) not in ("=", "'", '"'):
        return False
    after = candidate.after(1)
    if after in ("\\", "'", '"', ";", ")", ",", "|", "&"):
        return True
    return not after.isascii() or not after.strip()


def _jumbled(value: str) -> bool:
    """Whether its letters change their case more often than those of a name."""
    value = value[:_PREFIX]
    if len(value) < 10 or not value.isalnum():
        return False
    return len(_PATTERNS.TURN.findall(value)) >= 0.45 * len(value)


def _dense(value: str) -> bool:
    """Whether a long value with a digit inside changes case more often than names."""
    if len(value) < 16 or not _DIGIT.search(value, 0, min(len(value) - 1, _PREFIX)):
        return False
    return len(_PATTERNS.TURN.findall(value[:_PREFIX])) >= len(value) / 4


def _is_variable(value: str) -> bool:
    """Whether a bare word is more likely a variable than a secret."""
    numbered = _PATTERNS.NUMBERED.fullmatch(value)
    word = numbered[1] if numbered else value
    return word[-_LONGEST_ROLE:].lower().endswith(_ROLES)


def _stands_in(value: str) -> bool:
    """Whether the value stands for a secret: a variable, a format, a stand-in."""
    if _PATTERNS.VARIABLE.match(value):
        return True
    if ("." in value or "%" in value) and _PATTERNS.FORMAT.search(value):
        return True
    if _is_literal(value) or _for_show(value):
        return True
    return len(set(value[:_PREFIX])) == 1


def _elsewhere(value: str) -> bool:
    """Whether the secret is not here: a variable, a stand-in, the path of a file."""
    if _stands_in(value):
        return True
    if value[:1] not in _BEGIN_PATH and ":" not in value:
        return False
    return _PATTERNS.PATH.fullmatch(value) is not None


def _is_attribute(value: str) -> bool:
    """Whether it is an attribute of an object, such as ``settings.key``."""
    if not ("." in value or "->" in value or "::" in value):
        return False
    return _PATTERNS.ATTRIBUTE.fullmatch(value) is not None


def _is_version(value: str) -> bool:
    """Whether it is a version, such as ``1.2.3``."""
    if value[:1] not in _BEGIN_VERSION:
        return False
    return _PATTERNS.VERSION.fullmatch(value) is not None


def _phrase(candidate: Candidate) -> bool:
    """Words that were chosen: called a passphrase, or few words and a digit."""
    value = candidate.value
    if _PATTERNS.APP_PASSWORD.fullmatch(value):
        return True
    count = value.count(" ") + 1
    if "phrase" in candidate.match.group().lower()[:10]:
        return 3 <= count <= 12
    if count > 4 and (_is_argument(candidate) or _is_prose(value)):
        return False
    return bool(_DIGIT.search(value))


def _sentence(value: str) -> bool:
    """Whether it is a text about a password."""
    value = value.rstrip("\r\n")
    if "\n" in value or value.count(" ") > 7:
        return True
    if not value.endswith((".", "?", ":")):
        return False
    return " " in value or bool(_PATTERNS.WORDS.fullmatch(value))


_HEADER = re.compile(rb'"(?:alg|enc)"\s{0,8}:')


def issued(candidate: Candidate) -> bool:
    """A key whose form is its own; only made-up ones are refused."""
    value = candidate.value
    if _PATTERNS.BLANK.fullmatch(value[-16:]):
        return False
    return not _PATTERNS.FOR_SHOW.search(value[:256].lower())


def varied(candidate: Candidate) -> bool:
    """A key whose form other things share; it must also look random."""
    value = candidate.value[:256]
    if entropy(value) < 3:
        return False
    upper = len(re.findall("[A-Z]", value))
    lower = len(re.findall("[a-z]", value))
    is_mixed = len(_DIGIT.findall(value)) >= 2 or min(upper, lower) >= 3
    return is_mixed and not made_up(value)


def mixed(candidate: Candidate) -> bool:
    """A value of letters in both cases and digits in no order."""
    value = candidate.value[:256]
    if not varied(candidate) or entropy(value) < 3.4:
        return False
    if len(_DIGIT.findall(value)) < 2:
        return False
    return bool(re.search("[A-Z]", value) and re.search("[a-z]", value))


def azure_secret(candidate: Candidate) -> bool:
    """A mixed value that does not begin with a tilde."""
    return mixed(candidate) and not candidate.value.startswith("~")


def escaped(candidate: Candidate) -> bool:
    """A token with percent escapes, which base64 does not have."""
    return "%" in candidate.value and varied(candidate)


def jwt(candidate: Candidate) -> bool:
    """A token whose first part decodes to a header that names an algorithm."""
    head = candidate.value.partition(".")[0]
    try:
        header = base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)).strip()
    except ValueError:
        return False
    is_object = header[:1] == b"{" and header[-1:] == b"}"
    return is_object and bool(_HEADER.search(header))


def bearer(candidate: Candidate) -> bool:
    """A token in a header; not the name of a scheme, a URL or code."""
    value = candidate.value
    if not _DIGIT.search(value) or _PATTERNS.SCHEME.fullmatch(value):
        return False
    if entropy(value) < 3 or made_up(value):
        return False
    return not _is_attribute(value) and "://" not in value


def authorization(candidate: Candidate) -> bool:
    """The text after a scheme, or alone, in a header that authorizes."""
    if len(set(_DIGIT.findall(candidate.value))) < 2:
        return False
    return candidate.after(1) not in ("(", "[") and bearer(candidate)


def basic(candidate: Candidate) -> bool:
    """Base64 of ``user:password``."""
    value = candidate.value
    try:
        plain = base64.b64decode(value + "=" * (-len(value) % 4))
    except ValueError:
        return False
    return b":" in plain and all(32 <= byte < 127 for byte in plain)


def docker_auth(candidate: Candidate) -> bool:
    """A login in the configuration of Docker or npm."""
    return basic(candidate)


def cookie(candidate: Candidate) -> bool:
    """Cookies, at least one of which holds a token."""
    values = _PATTERNS.COOKIE.findall(candidate.value[:8192])
    return any(_is_token(value) for value in values)


def _is_token(value: str) -> bool:
    """Whether the value of a cookie or a session is a token."""
    start = value[:128]
    if len(value) < 12 or len(_DIGIT.findall(start)) < 2:
        return False
    if not _LETTER.search(start) or entropy(value) < 3:
        return False
    if _PATTERNS.VARIABLE.match(value) or _is_attribute(value):
        return False
    return not made_up(value)


def session(candidate: Candidate) -> bool:
    """The id of a session that opens it; a UUID in a log only names one."""
    value = candidate.value
    return _is_token(value) and not _PATTERNS.UUID.fullmatch(value)


def signature(candidate: Candidate) -> bool:
    """The signature of a URL; not a variable that stands for one."""
    return varied(candidate) and not _PATTERNS.VARIABLE.match(candidate.value)


def url_password(candidate: Candidate) -> bool:
    """The password of a URL, unless it is a variable, masked, or of documentation."""
    value = candidate.value
    if _PATTERNS.VARIABLE.match(value) or set(value) <= set("*xX.-_…"):
        return False
    if not _PATTERNS.ANY_LOGIN.fullmatch(value):
        return True
    if _PATTERNS.ANY_HOST.match(candidate.after(24)):
        return False
    is_local = candidate.after(10) == "@localhost"
    return not (is_local and candidate.before(5) == "user:")


def url_token(candidate: Candidate) -> bool:
    """A token in the place of a URL's user."""
    value = candidate.value
    if candidate.after(14).startswith(":x-oauth-basic"):
        return True
    if not varied(candidate) or len(_DIGIT.findall(value)) < 2:
        return False
    return bool(_LETTER.search(value)) and entropy(value) >= 3.3


def near_vendor(candidate: Candidate) -> bool:
    """A long mixed value near the name of a vendor; not a path, host or version."""
    value = candidate.value
    if not varied(candidate) or len(_DIGIT.findall(value)) < 3:
        return False
    if re.search(r"/[a-z]|\.[a-z]|[0-9]\.[0-9]", value):
        return False
    return not re.fullmatch(r"[a-z0-9]*[a-z]{4}[-_][a-z0-9_\-]*", value)


def said(candidate: Candidate) -> bool:
    """A value that a sentence calls a password, written like no word or number."""
    value = candidate.value
    if not odd(value):
        return False
    digits = len(_DIGIT.findall(value))
    is_quoted = candidate.before(1) in ('"', "'", "`", "*") and len(set(value)) > 3
    is_tied = bool(candidate.match["tie"]) or not value.islower()
    if not (is_quoted or is_tied or digits >= 3):
        return False
    if is_quoted or digits >= 3 or _SIGN.search(value):
        return True
    return digits >= 1 and len(value) >= 9


def docker_config(candidate: Candidate) -> bool:
    """Base64 of the file in which Docker keeps logins."""
    # An image in base64 has these first letters somewhere, but no JSON after them.
    head = candidate.value[:64].replace("\n", "").rstrip("=")
    text = base64.b64decode(head[: len(head) // 4 * 4])
    return re.match(rb'\s*\{\s*"(?:auths?|cred|HttpHeaders)', text) is not None


def wif(candidate: Candidate) -> bool:
    """A key of Bitcoin in the format of wallets, with its checksum."""
    number = 0
    for character in candidate.value:
        number = number * 58 + _BASE58.index(character)
    data = number.to_bytes(40, "big").lstrip(b"\0")
    checksum = sha256(sha256(data[:-4]).digest()).digest()[:4]
    return data[:1] in (b"\x80", b"\xef") and checksum == data[-4:]


def beside(candidate: Candidate) -> bool:
    """A value in a column of secrets."""
    value = candidate.value
    return len(value) >= 4 and not (_elsewhere(value) or value.isdigit())


def mnemonic(candidate: Candidate) -> bool:
    """As many words as a seed has, without words of sentences."""
    found_words = re.findall("[a-z]{3,8}", candidate.value)
    if len(found_words) not in (12, 15, 18, 21, 24):
        return False
    return _SENTENCE_WORDS.isdisjoint(found_words)


def told(candidate: Candidate) -> bool:
    """A value that a sentence calls a secret, written like no word."""
    value = candidate.value
    if not odd(value):
        return False
    return len(_DIGIT.findall(value)) >= 2 or bool(_SIGN.search(value))


def declared(candidate: Candidate) -> bool:
    """The value of a variable that a command or a file sets."""
    if "pass" in candidate.match["name"].lower():
        return _is_password_value(candidate)
    return token(candidate)


def handed(candidate: Candidate) -> bool:
    """A value in quotes where a secret belongs: no word, code, path or stand-in."""
    value = candidate.value
    if len(value) < 4 or _elsewhere(value) or _PATTERNS.UUID.fullmatch(value):
        return False
    if " " in value and not (_DIGIT.search(value) and not _is_prose(value)):
        return False
    is_word = value.isalpha() or _PATTERNS.WORDS.fullmatch(value)
    return not is_word or _jumbled(value)


def handed_odd(candidate: Candidate) -> bool:
    """A value where a secret often stands: only one that is written like one."""
    return " " not in candidate.value and odd(candidate.value)


def alone(candidate: Candidate) -> bool:
    """A value that fills its place behind the name of a secret."""
    value = candidate.value
    if candidate.match.group().startswith("PASS ") and "/" in value:
        return False  # a test that passed
    return odd(value) or _jumbled(value) or bool(_PATTERNS.LONG_HEX.fullmatch(value))


def replied(candidate: Candidate) -> bool:
    """A value that answers a question for a secret, or stands below its label."""
    value = candidate.value
    if re.search(r"[(){}\[\]/]|\.[a-z]{1,4}$", value) or _elsewhere(value):
        return False
    if _jumbled(value) or _PATTERNS.LONG_HEX.fullmatch(value):
        return True
    is_mixed = len(_DIGIT.findall(value)) >= 2 or bool(_SIGN.search(value))
    return odd(value) and is_mixed


def marked_up(candidate: Candidate) -> bool:
    """The text of an element whose name is that of a secret."""
    if not _of_secret(candidate):
        return False
    value = candidate.value
    name = candidate.match.group()[:4].lower()
    if name.startswith(("tok", "key", "secr")):
        return " " not in value and opaque(candidate)
    if " " in value and "phrase" not in candidate.match.group()[:12].lower():
        return False
    return handed(candidate) and not _is_version(value)


def paired(candidate: Candidate) -> bool:
    """The value of a pair whose other half is the name of a secret."""
    if not _of_secret(candidate):
        return False
    name = candidate.match.group()[:4].lower()
    if name.startswith(("pass", "pwd", "pw")):
        return handed(candidate)
    if name.startswith("otp"):
        return 4 <= len(candidate.value) <= 10
    return " " not in candidate.value and opaque(candidate)


def member(candidate: Candidate) -> bool:
    """A value in an object or an array that is called one of secrets."""
    return " " not in candidate.value and odd(candidate.value)


def stored(candidate: Candidate) -> bool:
    """A value in the data of an object that keeps secrets, whatever its name."""
    return len(candidate.value) >= 4 and not _elsewhere(candidate.value)


def opaque(candidate: Candidate) -> bool:
    """A value as random as a token, and not an id that names something."""
    value = candidate.value
    if len(value) < 12 or _is_version(value):
        return False
    return _is_token(value) and not _is_named(value)


def link(candidate: Candidate) -> bool:
    """The last step of a link that admits its holder."""
    value = candidate.value
    return mixed(candidate) and not _is_named(value)


def session_token(candidate: Candidate) -> bool:
    """The value of a session or a form that opens it."""
    value = candidate.value
    if _PATTERNS.NUMBERED_ID.fullmatch(value):
        return False
    return mixed(candidate) and not _is_named(value)


def _is_named(value: str) -> bool:
    """Whether it is a UUID, or made of words between its separators."""
    if _PATTERNS.UUID.search(value):
        return True
    return bool(_PATTERNS.OF_WORDS.fullmatch(value))


def _is_prose(value: str) -> bool:
    """Whether several words are a sentence, and not chosen as a secret."""
    words_of_value = value.lower().split()
    if len(words_of_value) > 8 or value.endswith((".", "?", ":")):
        return True
    return not _SENTENCE_WORDS.isdisjoint(words_of_value)


def webhook(candidate: Candidate) -> bool:
    """The end of a link to which anybody may write; not one of documentation."""
    value = candidate.value
    if len(_DIGIT.findall(value)) < 2 or entropy(value) < 2.8:
        return False
    return issued(candidate)


def sasl(candidate: Candidate) -> bool:
    """Base64 of a user and a password, each behind a zero byte (RFC 4616)."""
    value = candidate.value
    try:
        plain = base64.b64decode(value + "=" * (-len(value) % 4))
    except ValueError:
        return False
    return plain.count(b"\0") >= 2


def piped_word(candidate: Candidate) -> bool:
    """A password behind the command that sends it; not the name of a test."""
    value = candidate.value
    return odd(value) and "/" not in value


def handed_token(candidate: Candidate) -> bool:
    """A token in quotes where a function takes one."""
    return " " not in candidate.value and opaque(candidate)


def paired_by_name(candidate: Candidate) -> bool:
    """The value that a call gives to a name of a secret."""
    if not _of_secret(candidate):
        return False
    if "pass" in candidate.match.group().lower():
        return handed(candidate)
    return handed_token(candidate)


def one_time(candidate: Candidate) -> bool:
    """A code that was sent to somebody; no year, and not one digit again and again."""
    value = candidate.value
    if len(set(value)) == 1 or not _DIGIT.search(value):
        return False
    if re.fullmatch("(?:19|20)[0-9]{2}", value):
        return False
    link = candidate.text[candidate.match.start() : candidate.start].lower()
    if link.startswith(("pin", "mfa", "2fa")) and not re.search("[:=：是]| is ", link):
        return False
    return not re.match(
        r" ?(?:ms|s|sec|minutes?|hours?|digits?|bytes|attempts|%)\b",
        candidate.after(10),
    )


def aligned(candidate: Candidate) -> bool:
    """A value in the column next to its name."""
    if not _of_secret(candidate):
        return False
    name = candidate.match.group()[:3].lower()
    if name in ("key", "tok", "sec"):
        return opaque(candidate) and not _NO_KEY.search(_before_name(candidate, 16))
    return alone(candidate) and "/" not in candidate.value

"""Checks of personal data: names, and addresses of houses, mail and machines."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from refold.redaction.checks import Candidate
from refold.redaction.checks.names import patterns, words

_PATTERNS = patterns("people")
_YEAR = re.compile(r"(?:19|20)[0-9]{2}(?:-[0-9]{2,4})? ")
# The text after a street: a town behind a comma, or a postal code at the end.
_TOWN = re.compile(r", |[0-9]$")
_CAPITAL = re.compile(r" [A-Z\u00c0-\u00de]")
# A text without any of these has no login to a machine.
_LOGINS = (":", "ssh", "scp", "sftp", "rsync", "mosh")
# Domains in the names of algorithms.
_OF_ALGORITHMS = ("openssh.com", "libssh.org")
_KNOWN_TO_ALL = frozenset(words("known_to_all"))
# Texts that the patterns before an address need, in lower case.
_BEFORE_FOUNDATION = ("foundation", "office at")
_INTRODUCES = words("introduces")
_RANKS = words("ranks")


def _has_any(lower: str, needed: tuple[str, ...]) -> bool:
    """Whether a text in lower case has one of the texts that a pattern needs."""
    return any(map(lower.__contains__, needed))


def person(candidate: Candidate) -> bool:
    """Words with capitals, none of which is a word of machines or firms."""
    return not _PATTERNS.NOBODY.fullmatch(candidate.value)


def person_zh(candidate: Candidate) -> bool:
    """A Chinese name; not the description of a field for one in a form."""
    return not _PATTERNS.NOT_A_NAME.search(candidate.value)


def street(candidate: Candidate) -> bool:
    """Number and street; words in small letters need more that shows an address."""
    value = candidate.value
    before = candidate.before(40)
    name = candidate.text[candidate.start : candidate.match.start()]
    # A town or a postal code follows, or the address has several lines.
    is_whole = "\n" in value or bool(_TOWN.search(value, len(name)))
    lower = f"{before}{name}".lower()
    if _has_any(lower, _BEFORE_FOUNDATION) and _PATTERNS.OF_A_FOUNDATION.search(before):
        return False
    # These patterns are slow, and most lists of houses have none of their words.
    is_introduced = (
        _has_any(lower, _INTRODUCES) and _PATTERNS.SPOKEN.search(before) is not None
    )
    # A list of years and names is no list of houses.
    if _YEAR.match(value) and not (is_whole or is_introduced):
        return False
    if _has_any(lower, _RANKS) and _PATTERNS.RANKED.search(f"{before}{name}"):
        return is_whole and "all" in name
    if _CAPITAL.search(name):
        return True
    return (is_whole or is_introduced) and not _PATTERNS.COMMON.search(name)


def han_address(candidate: Candidate) -> bool:
    """A text after a Chinese word for an address that names a place."""
    value = candidate.value
    return bool(_PATTERNS.PLACE.search(value)) and not _PATTERNS.NO_PLACE.match(value)


def email(candidate: Candidate) -> bool:
    """An address; not a file, a package version, a call, or a login to a machine."""
    local, _, domain = candidate.value.replace("%40", "@").rpartition("@")
    *_, name, top = domain.split(".")
    if local == "git" or (".." in local and "..." not in local):
        return False
    if domain in _OF_ALGORITHMS or _PATTERNS.NO_DOMAIN.fullmatch(top):
        return False
    # Mail services with a number for a name are called like 163.com.
    of_service = domain.count(".") == 1 and top in ("com", "net", "cn")
    if name.isdigit() and not of_service:
        return False
    if candidate.after(1) in ("(", "_"):
        return False
    return not _is_login(candidate.before(64))


def _is_login(before: str) -> bool:
    """Whether the text before an address makes it a login to a machine."""
    if not any(word in before for word in _LOGINS):
        return False
    return bool(_PATTERNS.LOGIN.search(before))


def wechat(candidate: Candidate) -> bool:
    """A WeChat id; one of letters alone must be called an id."""
    before = candidate.text[candidate.match.start() : candidate.start]
    has_sign = re.search("[0-9_]", candidate.value)
    if not has_sign and not _PATTERNS.CALLED_AN_ID.search(before):
        return False
    return wechat_of_key(candidate)


def wechat_of_key(candidate: Candidate) -> bool:
    """The text under a key for a WeChat id; no setting, no id of an app."""
    return not _PATTERNS.NO_WECHAT_ID.fullmatch(candidate.value)


def ipv4(candidate: Candidate) -> bool:
    """An address of a machine; not a version, this machine, or none at all."""
    before = candidate.before(24)
    is_url = before.endswith(("://", "@", "//"))
    if not is_url and _PATTERNS.VERSION.search(before):
        return False
    return _of_machine(candidate, is_url=is_url)


def _of_machine(candidate: Candidate, *, is_url: bool = False) -> bool:
    """Whether it is the address of another machine; a suffix makes it a version."""
    try:
        address = IPv4Address(candidate.value)
    except AddressValueError:
        return False
    if address.is_loopback or address.is_unspecified:
        return False
    return is_url or not _PATTERNS.SUFFIX.match(candidate.after(8))


def ipv6(candidate: Candidate) -> bool:
    """An address with enough groups that it is no time and no name in code."""
    value = candidate.value
    try:
        address = IPv6Address(value)
    except AddressValueError:
        return False
    if address.is_loopback or address.is_unspecified:
        return False
    groups = [group for group in value.split(":") if group]
    has_enough = len(groups) >= 3 or (len(groups) == 2 and len(groups[0]) >= 3)
    is_code = not re.search("[0-9]", value) or candidate.after(1) in ("(", "<", "_")
    return has_enough and not is_code


def person_ip(candidate: Candidate) -> bool:
    """An address that belongs to a person; no network, no well-known address."""
    value = candidate.value
    is_argument = re.search(r"[\w\])]\(b?[\"']?$", candidate.before(4))
    if is_argument or value.endswith(".0") or value in _KNOWN_TO_ALL:
        return False
    return ipv6(candidate) if ":" in value else _of_machine(candidate)


def mac(candidate: Candidate) -> bool:
    """An address of a network card; not all of one digit."""
    digits = candidate.value.replace("-", ":").lower().replace(":", "")
    return len(set(digits)) > 1


def person_cell(candidate: Candidate) -> bool:
    """A cell in a column of names of people."""
    value = candidate.value
    if not _PATTERNS.NAME_CELL.fullmatch(value):
        return False
    return person(candidate) and person_zh(candidate)

"""Judges of what is a person's: names, and addresses of houses, mail and machines."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from refold.redaction.checks import Candidate
from refold.redaction.checks.names import patterns, words

_LIKE = patterns("people")
_YEAR = re.compile(r"(?:19|20)[0-9]{2}(?:-[0-9]{2,4})? ")
# Without any of these, nobody logs in.
_LOGINS = (":", "ssh", "scp", "sftp", "rsync", "mosh")
_KNOWN_TO_ALL = frozenset(words("known_to_all"))


def person(found: Candidate) -> bool:
    """Words that start with capitals, of which none is a word of machines or firms."""
    return not _LIKE.NOBODY.fullmatch(found.value)


def person_zh(found: Candidate) -> bool:
    """A Chinese name; not what a form says of the field for it."""
    return not _LIKE.NOT_A_NAME.search(found.value)


def street(found: Candidate) -> bool:
    """Number and street; where the words are small, more must say that it is one."""
    value, before = found.value, found.before(40)
    name = found.text[found.start : found.match.start()]
    whole = "\n" in value or bool(re.search(r", |[0-9]$", value[len(name) :]))
    if _LIKE.OF_A_FOUNDATION.search(before):
        return False
    # Whoever lists years and names lists no houses.
    if _YEAR.match(value) and not (whole or _LIKE.SPOKEN.search(before)):
        return False
    if _LIKE.RANKED.search(f"{before}{name}"):
        return whole and "all" in name
    if re.search(r" [A-Z\u00c0-\u00de]", name):
        return True
    told = whole or bool(_LIKE.SPOKEN.search(before))
    return told and not _LIKE.COMMON.search(name)


def han_address(found: Candidate) -> bool:
    """What is called an address in Chinese, and names a place."""
    value = found.value
    return bool(_LIKE.PLACE.search(value)) and not _LIKE.NO_PLACE.match(value)


def email(found: Candidate) -> bool:
    """An address; not a file, a package version, a call, or the user of a machine."""
    local, _, domain = found.value.replace("%40", "@").rpartition("@")
    *_, name, top = domain.split(".")
    known = name.isdigit() and domain.count(".") == 1 and top in ("com", "net", "cn")
    return not (
        local == "git"
        or (".." in local and "..." not in local)
        or domain in ("openssh.com", "libssh.org")  # names of algorithms
        or _LIKE.NO_DOMAIN.fullmatch(top)
        or (name.isdigit() and not known)
        or found.after(1) in ("(", "_")
        or _logs_in(found.before(64))
    )


def _logs_in(before: str) -> bool:
    """Whether what stands before an address makes it the user of a machine."""
    return any(word in before for word in _LOGINS) and bool(_LIKE.LOGIN.search(before))


def wechat(found: Candidate) -> bool:
    """The id of somebody in WeChat: of letters alone, it must be called an id."""
    said = found.text[found.match.start() : found.start]
    told = re.search("[0-9_]", found.value) or _LIKE.CALLED_AN_ID.search(said)
    return bool(told) and wechat_of_key(found)


def wechat_of_key(found: Candidate) -> bool:
    """The text under a key that is called a WeChat id; no setting, no id of an app."""
    return not _LIKE.NO_WECHAT_ID.fullmatch(found.value)


def ipv4(found: Candidate) -> bool:
    """An address of a machine; not a version, this machine, or none at all."""
    before = found.before(24)
    url = before.endswith(("://", "@", "//"))
    return (url or not _LIKE.VERSION.search(before)) and _of_machine(found, url=url)


def _of_machine(found: Candidate, *, url: bool = False) -> bool:
    try:
        address = IPv4Address(found.value)
    except AddressValueError:
        return False
    version = not url and _LIKE.SUFFIX.match(found.after(8))
    return not (address.is_loopback or address.is_unspecified or version)


def ipv6(found: Candidate) -> bool:
    """An address with enough groups that it is no time and no name in code."""
    value = found.value
    try:
        address = IPv6Address(value)
    except AddressValueError:
        return False
    groups = [group for group in value.split(":") if group]
    telling = len(groups) >= 3 or (len(groups) == 2 and len(groups[0]) >= 3)
    code = not re.search("[0-9]", value) or found.after(1) in ("(", "<", "_")
    return telling and not (code or address.is_loopback or address.is_unspecified)


def person_ip(found: Candidate) -> bool:
    """An address that is said to be somebody's; no network, and none that all know."""
    value, before = found.value, found.before(4)
    called = re.search(r"[\w\])]\(b?[\"']?$", before)
    if called or value.endswith(".0") or value in _KNOWN_TO_ALL:
        return False
    return ipv6(found) if ":" in value else _of_machine(found)


def mac(found: Candidate) -> bool:
    """An address of a card; not all of one digit, and no digest written with colons."""
    digits = found.value.replace("-", ":").lower().replace(":", "")
    return len(set(digits)) > 1

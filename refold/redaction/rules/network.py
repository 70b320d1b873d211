"""Pack ``network``: addresses of machines; those of people are in ``pii-common``."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from refold.redaction.checks import Candidate
from refold.redaction.rules.rule import load, pattern, told

_VERSION = pattern(__name__, "_VERSION")
_SUFFIX = pattern(__name__, "_SUFFIX")


_KNOWN_TO_ALL = (
    "1.2.3.4",
    "8.8.8.8",
    "8.8.4.4",
    "1.1.1.1",
    "9.9.9.9",
    "114.114.114.114",
)


def ipv4(found: Candidate) -> bool:
    """An address of a machine; not a version, this machine, or none at all."""
    before = found.before(24)
    url = before.endswith(("://", "@", "//"))
    return (url or not _VERSION.search(before)) and _of_machine(found, url=url)


def _of_machine(found: Candidate, *, url: bool = False) -> bool:
    try:
        address = IPv4Address(found.value)
    except AddressValueError:
        return False
    version = not url and _SUFFIX.match(found.after(8))
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


NETWORK = load(globals(), "network")


_OF_PEOPLE = partial(replace, score=0.45, validator=person_ip, priority=46)
_SHOWN = told(globals(), "of_people")
# Of those, what is found where nothing else is asked for.
NETWORK_IN_CONTEXT = (
    *load(globals(), "network_in_context"),
    _OF_PEOPLE(NETWORK[0], id="ip.v4.context", **_SHOWN["ip.v4.context"]),
    _OF_PEOPLE(
        NETWORK[1],
        id="ip.v6.context",
        **_SHOWN["ip.v6.context"],
        # No time, and no name in code: those would be looked at in every log.
        then=r"(?:[0-9a-f]{3,4}:|:[0-9a-f])",
        before=rf"{NETWORK[1].before}|(?<=[^0-9A-Fa-f:.]:)[0-9A-Fa-f]{{1,4}}",
        pattern=r"(?i)(?=:[0-9a-f]{3,4}:|::[0-9a-f])" + NETWORK[1].pattern,
    ),
)

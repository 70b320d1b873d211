"""Pack ``network``: addresses of machines."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from refold.redaction.checks import Candidate
from refold.redaction.rules.rule import QUOTE, Rule

_VERSION = re.compile(
    r"(?i)(?:(?<![a-z])(?:v|ver|version|release[ds]?|build|chrom(?:e|ium)|firefox|safari"
    r"|opera|edg[ea]?|oid|python|node|openssl|asn\.?1|section|tag|upgrade[ds]?|pkg)s?"
    rf"(?:{QUOTE}|[ \t:=/@^~<>(]|is){{0,5}}|[\w)][=@/~^-]|[<>~^]=? ?|[0-9A-Za-z_-])$"
)
_SUFFIX = re.compile(
    r"[-+~](?:[0-9]|alpha|beta|rc|dev|post|el[0-9]|ubuntu|deb)|\.[0-9A-Za-z]"
)


def ipv4(found: Candidate) -> bool:
    """An address of a machine; not a version, this machine, or none at all."""
    try:
        address = IPv4Address(found.value)
    except AddressValueError:
        return False
    before = found.before(24)
    url = before.endswith(("://", "@", "//"))
    version = not url and (_VERSION.search(before) or _SUFFIX.match(found.after(8)))
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


def mac(found: Candidate) -> bool:
    """An address of a card; not all of one digit, and no digest written with colons."""
    digits = found.value.replace("-", ":").lower().replace(":", "")
    return len(set(digits)) > 1


NETWORK = (
    Rule(
        id="ip.v4",
        type="IP",
        gate=(".",),
        before=r"(?<![0-9A-Za-z_.])[0-9]{1,3}|(?<=\\[nrtbf])[0-9]{1,3}",
        reach=3,
        lead="[0-9]",
        then=r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]",
        pattern=r"\.(?:[0-9]{1,3}\.){2}[0-9]{1,3}(?![0-9A-Za-z_])",
        validator=ipv4,
        priority=46,
    ),
    Rule(
        id="ip.v6",
        type="IP",
        gate=(":",),
        before=r"(?<![0-9A-Za-z:.])[0-9A-Fa-f]{1,4}|(?<=\\[nrtbf])[0-9A-Fa-f]{1,4}",
        reach=4,
        lead="[0-9a-f]",
        then=r"(?:[0-9a-f]{1,4}:[0-9a-f]{0,4}:|:)[0-9a-f]{0,4}",
        pattern=r"(?::[0-9A-Fa-f]{1,4}){0,7}(?:::(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,6})?)?"
        r"(?<=[0-9A-Fa-f:])(?![0-9A-Za-z:])(?!\.[0-9])",
        validator=ipv6,
        priority=46,
    ),
    Rule(
        id="mac",
        type="MAC",
        gate=(":", "-"),
        before=r"(?<![0-9A-Za-z:\-])[0-9A-Fa-f]{2}|(?<=\\[nrtbf])[0-9A-Fa-f]{2}",
        reach=2,
        lead="[0-9a-f]",
        then=r"[0-9a-f]{2}[:\-][0-9a-f]{2}[:\-][0-9a-f]{2}[:\-]",
        pattern=r"(?:(?::[0-9A-Fa-f]{2}){5}|(?:-[0-9A-Fa-f]{2}){5})(?![0-9A-Za-z:\-])",
        validator=mac,
        priority=47,
    ),
)

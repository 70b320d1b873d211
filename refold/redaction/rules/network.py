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
        examples=(
            "from «203.0.113.7» port 22",
            "服务器IP是«192.168.1.100»",
            "http://«10.0.12.7»:8080/",
        ),
        counter_examples=(
            "version 1.2.3.4 released, v1.2.3.4, chrome/126.0.6478.126",
            "127.0.0.1 0.0.0.0",
            "1.2.3.4.5 and 1.2.3.400",
            "pkg==1.2.3.4, pkg-1.2.3.4, 1.2.3.4-rc1",
        ),
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
        examples=(
            "IPv6: «2001:0db8:85a3:0000:0000:8a2e:0370:7334»",
            "服务器 «2001:db8::1» 上线",
            "[«fe80::1ff:fe23:4567:890a»]:80",
        ),
        counter_examples=(
            "12:34:56",
            "::1 and ::",
            "std::vector, abc::def",
            "d4:1d:8c:d9:8f:00:b2:04:e9:80",
        ),
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
        examples=("MAC地址«AA:BB:CC:DD:EE:0F»", "ether «0a-00-27-1c-00-0e» up"),
        counter_examples=(
            "00:00:00:00:00:00",
            "SHA1 d4:1d:8c:d9:8f:00:b2:04:e9:80",
            "2024-01-02-03-04-05",
        ),
    ),
)

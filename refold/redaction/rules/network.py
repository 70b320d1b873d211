"""Pack ``network``: addresses of machines; those of people are in ``pii-common``."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from refold.redaction.checks import Candidate
from refold.redaction.rules.rule import QUOTE, load, told

_VERSION = re.compile(
    r"(?i)(?:(?<![a-z])(?:v|ver|version|release[ds]?|build|chrom(?:e|ium)|firefox|safari"
    r"|opera|edg[ea]?|oid|python|node|openssl|asn\.?1|section|tag|upgrade[ds]?|pkg)s?"
    rf"(?:{QUOTE}|[ \t:=/@^~<>(]|is){{0,5}}|[\w)][=@/~^-]|[<>~^]=? ?|[0-9A-Za-z_-])$"
)
# Who speaks of an address that is a person's, or of one that came to a machine.
_FROM = (
    r"(?i:log(?:ged|ging)?[ _\-]?(?:in|on)|sign(?:ed|ing)?[ _\-]?in"
    r"|connect(?:ion|ed|s)?|request(?:s|ed)?|access(?:ed)?|session|visit(?:s|or|ed)?|call(?:ed|s)?|query"
    r"|attempts?|accepted|failed|password|user|packets?|traffic|spam|attack(?:s|ed)?"
    r"|post(?:s|ed)?"
    r"|received|banned|blocked|order(?:ed)?)[^\n]{0,40}[ _](?:from|by|via)"
)
_WHOSE = (
    r"(?i:client|remote|peer|src|source|origin|user|visitor|customer|caller|host|sender"
    r"|login|last|real|public|external|my|your|his|her|their|x-forwarded|forwarded)"
)
# After these, what may stand between a name and its value goes on.
_GAP = r"[^\n0-9A-Za-z]{0,8}(?:%[0-9]{2})?[^\n0-9A-Za-z]{0,4}"
_WORD = r"(?:(?<![A-Za-z])|(?<=\\[nrtbf]))"
_IP_WORDS = (
    rf"{_WORD}(?:{_WHOSE}[ _\-]?(?i:ip(?:[ _\-]?addr(?:ess)?)?)(?![A-Za-z]){_GAP}"
    rf"|{_WHOSE}[ _\-]?(?i:addr)(?:ess(?= \Z))?|(?i:address)(?= \Z)"
    r"|(?i:peer|client|visitor|src|source|saddr|attacker)(?=[ =:]{1,2}\Z)"
    r"|(?i:ip(?:[ _\-]?v[46])?(?:[ _\-]?addr(?:ess(?:es)?)?)?s?|inet6?|rhost|raddr"
    r"|x-(?:forwarded-for(?:[^A-Za-z\n]{0,40}[, ])?|(?:real|client|originating)-ip)"
    rf"|forwarded: ?for|cf-connecting-ip)|{_FROM})(?![A-Za-z])"
    r"|(?<=[a-z])(?<!rivate)(?<!luster)(?<!ateway)(?<!ervice)(?<!pod)"
    r"(?:Ip|IP)(?:Addr(?:ess)?)?|(?:(?<=emote)|(?<=lient))Addr(?:ess)?"
    r"|(?i:ip)?(?:地址|来自|来源|登[录陆]|源|属地|客户端|服务器|主机|访[问客]|请求|屏蔽了?|封禁了?)(?i:ip)?"
)
_SUFFIX = re.compile(
    r"[-+~](?:[0-9]|alpha|beta|rc|dev|post|el[0-9]|ubuntu|deb)|\.[0-9A-Za-z]"
)


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


_OF_PEOPLE = partial(
    replace, score=0.45, context=_IP_WORDS, validator=person_ip, priority=46
)
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

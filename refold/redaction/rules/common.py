"""Pack ``pii-common``: addresses, phones, cards and accounts of people anywhere."""

import re
from itertools import groupby

from refold.redaction.checks import Candidate
from refold.redaction.checks.numbers import (
    LENGTHS,
    card,
    card_in_context,
    encoded,
    iban,
    international,
    nino,
    phone_shape,
)
from refold.redaction.rules.address import ADDRESS_EN
from refold.redaction.rules.network import NETWORK_IN_CONTEXT
from refold.redaction.rules.rule import (
    EDGE,
    END,
    FROM,
    START,
    STOP,
    TO,
    InContext,
    Rule,
)

_EXTENSION = r"(?: ?(?:x|ext\.?|#) ?[0-9]{1,6})?"
_NUMBER = (
    r"(?:(?<![0-9A-Za-z])|(?<=\\[nrtbf]))(?<![0-9]\.)[+(]{0,2}[0-9]"
    rf"(?:[ .\-()/]{{0,3}}[0-9]){{6,14}}{_EXTENSION}(?![0-9A-Za-z])"
)

_PHONE_WORDS = (
    r"(?i:(?:tele|cell)?phones?|mobiles?)(?![a-z])"
    r"|(?<![A-Za-z])(?i:tel|fax|cell|mob|whatsapp|hotline)(?![a-z])"
    r"|(?<=[a-z])(?:Tel|Fax|Cell)(?![a-z])"
    r"|(?i:t[eé]l[eé]f[oó]n[eo]?)(?![a-z])|手机|电话|座机|传真|热线|联系方式|联系号码"
)
_PHONE_VERBS = (
    r"(?<![A-Za-z])(?i:desk|office|direct|home|work)(?=:)"
    r"|(?<![A-Za-z])(?i:call(?:ed)?|reach|text|dial|ring|contact|answer(?:ing)?"
    r"|messages?|sms|available|reachable)(?: [a-z]{1,8}){0,2} (?:at|on|to|from)(?!"
    r"[a-z])"
    r"|(?<![A-Za-z])(?i:(?:my|your|his|her|our|their) registered)(?![a-z])"
)
_CARD_WORDS = (
    r"(?<![A-Za-z])(?i:(?:credit|debit|bank|visa|payment)?[ _-]?cards?)(?![a-z])"
    r"|(?<=[a-z])Cards?(?![a-z])"
    r"|(?<![A-Za-z0-9])(?i:cc|visa|mastercard|amex|unionpay)(?![a-z])"
    r"|卡号|银行卡|信用卡|借记卡|储蓄卡|[工农中建交招]行卡|银行账[号户]|银行帐[号户]"
)

_LOGIN = re.compile(
    r"[A-Za-z]:(?:\\*/){2}(?:(?![/@])[!-~])*$"
    r"|(?<![\w.])(?:ssh|scp|sftp|rsync|mosh|autossh)[ \t](?:(?![|;&\n])[ -~])*$"
)
# Without any of these, nobody logs in.
_LOGINS = (":", "ssh", "scp", "sftp", "rsync", "mosh")
# Ends of file names, of units and of inner networks that look like top level domains.
_NO_DOMAIN = re.compile(
    r"(?i)png|jpe?g|gif|svg|webp|ico|css|scss|less|jsx?|tsx?|mjs|json|html?|map|min|tgz"
    r"|gz|bz|xz|tar|whl|lock|toml|ya?ml|xml|txt|csv|log|cfg|ini|conf|exe|dll|bin|jar"
    r"|utf|iso|service|socket|timer|target|mount|slice|scope|path"
    r"|internal|local|localdomain|localhost|lan|svc|cluster|py|sh"
)


def email(found: Candidate) -> bool:
    """An address; not a file, a package version, a call, or the user of a machine."""
    local, _, domain = found.value.replace("%40", "@").rpartition("@")
    *_, name, top = domain.split(".")
    known = name.isdigit() and domain.count(".") == 1 and top in ("com", "net", "cn")
    return not (
        local == "git"
        or (".." in local and "..." not in local)
        or domain in ("openssh.com", "libssh.org")  # names of algorithms
        or _NO_DOMAIN.fullmatch(top)
        or (name.isdigit() and not known)
        or found.after(1) in ("(", "_")
        or _logs_in(found.before(64))
    )


def _logs_in(before: str) -> bool:
    """Whether what stands before an address makes it the user of a machine."""
    return any(word in before for word in _LOGINS) and bool(_LOGIN.search(before))


def _iban_pattern() -> str:
    """Each country with its own length, so that no word after it is taken for more."""
    lengths = groupby(
        sorted(LENGTHS, key=lambda c: (LENGTHS[c], c)), LENGTHS.__getitem__
    )
    forms = [
        rf"(?:{'|'.join(countries)})[0-9]{{2}}(?:[ \-]?[0-9A-Za-z]){{{length - 4}}}"
        for length, countries in lengths
    ]
    return rf"(?i:{'|'.join(forms)})"


PII_COMMON = (
    Rule(
        id="email",
        type="EMAIL",
        gate=("@", "%40"),
        before=r"(?:(?<!\\)|(?<=\\)(?![nrtbfu]))"
        r"(?:[A-Za-z0-9_][A-Za-z0-9._%+\-]{0,63}+|[\u4e00-\u9fff]{1,6}+)",
        reach=64,
        # Of ASCII, only what an address may end with before its sign.
        lead=r"[^\x00-\x24\x26-\x2a\x2c\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\x7f]",
        then=r"[a-z0-9][a-z0-9\-.]{3}",
        pattern=r"(?:@|%40)(?:[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?\.){1,8}"
        r"[A-Za-z]{2,24}",
        validator=email,
        priority=55,
    ),
    Rule(
        id="phone.international",
        type="PHONE",
        digits=8,
        gate=("+",),
        pattern=r"(?:(?<![0-9A-Za-z+])|(?<=\\[nrtbf]))\+[1-9](?:[ .\-()/]{0,3}"
        r"[0-9]){7,14}"
        rf"{_EXTENSION}(?![0-9A-Za-z])(?!\.[0-9])",
        validator=international,
        priority=40,
    ),
    Rule(
        id="phone.encoded",
        type="PHONE",
        gate=("%2b", "%252b"),
        then="[1-9][0-9]{7}",
        pattern=r"%(?:25)?2[Bb][1-9][0-9]{7,14}(?![0-9A-Za-z])(?!\.[0-9])",
        validator=encoded,
        priority=40,
    ),
    Rule(
        id="phone.us",
        type="PHONE",
        digits=10,
        shape=rf"{EDGE}(?:(?:\+|00)?1[ .\-]?)?"
        r"(?:\([2-9][0-9]{2}\)[ .\-]?|[2-9][0-9]{2}[.\-])[0-9]{3}[ .\-][0-9]{4}",
        pattern=rf"{FROM}(?:(?:\+|00)?1[ .\-]?)?"
        r"(?:\([2-9][0-9]{2}\)[ .\-]?[0-9]{3}[ .\-][0-9]{4}"
        r"|[2-9][0-9]{2}([.\-])[0-9]{3}\1[0-9]{4})"
        rf"{_EXTENSION}{TO}",
        priority=40,
    ),
    InContext(
        id="phone.context",
        type="PHONE",
        digits=7,
        gate=(
            *("phone", "mobile", "tel", "fax", "cell", "mob", "whatsapp", "hotline"),
            *("手机", "电话", "座机", "传真", "热线", "联系方式", "联系号码"),
        ),
        context=_PHONE_WORDS,
        pattern=_NUMBER,
        validator=phone_shape,
        priority=35,
    ),
    InContext(
        id="phone.reached",
        type="PHONE",
        digits=7,
        gate=(
            # With the space that follows: as keys, these words stand everywhere.
            *("call ", "called ", "reach ", "text ", "dial ", "ring ", "contact "),
            *("answer ", "answering ", "message ", "messages ", "sms ", "available "),
            *("reachable ", "desk:", "office:", "direct:", "home:", "work:"),
            "registered",
        ),
        context=_PHONE_VERBS,
        in_keys=False,
        pattern=_NUMBER,
        validator=phone_shape,
        priority=35,
    ),
    Rule(
        id="phone.signature",
        type="PHONE",
        digits=7,
        gate=("office", "fax", "mobile", "cell", "home", "desk"),
        pattern=rf"{_NUMBER}(?=[ \-]{{1,2}}(?i:office|fax|mobile|cell|home|desk)"
        r"\s{0,3}(?:[\n,;\\]|\Z))",
        validator=phone_shape,
        priority=35,
    ),
    Rule(
        id="card",
        type="BANK_CARD",
        digits=13,
        shape=rf"{EDGE}[2-6][0-9]{{3}}(?:[ .\-]?[0-9]{{4}}[ .\-]?[0-9]{{4}}[ .\-]?[0-9]"
        r"|[ \-][0-9]{6}[ \-][0-9]{5})",
        pattern=rf"{FROM}(?:[2-6][0-9]{{12,18}}"
        r"|[2-6][0-9]{3}([ .\-])[0-9]{4}\1[0-9]{4}\1[0-9]{4}(?:\1?[0-9]{1,3})?"
        rf"|3[47][0-9]{{2}}([ \-])[0-9]{{6}}\2[0-9]{{5}}){TO}",
        validator=card,
        priority=45,
    ),
    InContext(
        id="card.context",
        type="BANK_CARD",
        digits=12,
        gate=(
            *("card", "cc", "visa", "amex", "unionpay", "卡号", "银行卡", "信用卡"),
            *("借记卡", "储蓄卡", "行卡", "银行账", "银行帐"),
        ),
        context=_CARD_WORDS,
        pattern=r"(?:(?<![0-9A-Za-z])|(?<=\\[nrtbf]))(?<![0-9]\.)[0-9]"
        r"(?:[ \-]?[0-9]){11,18}(?![0-9A-Za-z])",
        validator=card_in_context,
        priority=44,
    ),
    Rule(
        id="iban",
        type="IBAN",
        digits=6,
        shape=rf"{EDGE}[a-z]{{2}}[0-9]{{2}}(?:[ \-]?[0-9a-z]){{11}}",
        pattern=rf"(?:(?<![0-9A-Za-z])|(?<=\\[nrtbf])){_iban_pattern()}(?![0-9A-Za-z])",
        validator=iban,
        certain=True,
        priority=62,
    ),
    Rule(
        id="nino.uk",
        type="NATIONAL_ID",
        digits=6,
        shape=rf"[0-9]{{2}}[ \-]?[0-9]{{2}}[ \-]?[0-9]{{2}}[ \-]?[a-d]{STOP}",
        pattern=rf"{START}[A-CEGHJ-PRSTW-Z][A-CEGHJ-NPRSTW-Z](?:[ \-]?[0-9]{{2}}){{3}}"
        rf"[ \-]?[A-D]{END}",
        validator=nino,
        priority=51,
    ),
    InContext(
        id="nino.uk.context",
        type="NATIONAL_ID",
        digits=6,
        gate=("nino", "national insurance", "national_insurance", "ni number", "ni no"),
        context=r"(?<![A-Za-z])(?i:nino|national[ _-]insurance|ni(?= (?:no|num)))"
        r"(?i:[ _-]?(?:number|num|no\.?))?(?![a-z])",
        pattern=rf"{START}(?i:(?:QQ|[A-CEGHJ-PRSTW-Z][A-CEGHJ-NPRSTW-Z])"
        rf"(?:[ \-]?[0-9]{{2}}){{3}}(?:[ \-]?[A-D])?){END}",
        validator=nino,
        priority=51,
    ),
    *NETWORK_IN_CONTEXT,
    *ADDRESS_EN,
)

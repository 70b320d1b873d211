"""Pack ``pii-common``: addresses, phones, cards and accounts of people anywhere."""

import re
from itertools import groupby

from refold.redaction.checks import Candidate
from refold.redaction.checks.numbers import LENGTHS
from refold.redaction.rules.address import ADDRESS_EN
from refold.redaction.rules.network import NETWORK_IN_CONTEXT
from refold.redaction.rules.rule import load

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


_IBANS = _iban_pattern()

PII_COMMON = (*load(globals(), "pii_common"), *NETWORK_IN_CONTEXT, *ADDRESS_EN)

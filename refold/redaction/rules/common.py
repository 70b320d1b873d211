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
    phone_shape,
)
from refold.redaction.rules.rule import EDGE, FROM, TO, InContext, Rule

_EXTENSION = r"(?: ?(?:x|ext\.?|#) ?[0-9]{1,6})?"
_NUMBER = (
    r"(?:(?<![0-9A-Za-z])|(?<=\\[nrtbf]))(?<![0-9]\.)[+(]{0,2}[0-9]"
    rf"(?:[ .\-()/]{{0,3}}[0-9]){{6,14}}{_EXTENSION}(?![0-9A-Za-z])"
)

_PHONE_WORDS = (
    r"(?i:(?:tele|cell)?phones?|mobiles?)(?![a-z])"
    r"|(?<![A-Za-z])(?i:tel|fax|cell|mob|whatsapp|hotline)(?![a-z])"
    r"|(?<=[a-z])(?:Tel|Fax|Cell)(?![a-z])"
    r"|手机|电话|座机|传真|热线|联系方式|联系号码"
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
        or _LOGIN.search(found.before(64))
    )


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
        examples=(
            "write to «lin.wei+work@mail.example.org».",
            "邮箱«zhao_6@163.com»，谢谢",
            "«李雷@example.cn»",
            "?to=«ana%40example.net»&n=1",
            r'{"log": "ok\n«bob@example.com»"}',
        ),
        counter_examples=(
            "git@github.com:owner/repository.git",
            "icon@2x.png and lodash@4.17.21.tgz",
            "systemctl status getty@tty1.service",
            "@app.route and a @ b.T",
            "ssh://build@host.example.com/path",
            "ssh -p 22 build@host.example.com uptime",
            "postgres@db1.internal",
            "ada..lovelace@example.com",
            "z = x@weights.reshape(2, 3)",
        ),
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
        examples=(
            "«+44 20 7946 0958»",
            "reach me: «+14155550132».",
            "«+46 (0)8 928 571 38», «+1-984-555-0190x45»",
        ),
        counter_examples=("+1700000000", "a\n+20210012\n+1700000000000", "12:00+0800"),
    ),
    Rule(
        id="phone.encoded",
        type="PHONE",
        gate=("%2b", "%252b"),
        then="[1-9][0-9]{7}",
        pattern=r"%(?:25)?2[Bb][1-9][0-9]{7,14}(?![0-9A-Za-z])(?!\.[0-9])",
        validator=encoded,
        priority=40,
        examples=("?phone=«%2B14155550132»&n=1", "tel%3A«%2B8613912345678»"),
        counter_examples=("%2B12345678", "sig=a%2B14155550132b", "%2B1700000000"),
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
        examples=(
            "call «(415) 555-0132» now",
            "«415-555-0132»",
            "«1-415.555.0132 x12»",
        ),
        counter_examples=(
            "415 555 0132",
            "2023-415-555-0132",
            "192.168.1.1",
            "115-555-0132",
        ),
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
        examples=(
            "Phone: «0490 75 40 81»",
            "联系电话是«62345678»",
            ("mobile_no", "«4155550132»"),
        ),
        counter_examples=(
            "phone call on 2024-03-01",
            "telemetry: 4155550132",
            ("call_id", "4155550132"),
        ),
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
        examples=(
            "please call me at «467 3395»",
            "Desk: «5403926876»",
            "nothing came to my registered «668 5702»",
        ),
        counter_examples=("text at 1767294668088", "called 4155550132 times"),
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
        examples=("J. Doe\n«416 60 039» office\n«781 1704» fax",),
        counter_examples=("about 1234567 mobile users",),
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
        examples=(
            "«4111 1111 1111 1111»",
            "paid with «378282246310005»",
            "«5555-5555-5555-4444»",
        ),
        counter_examples=(
            "4111111111111112",
            "1767294668088",
            "0.4111111111111111",
            "订单号 36967851121945",
            "order no. 4111111111111111",
        ),
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
        examples=(
            "my card number is «630427373398»",
            "工行卡«6222021234567890»",
            ("card_no", "«6222021234567890»"),
        ),
        counter_examples=(
            "card 1767294668088",
            "cardinality 630427373398",
            ("card_id", "630427373398"),
        ),
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
        examples=(
            "pay «DE75512108001245126199» today",
            "«DE75 51-2108-0012-45126199»",
            "IBAN «GB33 BUKB 2020 1555 5555 55» or «fr7630006000011234567890189»",
        ),
        counter_examples=(
            "DE75512108001245126198",
            "ZZ75512108001245126199",
            "de75512108001245126199aa",
            "ba582c13-8418-47a5-ace4-e77176d0a228",
            "ea848747-44a7-4a86-ae23-d6d1c6458796",
        ),
    ),
)

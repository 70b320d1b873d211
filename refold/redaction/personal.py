"""Rules for what says who somebody is: addresses, phones, cards, identity numbers."""

import re

from refold.redaction.numbers import (
    card,
    card_in_context,
    id_card,
    international,
    mobile,
    phone_shape,
    student_number,
)
from refold.redaction.rule import Candidate, Rule

# Not inside a longer number, a word, a fraction or a chain of numbers.
_FROM = r"(?<![0-9A-Za-z])(?<![0-9][.\-])"
_TO = r"(?![0-9A-Za-z])(?![.\-][0-9])"
_EXTENSION = r"(?: ?(?:x|ext\.?|#) ?[0-9]{1,6})?"
_NUMBER = (
    r"(?<![0-9A-Za-z])(?<![0-9]\.)[+(]{0,2}[0-9](?:[ .\-()/]{0,3}[0-9]){6,14}"
    rf"{_EXTENSION}(?![0-9A-Za-z])"
)
_CHINA = r"(?:\(?(?:\+|00)?86\)?[ \-.]{0,2})?"

_PHONE_WORDS = (
    r"(?i:(?:tele|cell)?phones?|mobiles?)(?![a-z])"
    r"|(?<![A-Za-z])(?i:tel|fax|cell|mob|whatsapp|hotline)(?![a-z])"
    r"|(?<=[a-z])(?:Tel|Fax|Cell)(?![a-z])"
    r"|(?<![A-Za-z])(?i:desk|office|direct)(?=:)"
    r"|(?<![A-Za-z])(?i:call|reach|text|dial|ring)(?: [a-z]{1,8}){0,2} (?:at|on)"
    r"(?![a-z])"
    r"|手机|电话|座机|传真|热线|联系方式|联系号码"
)
_CARD_WORDS = (
    r"(?<![A-Za-z])(?i:(?:credit|debit|bank|visa|payment)?[ _-]?cards?)(?![a-z])"
    r"|(?<=[a-z])Cards?(?![a-z])"
    r"|(?<![A-Za-z])(?i:cc|visa|mastercard|amex|unionpay)(?![a-z])"
    r"|卡号|银行卡|信用卡|借记卡|储蓄卡|[工农中建交招]行卡|银行账[号户]|银行帐[号户]"
)
_ID_WORDS = (
    r"身份证|证件"
    r"|(?<![A-Za-z])(?i:id[ _-]?(?:card|no|num|number)|identity(?:[ _-]?card)?"
    r"|(?:national|citizen|resident)[ _-]?id|sfz)(?![a-z])"
    r"|(?<=[a-z])(?:IdCard|IDCard|IdNo|IdNumber)(?![a-z])"
)
_STUDENT_WORDS = (
    r"学号|学生证|学籍|学工号|准考证|考生号"
    r"|(?i:student|stu|matriculation|matric|enrol?lment)[ _-]?"
    r"(?i:ids?|no|num|numbers?|card|code)(?![a-z])"
)

_LOGIN = re.compile(r"[A-Za-z]:(?:\\*/){2}(?:(?![/@])[!-~])*$")
# Ends of file names and of units that look like top level domains.
_NO_DOMAIN = re.compile(
    r"(?i)png|jpe?g|gif|svg|webp|ico|css|scss|less|jsx?|tsx?|mjs|json|html?|map|min|tgz"
    r"|gz|bz|xz|tar|whl|lock|toml|ya?ml|xml|txt|csv|log|cfg|ini|conf|exe|dll|bin|jar"
    r"|utf|iso|service|socket|timer|target|mount|slice|scope|path"
)


def email(found: Candidate) -> bool:
    """An address; not a file, a package version, a call, or the user of a URL."""
    local, _, domain = found.value.replace("%40", "@").rpartition("@")
    *_, name, top = domain.split(".")
    known = name.isdigit() and domain.count(".") == 1 and top in ("com", "net", "cn")
    return not (
        local == "git"
        or domain in ("openssh.com", "libssh.org")  # names of algorithms
        or _NO_DOMAIN.fullmatch(top)
        or (name.isdigit() and not known)
        or found.after(1) in ("(", "_")
        or _LOGIN.search(found.before(64))
    )


PERSONAL = (
    Rule(
        id="email",
        type="EMAIL",
        gate=("@", "%40"),
        before=r"(?:(?<!\\)|(?<=\\)(?![nrtbfu]))"
        r"(?:[A-Za-z0-9_][A-Za-z0-9._%+\-]{0,63}|[\u4e00-\u9fff]{1,6})",
        reach=64,
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
            "z = x@weights.reshape(2, 3)",
        ),
    ),
    Rule(
        id="phone.cn",
        type="PHONE",
        at="digits",
        digits=11,
        pattern=rf"{_FROM}{_CHINA}1[3-9][0-9](?:[ .\-]?[0-9]{{4}}){{2}}{_TO}",
        validator=mobile,
        priority=40,
        examples=(
            "手机号«13912345670»",
            "«139 1234 5670»或«159-8765-4321»",
            "«+86 139-1234-5670», «0086-13912345670»",
            "(«139.1234.5670»)",
        ),
        counter_examples=(
            "139123456701",
            "11912345670",
            "total 17179869184 bytes",
            "3.13912345670 and 13912345670.25",
            "deadbeef13912345670",
            "1767294668088",
        ),
    ),
    Rule(
        id="phone.cn.landline",
        type="PHONE",
        at="digits",
        digits=10,
        pattern=rf"{_FROM}{_CHINA}(?:\(0(?:10|2[0-9]|[3-9][0-9]{{2}})\) ?"
        r"|0(?:10|2[0-9]|[3-9][0-9]{2})-)[0-9]{3,4}[ \-]?[0-9]{4}(?:[\-转][0-9]{1,5})?"
        r"(?![0-9A-Za-z])(?!\.[0-9])",
        priority=40,
        examples=("座机«010-62345678»", "«(0755) 2345678»", "«021-62345678转802»"),
        counter_examples=("2010-62345678", "010-623", "v0.010-62345678"),
    ),
    Rule(
        id="phone.international",
        type="PHONE",
        at="digits",
        digits=8,
        gate=("+",),
        pattern=r"(?<![0-9A-Za-z+])\+[1-9](?:[ .\-()/]{0,3}[0-9]){7,14}"
        rf"{_EXTENSION}(?![0-9A-Za-z])(?!\.[0-9])",
        validator=international,
        priority=40,
        examples=(
            "«+44 20 7946 0958»",
            "reach me: «+14155550132».",
            "«+46 (0)8 928 571 38», «+1-984-555-0190x45»",
        ),
        counter_examples=(
            "+1700000000",
            "a\n+20210012\n+1700000000000",
            "12:00+0800",
        ),
    ),
    Rule(
        id="phone.us",
        type="PHONE",
        at="digits",
        digits=10,
        pattern=rf"{_FROM}(?:(?:\+|00)?1[ .\-]?)?"
        r"(?:\([2-9][0-9]{2}\)[ .\-]?[0-9]{3}[ .\-][0-9]{4}"
        r"|[2-9][0-9]{2}([.\-])[0-9]{3}\1[0-9]{4})"
        rf"{_EXTENSION}{_TO}",
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
    Rule(
        id="phone.context",
        type="PHONE",
        at="digits",
        digits=7,
        gate=(
            *("phone", "mobile", "tel", "fax", "cell", "mob", "whatsapp", "hotline"),
            *("call", "reach", "text", "dial", "ring", "desk", "office", "direct"),
            *("手机", "电话", "座机", "传真", "热线", "联系"),
        ),
        context=_PHONE_WORDS,
        pattern=_NUMBER,
        validator=phone_shape,
        priority=35,
        examples=(
            "Phone: «0490 75 40 81»",
            "please call me at «467 3395»",
            "联系电话是«62345678»",
            ("mobile_no", "«4155550132»"),
        ),
        counter_examples=(
            "phone call on 2024-03-01",
            "text at 1767294668088",
            "telemetry: 4155550132",
            ("call_id", "4155550132"),
        ),
    ),
    Rule(
        id="phone.signature",
        type="PHONE",
        at="digits",
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
        id="id.cn",
        type="ID_CARD",
        at="digits",
        digits=17,
        pattern=r"(?<![0-9A-Za-z])(?<![0-9][.\-])(?:1[1-5]|2[1-3]|3[1-7]|4[1-6]|5[0-4]|6[1-5]"
        r"|71|8[1-3])[0-9]{4}[ \-]?(?:18|19|20)[0-9]{2}[ \-]?[01][0-9][ \-]?[0-3][0-9]"
        r"[ \-]?[0-9]{3}[0-9Xx](?![0-9A-Za-z])(?![.\-][0-9])",
        validator=id_card,
        certain=True,
        priority=60,
        examples=("«11010119900307002X»", "«110101 1990 0307 0038»"),
        counter_examples=(
            "110101199003070020",
            "110101199002310038",
            "id a11010119900307002X",
        ),
    ),
    Rule(
        id="id.cn.context",
        type="ID_CARD",
        at="digits",
        digits=15,
        gate=("身份证", "证件", "id", "sfz"),
        context=_ID_WORDS,
        pattern=r"(?<![0-9A-Za-z])[1-9][0-9]{5}[ \-]?(?:[0-9]{6}[ \-]?[0-9]{3}"
        r"|[0-9]{4}[ \-]?[0-9]{4}[ \-]?[0-9]{3}[0-9Xx])(?![0-9A-Za-z])",
        priority=58,
        examples=(
            "身份证号：«110101199003071234»",
            "证件号码«110101900307456»",
            ("id_card", "«110101199003071234»"),
        ),
        counter_examples=("订单号110101199003071234", ("id", "110101199003071234")),
    ),
    Rule(
        id="student",
        type="STUDENT_ID",
        at="digits",
        digits=6,
        gate=(
            *("学号", "学生证", "学籍", "学工号", "准考证", "考生号"),
            *("stu", "matric", "enrol"),
        ),
        context=_STUDENT_WORDS,
        pattern=r"(?<![0-9A-Za-z])[A-Za-z]{0,3}(?:[0-9]{6,14}|[0-9]{4}-[0-9]{4,10})"
        r"(?![0-9A-Za-z])",
        validator=student_number,
        priority=50,
        examples=(
            "学号：«2021001234»",
            'studentId: "«U202112345»"',
            ("student_id", "«2021001234»"),
        ),
        counter_examples=("2021001234", "students: 2021001234", ("id", "2021001234")),
    ),
    Rule(
        id="card",
        type="BANK_CARD",
        at="digits",
        digits=13,
        pattern=rf"{_FROM}(?:[2-6][0-9]{{12,18}}"
        r"|[2-6][0-9]{3}([ .\-])[0-9]{4}\1[0-9]{4}\1[0-9]{4}(?:\1?[0-9]{1,3})?"
        rf"|3[47][0-9]{{2}}([ \-])[0-9]{{6}}\2[0-9]{{5}}){_TO}",
        validator=card,
        priority=45,
        examples=(
            "«4111 1111 1111 1111»",
            "paid with «378282246310005»",
            "«5555-5555-5555-4444»",
        ),
        counter_examples=("4111111111111112", "1767294668088", "0.4111111111111111"),
    ),
    Rule(
        id="card.context",
        type="BANK_CARD",
        at="digits",
        digits=12,
        gate=("card", "cc", "visa", "amex", "unionpay", "卡", "银行账", "银行帐"),
        context=_CARD_WORDS,
        pattern=r"(?<![0-9A-Za-z])(?<![0-9]\.)[0-9](?:[ \-]?[0-9]){11,18}"
        r"(?![0-9A-Za-z])",
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
)

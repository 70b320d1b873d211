"""Judges of numbers: checksums, dates, and shapes that are no phone and no card."""

from __future__ import annotations

import re

from refold.redaction.rule import Candidate

_NOT_DIGIT = re.compile(r"[^0-9]")
_DATE = re.compile(
    r"(?:(?:19|20)[0-9]{2}([-/. ]?)(?:0?[1-9]|1[0-2])\1(?:0?[1-9]|[12][0-9]|3[01])"
    r"|(?:0?[1-9]|[12][0-9]|3[01])([-/.])(?:0?[1-9]|1[0-2])\2(?:19|20)?[0-9]{2})"
    r"(?![0-9])"
)
_DECIMAL = re.compile(r"[0-9]+\.[0-9]+")
_EPOCH_MS = re.compile(r"1[4-9][0-9]{11}")

# Names of counts, times and places in files, whose values may look like a phone.
_COUNT = re.compile(
    r"(?i)(?:(?<![a-z])(?:ts|(?-i:t|n)|ns|ms|us|pid|seq|len|pos|max|min|sum|off|rss|vsz|tid"
    r"|tx|mem|rows?|epoch|allocated|[xyzijk]|(?!wechat)[a-z]{2,8}(?<=id)(?=[\\\"':=])"
    r"|ppid|fd|lba|ptr|rev|lag|ttl|took|crc|(?<!contact )no|(?<!wechat )(?<!微信)id)"
    r"|(?<!any)(?<!any )time(?:stamp)?|[a-z]_(?:id|at|ts|ns|ms|us)|count(?:er)?|size"
    r"|bytes?|offset|total|length|index|hash|seed|sequence|version|order|nanos|ticks"
    r"|cycles|inode|uuid|memory|alloc|capacity|elapsed|duration|latency|blocks?|sectors?"
    r"|lines|build|revision|commit|thread|task|cursor|checkpoint|position|invoice"
    r"|tracking|serial|ticket|transaction|balance|amount|checksum"
    r")(?:\\{0,7}[\"'])?[ ]?[:=#： ][ ]?(?:\\{0,7}[\"'])?$"
    r"|(?:编号|单号|流水号|序号|时间戳?|字节数?|大小|数量|总数|总计|金额|耗时|偏移量?)"
    r"(?:是|为)?[:：= ]{0,2}$|(?:^|\n|\\n)[+\-]$|#$"
)
# What stands after a number that counts something.
_UNIT = re.compile(
    r"(?i) ?(?:bytes?|[kmgt]i?b|[mun]s|sec(?:ond)?s?|ticks|cycles|rows|records|tokens"
    r"|lines|blocks|sectors|pages|items|events|packets"
    r")(?![a-z])| (?:DEBUG|INFO|WARN|ERROR)|%| ?(?:字节|毫秒|纳秒|微秒|条|次|元)"
)
# What stands between the numbers of a row, and around the value of a name.
_BESIDE, _AROUND = " ,;|/\t", " :=#：\"'\\"
_NO_MOBILE = re.compile(r"(?:^|[^0-9.+\-])[2-9][0-9]{10}$")
_NO_MOBILE_AFTER = re.compile(r"[ ,;|/\t]{1,3}[2-9][0-9]{10}(?![0-9])")
# Before the number of an order, which may look like a card's.
_ORDER = re.compile(
    r"(?i)(?:(?<![a-z])(?:order|invoice|tracking|shipment|waybill|trace|ticket|batch"
    r"|job|build|run|serial|imei|ts|timestamp)(?:[ _-]?(?:id|no|number|num))?)"
    r"(?:\\{0,7}[\"'])?[ .]?[:=#： ][ ]?(?:\\{0,7}[\"'])?$"
    r"|(?:订单|编号|单号|流水号|序号|批次)(?:号码?)?(?:是|为)?[:：= ]{0,2}$"
)
# What stands before the size of a file in a listing; not after it, for a text may be
# cut there, and what was no phone must not become one.
_LISTED = re.compile(
    r"[\-dlbcps][rwxsStT\-]{9}[.+@]? +[0-9]+ +[^\s]{1,32} +[^\s]{1,32} +$"
)

# Leading digits and lengths of the card networks, for numbers without context.
_CARD = re.compile(
    r"4[0-9]{15}"
    r"|5[1-5][0-9]{14}"
    r"|2(?:22[1-9]|2[3-9][0-9]|[3-6][0-9]{2}|7[01][0-9]|720)[0-9]{12}"
    r"|3[47][0-9]{13}"
    r"|3(?:0[0-5]|[68][0-9])[0-9]{11}"
    r"|35(?:2[89]|[3-8][0-9])[0-9]{12}"
    r"|6(?:011|4[4-9][0-9]|5[0-9]{2})[0-9]{12}"
    r"|62[0-9]{14}(?:[0-9]{3})?"
)

# Calling codes with the lengths, code included, of the numbers behind them.
_CALLING = re.compile(
    r"1[2-9][0-9]{9}"
    r"|86(?:1[3-9][0-9]{9}|[1-9][0-9]{8,10})"
    r"|7[3-9][0-9]{9}"
    r"|(?:2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58])[0-9]{8,12}"
    r"|(?:2(?:1[12368]|[2-689][0-9])|(?:3[578]|42|5[09]|6[789]|8[0357-9]|9[679])[0-9])[0-9]{7,10}"
)


def digits_of(text: str) -> str:
    return _NOT_DIGIT.sub("", text)


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of a card."""
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(doubled) + sum(map(int, digits[-1::-2]))) % 10 == 0


def card(found: Candidate) -> bool:
    """A card number that needs no context: a network's range and the Luhn digit."""
    digits = digits_of(found.value)
    if not (_CARD.fullmatch(digits) and luhn(digits)) or _uniform(digits):
        return False
    return digits != found.value or not _ORDER.search(found.before(24))


def card_in_context(found: Candidate) -> bool:
    digits = digits_of(found.value)
    return not (_EPOCH_MS.fullmatch(digits) or _uniform(digits))


def mobile(found: Candidate) -> bool:
    """A Chinese mobile number; not a fraction, a factor, or a multiple of 4 KiB."""
    value = found.value
    if len(value) > 11:
        return not _DECIMAL.fullmatch(value)
    return int(value) % 4096 != 0 and not (_counts(found) or _in_row(found))


def _counts(found: Candidate) -> bool:
    """Whether what is around a number says that it counts or names something else."""
    after, before = found.after(12), found.before(24)
    if _UNIT.match(after) or re.match(r" ?\*{1,2}[0-9A-Za-z(]| \*{1,2} ", after):
        return True
    named = before.rstrip(_AROUND)
    # A search is slow, and a list of phones long.
    if (named[-1:].isalpha() or before[-1:] in "+-#") and _COUNT.search(before):
        return True
    return named[-1:].isalnum() and before[-1:] == " " and _is_listed(found)


def _is_listed(found: Candidate) -> bool:
    before = found.before(64)
    return "r" in before and bool(_LISTED.search(before))


def _in_row(found: Candidate) -> bool:
    """Whether a number beside it, as long and no mobile phone's, is of the same row."""
    beside = found.before(15).rstrip(_BESIDE)
    return bool(
        (beside[-1:].isdigit() and _NO_MOBILE.search(beside[-12:]))
        or _NO_MOBILE_AFTER.match(found.after(16))
    )


def international(found: Candidate) -> bool:
    """A number after ``+``: a calling code with a length it can have.

    An added line of a diff also starts with ``+``; there, only the forms that can
    hardly be anything else are taken.
    """
    digits = digits_of(found.value.split("x")[0].replace("(0)", ""))
    if not _CALLING.fullmatch(digits) or _DECIMAL.fullmatch(found.value[1:]):
        return False
    bare = len(found.value) == len(digits) + 1
    starts_line = found.before(1) == "\n"
    return not (bare and starts_line) or digits.startswith(("1", "861"))


def encoded(found: Candidate) -> bool:
    """The same after ``%2B``, as URLs write ``+``; its escape is no part of it."""
    return bool(_CALLING.fullmatch(re.split("[Bb]", found.value)[-1]))


def phone_shape(found: Candidate) -> bool:
    """A number that the context calls a phone; not a date, a fraction or a time."""
    value = found.value
    return not (
        _DATE.match(value)
        or _DECIMAL.fullmatch(value)
        or _EPOCH_MS.fullmatch(value)
        or _uniform(digits_of(value))
    )


def _uniform(digits: str) -> bool:
    """One digit all over, like 0000000000, which nobody has."""
    return len(set(digits)) == 1


def student_number(found: Candidate) -> bool:
    return not _uniform(digits_of(found.value))

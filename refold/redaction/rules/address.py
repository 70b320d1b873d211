"""Where people live: postal addresses in English and Chinese, by form and context."""

from __future__ import annotations

import re
from functools import partial

from refold.redaction.checks import Candidate
from refold.redaction.rules.rule import InContext, Rule, load, words

_STREETS = words(
    "street avenue ave road rd boulevard blvd lane ln drive dr court ct place pl"
    " terrace way circle square parkway pkwy highway hwy crescent"
    " close st"
)
_STREET = rf"(?i:{'|'.join(_STREETS)})(?![A-Za-z0-9])\.?"
# What a name of a street is a part of only by chance, where its words are small.
_COMMON = re.compile(
    r"(?i)\b(?:the|a|an|of|in|to|for|by|and|or|is|are|per|each|any|all|more|less|lines?"
    r"|bytes?|times?|files?|days?|hours?|minutes?|years?|people|percent|other|different"
    r"|new|best|one|two|its?|was|were|with|on|from|at|as|this|that|in)\b"
)
_ALONE = r"(?:(?<![\w.,$€£#/\-])|(?<=\\[nrtbf]))"
_SMALL = r"(?:[a-z][a-z'.\-]{1,15}|[0-9]{1,3}(?:st|nd|rd|th))"
_BIG = r"(?:[A-Z\u00c0-\u00de][\w'’.\-]{0,20}|[0-9]{1,3}(?:st|nd|rd|th))"
_UNIT = (
    r"(?:,? ?(?:(?i:apt|apartment|suite|ste|unit|flat|floor|fl|room|rm|bldg|building)"
    r"(?![a-z])\.? ?#?|#) ?[0-9A-Za-z\-]{1,6}){0,2}"
)
_POSTCODE = r"[A-Z]{1,2}[0-9][0-9A-Z]? ?[0-9][A-Z]{2}"
_ZIP = r"[0-9]{5}(?:-[0-9]{4})?"
_CITY = r"[A-Z][A-Za-z.'\-]{1,20}(?: [A-Z][A-Za-z.'\-]{1,20}){0,2}"
# What stands behind street and number: town, state, code.
_TOWN = (
    rf"(?:(?:,|\\n|\n){{1,2}} ?{_CITY},? (?:[A-Z]{{2}}|[A-Z][a-z]{{3,12}}),? {_ZIP}"
    rf"|(?:,|\\n|\n){{0,2}} ?(?:[A-Z]{{2}},? )?(?:{_ZIP}|{_POSTCODE})"
    rf"|(?:,|\\n|\n){{1,2}} ?{_CITY},? (?:[A-Z]{{2}}|{_POSTCODE})(?![A-Za-z0-9]))?"
)
_SPOKEN = re.compile(
    r"(?i)(?:address|addr|lives?|lived|living|resid(?:e[sd]?|ing|ence)|home|house|ship(?:ped"
    r"|ping)?|deliver(?:y|ed)?|mail(?:ed)?|sen[dt]|located?|moved?|stay(?:ing)?|office|at"
    r"|near|visit|meet)[^\n.!?]{0,16}$"
)
# In the head of half of all files there are.
_OF_A_FOUNDATION = re.compile(
    r"Foundation(?:,\s*Inc\.)?,[^\n]{0,5}\s[^\w]*$|having an\s+office at\s$"
)
_YEAR = re.compile(r"(?:19|20)[0-9]{2}(?:-[0-9]{2,4})? ")


def street(found: Candidate) -> bool:
    """Number and street; where the words are small, more must say that it is one."""
    value, before = found.value, found.before(40)
    name = found.text[found.start : found.match.start()]
    whole = "\n" in value or bool(re.search(r", |[0-9]$", value[len(name) :]))
    if _OF_A_FOUNDATION.search(before):
        return False
    # Whoever lists years and names lists no houses.
    if _YEAR.match(value) and not (whole or _SPOKEN.search(before)):
        return False
    if re.search(
        r"(?i)(?:top|best|biggest|first|last|past|wall)\W*$", f"{before}{name}"
    ):
        return whole and "all" in name
    if re.search(r" [A-Z\u00c0-\u00de]", name):
        return True
    return not _COMMON.search(name) and (whole or bool(_SPOKEN.search(before)))


def han_address(found: Candidate) -> bool:
    """What is called an address in Chinese, and names a place."""
    return not _NO_PLACE.match(found.value) and bool(_PLACE.search(found.value))


_NO_PLACE = re.compile(
    "请|不|无|未|必|错|格式|栏|字段|信息|为空|长度|是否|填|选|详见|这|那|哪"
)
_PLACE = re.compile(
    "[县镇乡村街巷弄栋幢室苑]|[号號](?!['”’])|路(?![径徑由线線])|区(?![域别分间])|单元|大道|小区|花园|公寓|大厦|广场|[省市].{2,}[市区县]"
)
# What stands before a number in a Chinese address; not 知道, 电路, 课题组.
_HAN_STREET = (
    r"(?:(?<![线电思网])路|街|(?<![知报频渠通轨跑])道|巷|弄|胡同|村|庄|苑|(?<=[0-9一二三四五六七八九十])[组段]"
    r"|小区|社区|园区|花园|家园|嘉园|广场|大厦|公寓|栋|幢|座|号楼?|號|号院|单元)"
)
# What an address in a sentence is made of: it begins behind one of these verbs.
_HAN = r"[^\W_在到是给寄送址住]"
# The last characters of those, and up to nine of a number: most places have none.
_HAN_END = "|".join(
    rf"(?<=[路街道巷弄同村庄苑组段区园场厦寓栋幢座楼号號院元][0-9A-Za-z\- ]{{{n}}})"
    for n in range(1, 10)
)
_HAN_REST = (
    r"(?: ?[A-Z]{0,6}[\u4e00-\u9fff]{0,10} ?[0-9A-Za-z\-]{1,6} ?"
    r"(?:号楼?|号院|[室栋单幢楼层座户樓號]元?)){0,4}"
    r"(?:(?<=[元栋幢楼座])[0-9]{3,4}(?![0-9年月]))?"
)
_HAN_TEXT = r"[^\s，。；;\"'、！？!?<>|\\]"
_OF_KEY = r"(?i:string|text|str|null|none|required|unknown|n/a)"

_Address = partial(Rule, type="ADDRESS", priority=30)
_Leaf = partial(InContext, type="ADDRESS", leaf=True, priority=30)

ADDRESS_EN = load(globals(), "address_en")
ADDRESS_CN = load(globals(), "address_cn")

"""Where people live: postal addresses in English and Chinese, by form and context."""

from __future__ import annotations

import re
from functools import partial

from refold.redaction.checks import Candidate
from refold.redaction.rules.rule import END, QUOTE, InContext, Rule, words

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
_YEAR = re.compile(r"(?:19|20)[0-9]{2} ")
_BEFORE_A_YEAR = re.compile(r"(?i)(?:in|since|of|by|the|from|until|for|during|,) $")


def street(found: Candidate) -> bool:
    """Number and street; where the words are small, more must say that it is one."""
    value, before = found.value, found.before(40)
    name = found.text[found.start : found.match.start()]
    whole = "\n" in value or bool(re.search(r", |[0-9]$", value[len(name) :]))
    if _OF_A_FOUNDATION.search(before):
        return False
    if _YEAR.match(value) and _BEFORE_A_YEAR.search(before) and not whole:
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

ADDRESS_EN = (
    _Address(
        id="address.street",
        gate=tuple(f" {word}" for word in _STREETS),
        before=rf"{_ALONE}[1-9][0-9]{{0,4}}[A-Za-z]?(?:-[0-9]{{1,5}})?"
        rf"(?: {_BIG}){{1,4}}|{_ALONE}[1-9][0-9]{{0,4}}(?: {_SMALL}){{1,3}}",
        reach=72,
        lead="[0-9a-z.]",
        then=r"[ -/:-@\[-`{-~\n\r\t]",
        pattern=rf"(?<=[0-9A-Za-z.]) {_STREET}(?: [NSEW]{{1,2}}(?![A-Za-z]))?{_UNIT}{_TOWN}",
        validator=street,
    ),
    _Address(
        id="address.box",
        gate=("box ",),
        before=r"(?<![A-Za-z])(?:(?i:p\.? ?o\.? ?|post office )"
        r"|(?:PSC|Unit|CMR) [0-9]{1,5},? )",
        reach=20,
        then="[#0-9]",
        pattern=rf"(?i:box) #?[0-9]{{1,6}}{END}"
        rf"(?:(?:,|\\n|\n)? ?(?:[ADF]PO A[AEP] {_ZIP})|{_TOWN})",
    ),
    _Address(
        id="address.told",
        gate=(
            *(
                "address: ",
                "address is ",
                "address to ",
                "addr: ",
                "live at ",
                "lives at ",
            ),
            *(
                "living at ",
                "lived at ",
                "reside at ",
                "resides at ",
                "ship to ",
                "ship to: ",
            ),
            *(
                "shipped to ",
                "deliver to ",
                "delivered to ",
                "ship it to ",
                "send it to ",
            ),
        ),
        then="[0-9]{1,6}[a-z]?,? [^ ]",
        pattern=r"(?i:[a-z]{2,9} (?:it )?(?:at|is|to):?|addr(?:ess)?:) "
        rf"(?P<value>[1-9][0-9]{{0,5}}[A-Za-z]?"
        rf"(?:,? (?:{_BIG}|[0-9]{{1,5}}[A-Z]{{0,3}}|de|la|du|del|der|van)){{2,8}})",
    ),
    _Address(
        id="address.code",
        gate=("zip: ", "zip code", "zipcode", "postcode", "postal code"),
        pattern=r"(?i:zip(?: ?code)?|postcode|postal code)(?::| is|[ =]){1,3}"
        rf"(?P<value>{_ZIP}|{_POSTCODE}){END}",
    ),
    _Leaf(
        id="address.key",
        gate=("addr", "line1", "line_1", "line2", "line_2"),
        context=r"(?i:addr(?:ess)?|line)s?(?:[ _\-]?(?:line)?[ _\-]?[12])?",
        pattern=r"[1-9][0-9]{0,5}[A-Za-z]?,? (?=[^\n]{0,40}[A-Za-z]{2})[^\n:=@()]{4,99}"
        r"|(?i:(?:p\.?o\.? )?box|apt|apartment|suite|ste|unit|flat|floor|room)\.? ?#?"
        r"[0-9][0-9A-Za-z\-]{0,7}",
    ),
    _Leaf(
        id="address.street.key",
        gate=("street", "街道"),
        context=r"(?i:street[ _\-]?(?:name|addr(?:ess)?|line)?[ _\-]?[12]?)|街道",
        pattern=rf"(?!{_OF_KEY}\Z)[^\W_][^\n{{}}=]{{2,80}}",
    ),
    _Leaf(
        id="address.code.key",
        gate=("zip", "postal", "postcode", "post_code", "邮编", "邮政编码"),
        context=r"(?<![A-Za-z])(?i:zip|post(?:al)?)(?:[ _\-]?(?i:code))?|Zip(?:Code)?"
        r"|邮编|邮政编码",
        pattern=rf"{_ZIP}|{_POSTCODE}|[0-9]{{6}}",
    ),
)
ADDRESS_CN = (
    _Address(
        id="address.cn",
        gate=("号", "號", "室", "栋", "单元", "幢", "弄"),
        lead="[0-9a-z ]",
        before=rf"(?<!{_HAN}){_HAN}{{1,40}}{_HAN_STREET} ?[0-9A-Za-z\-]{{1,8}} ?",
        reach=64,
        pattern=rf"(?:{_HAN_END})(?:号楼?|號|号院|室|栋|单元|幢|弄)(?!线|文件|令|公告)"
        + _HAN_REST,
    ),
    _Address(
        id="address.cn.told",
        gate=("地址", "住址", "住在", "家住", "现居", "寄到", "送到", "寄往"),
        pattern=r"(?:地址(?=[ :：=是为\"'\\])|住址|住在|家住|现居住?|寄到|送到|寄往)"
        rf"(?:{QUOTE}|[ \t:：=是为于]){{0,5}}"
        rf"(?P<value>[\u4e00-\u9fff0-9]{_HAN_TEXT}{{3,60}}"
        rf"(?: ?[0-9A-Z]{{1,6}} ?{_HAN_TEXT}{{1,12}}){{0,4}})",
        validator=han_address,
    ),
    _Leaf(
        id="address.cn.key",
        gate=("addr", "住址", "地址"),
        context=r"(?i:addr(?:ess)?)(?:[ _\-]?(?:line)?[ _\-]?[12])?|住址|地址",
        pattern=r"[\u4e00-\u9fff][^\n]{3,80}",
        validator=han_address,
    ),
)

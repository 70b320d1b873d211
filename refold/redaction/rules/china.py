"""Pack ``pii-cn``: phones, cards, plates and codes of people in China."""

from refold.redaction.checks.numbers import (
    hkid,
    id_card,
    id_card_in_context,
    mobile,
    student_number,
    taiwan_id,
    uscc,
    uscc_in_context,
)
from refold.redaction.rules.rule import (
    EDGE,
    END,
    FROM,
    START,
    STOP,
    TO,
    InContext,
    Rule,
    words,
)

_CHINA = r"(?:\(?(?:\+|00)?86\)?[ \-.]{0,2})?"
_AREA = r"0(?:10|2[0-9]|[3-9][0-9]{2})"

_ID_WORDS = (
    r"身[份分][证證]|身份号码|证件"
    r"|(?<![A-Za-z])(?i:id[ _-]?(?:card|no|num|number)|identity(?:[ _-]?card)?"
    r"|(?:national|citizen|resident|chinese|china|prc)[ _-]?id|sfz)(?![a-z])"
    r"|(?<=[a-z])(?:IdCard|IDCard|IdNo|IdNumber)(?![a-z])"
)
_STUDENT_WORDS = (
    r"学号|学生证|学籍|学工号|准考证|考生号"
    r"|(?i:student|stu|matriculation|matric|enrol?lment)[ _-]?"
    r"(?i:ids?|no|num|numbers?|card|code)(?![a-z])"
)
_PROVINCES = (
    *"京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼",
    *("使", "领"),
)
# What follows the province on a plate.
_PLATE = (
    r"[A-HJ-NP-Z](?:[·•\-. ]?)(?=[A-Z]{0,4}[0-9][0-9A-Z]{0,5}|[A-Z]{1,2}[0-9])"
    r"(?:[0-9A-HJ-NP-Z]{5,6}|[0-9A-HJ-NP-Z]{4}[学警港澳挂领使])(?![0-9A-Za-z])"
)
_PLATE_SHAPE = r"[a-hj-np-z0-9](?:·|•|[ \-.])?[0-9a-z]{4}"

PII_CN = (
    Rule(
        id="phone.cn",
        type="PHONE",
        digits=11,
        shape=rf"{EDGE}(?:\(?(?:\+|00)?86\)?[ \-.]{{0,2}})?"
        rf"1[3-9][0-9](?:[ .\-]?[0-9]{{4}}){{2}}{STOP}",
        pattern=rf"{FROM}{_CHINA}1[3-9][0-9](?:[ .\-]?[0-9]{{4}}){{2}}{TO}",
        validator=mobile,
        priority=40,
    ),
    Rule(
        # As a table that was read as floats writes it.
        id="phone.cn.float",
        type="PHONE",
        gate=("e10", "e+10"),
        before=r"(?<![0-9A-Za-z.])1\.[3-9][0-9]{9}",
        reach=12,
        lead="[0-9]",
        pattern=r"[Ee]\+?10(?![0-9A-Za-z.])",
        validator=mobile,
        priority=40,
    ),
    Rule(
        id="phone.cn.landline",
        type="PHONE",
        digits=10,
        shape=rf"{EDGE}(?:\(?(?:\+|00)?86\)?[ \-.]{{0,2}})?\(?0[0-9]{{2,3}}(?:\) ?|-)"
        r"[0-9]{3,4}[ \-]?[0-9]{4}",
        pattern=rf"{FROM}{_CHINA}(?:\({_AREA}\) ?|{_AREA}-)"
        r"[0-9]{3,4}[ \-]?[0-9]{4}(?:[\-转][0-9]{1,5})?(?![0-9A-Za-z])(?!\.[0-9])",
        priority=40,
    ),
    Rule(
        id="id.cn",
        type="ID_CARD",
        digits=17,
        shape=rf"{EDGE}[1-8](?:[ \-]?[0-9]){{16}}[ \-]?[0-9x]{STOP}",
        pattern=rf"{FROM}[1-8](?:[ \-]?[0-9]){{16}}[ \-]?[0-9Xx]{TO}",
        validator=id_card,
        certain=True,
        priority=60,
    ),
    InContext(
        id="id.cn.context",
        type="ID_CARD",
        digits=15,
        gate=("身份证", "身份號", "身分", "身份證", "身份号码", "证件", "id", "sfz"),
        context=_ID_WORDS,
        pattern=rf"{START}[1-9](?:(?:[ \-]?[0-9]){{16}}[ \-]?[0-9Xx]"
        rf"|(?:[ \-]?[0-9]){{14}}){END}",
        validator=id_card_in_context,
        priority=58,
    ),
    InContext(
        id="student",
        type="STUDENT_ID",
        digits=6,
        gate=words("学号 学生证 学籍 学工号 准考证 考生号 stu matric enrol"),
        context=_STUDENT_WORDS,
        pattern=rf"{START}[A-Za-z]{{0,3}}(?:[0-9]{{6,14}}|[0-9]{{4}}-[0-9]{{4,10}}){END}",
        validator=student_number,
        priority=50,
    ),
    InContext(
        id="passport.cn",
        type="PASSPORT",
        digits=7,
        gate=("护照", "通行证", "passport"),
        context=r"护照|通行证|(?i:passport)",
        pattern=rf"{START}(?:[EGDSPHMeghmdsp][A-Za-z]?[0-9]{{7,8}}){END}",
        priority=52,
    ),
    Rule(
        id="plate.cn",
        type="LICENSE_PLATE",
        gate=_PROVINCES,
        then=_PLATE_SHAPE,
        pattern=rf"[^\x00-\x7f]{_PLATE}",
        priority=50,
    ),
    Rule(
        id="plate.cn.police",
        type="LICENSE_PLATE",
        gate=("wj",),
        lead=r"[^0-9ac-eg-mo-qsu-z]",
        then=_PLATE_SHAPE,
        pattern=rf"(?<![0-9A-Za-z])WJ{_PLATE}",
        priority=50,
    ),
    Rule(
        id="uscc",
        type="USCC",
        digits=6,
        shape=rf"{EDGE}[1-9a-gny][0-9a-gy][0-9]{{6}}[0-9a-y]",
        pattern=rf"{START}[1-9A-GNYa-gny][0-9A-GYa-gy][0-9]{{6}}"
        rf"[0-9A-HJ-NPQRTUWXYa-hj-npqrtuwxy]{{10}}{END}",
        validator=uscc,
        certain=True,
        priority=57,
    ),
    InContext(
        id="uscc.context",
        type="USCC",
        digits=6,
        gate=("代码", "信用", "税号", "uscc", "credit"),
        context=r"代码|信用|税号|(?i:uscc|credit[ _]?code)(?![a-z])",
        pattern=rf"{START}[1-9A-GNYa-gny][0-9A-GYa-gy][0-9]{{6}}"
        rf"[0-9A-HJ-NPQRTUWXYa-hj-npqrtuwxy]{{10}}{END}",
        validator=uscc_in_context,
        priority=57,
    ),
    Rule(
        id="id.hk",
        type="HKID",
        digits=6,
        shape=rf"{EDGE}[a-z]{{1,2}}[0-9]{{6}} ?\(?[0-9a]\)?",
        pattern=rf"{START}[A-Za-z]{{1,2}}[0-9]{{6}} ?\([0-9Aa]\)",
        validator=hkid,
        priority=51,
    ),
    InContext(
        id="id.hk.context",
        type="HKID",
        digits=6,
        gate=("hkid", "hong kong id", "香港身份证", "香港身份證", "身份證"),
        context=r"(?i:hkid|hong kong id(?:entity)?(?: card)?)(?![a-z])|身份[证證]",
        pattern=rf"{START}[A-Za-z]{{1,2}}[0-9]{{6}}[0-9Aa]{END}",
        validator=hkid,
        priority=51,
    ),
    Rule(
        id="id.tw",
        type="TWID",
        digits=8,
        shape=rf"{EDGE}[a-z][1289][0-9]{{8}}{STOP}",
        pattern=rf"{START}[A-Z][1289][0-9]{{8}}{END}",
        validator=taiwan_id,
        priority=51,
    ),
    InContext(
        id="id.mo",
        type="MACAU_ID",
        digits=7,
        gate=("澳门", "澳門", "macau", "macao", "bir"),
        context=r"(?:澳[门門](?:居民)?)(?:身份[证證])?|(?i:maca[uo](?: id)?|bir)(?!"
        r"[a-z])",
        pattern=rf"{START}[1578](?:/[0-9]{{6}}/[0-9]|[0-9]{{6}}\([0-9]\))(?![0-9A-Za-z])",
        priority=51,
    ),
)

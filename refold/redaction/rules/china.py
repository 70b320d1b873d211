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
        examples=(
            "手机号«13912345670»",
            "«139 1234 5670»或«159-8765-4321»",
            "«+86 139-1234-5670», «0086-13912345670»",
            "(«139.1234.5670»)",
            "张三,«13912345670»,«13800138000»",
            "call me any time: «13912345670» or T: «13800138000»",
            "微信id：«13912345670»",
        ),
        counter_examples=(
            "139123456701",
            "11912345670",
            "total 17179869184 bytes",
            '{"ts": 13800138000, "x": 1}',
            "id=13800138000",
            "13800138000 bytes copied, allocated 13912345670",
            "13800138000, 93912345670",
            "93912345670|13800138000",
            "流水号：13800138000，共13912345670字节",
            "3.13912345670 and 13912345670.25",
            "deadbeef13912345670",
            "1767294668088",
        ),
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
        examples=("座机«010-62345678»", "«(0755) 2345678»", "«021-62345678转802»"),
        counter_examples=("2010-62345678", "010-623", "v0.010-62345678"),
    ),
    Rule(
        id="id.cn",
        type="ID_CARD",
        digits=17,
        shape=rf"{EDGE}[1-8][0-9]{{5}}[ \-]?(?:18|19|20)[0-9]{{2}}[ \-]?[01][0-9][ \-]?"
        rf"[0-3][0-9][ \-]?[0-9]{{3}}[0-9x]{STOP}",
        pattern=rf"{FROM}[1-8][0-9]{{5}}[ \-]?(?:18|19|20)[0-9]{{2}}[ \-]?[01][0-9]"
        rf"[ \-]?[0-3][0-9][ \-]?[0-9]{{3}}[0-9Xx]{TO}",
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
    InContext(
        id="id.cn.context",
        type="ID_CARD",
        digits=15,
        gate=("身份证", "证件", "id", "sfz"),
        context=_ID_WORDS,
        pattern=rf"{START}[1-9][0-9]{{5}}[ \-]?(?:[0-9]{{6}}[ \-]?[0-9]{{3}}"
        rf"|[0-9]{{4}}[ \-]?[0-9]{{4}}[ \-]?[0-9]{{3}}[0-9Xx]){END}",
        validator=id_card_in_context,
        priority=58,
        examples=(
            "身份证号：«110101199003071234»",
            "证件号码«110101900307456»",
            ("id_card", "«110101199003071234»"),
        ),
        counter_examples=(
            "订单号110101199003071234",
            "身份证 110101199013071234",
            ("id", "110101199003071234"),
        ),
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
        examples=(
            "学号：«2021001234»",
            'studentId: "«U202112345»"',
            ("student_id", "«2021001234»"),
        ),
        counter_examples=("2021001234", "students: 2021001234", ("id", "2021001234")),
    ),
    InContext(
        id="passport.cn",
        type="PASSPORT",
        digits=7,
        gate=("护照", "通行证", "passport"),
        context=r"护照|通行证|(?i:passport)",
        pattern=rf"{START}(?:[EGDSPHMeghmdsp][A-Za-z]?[0-9]{{7,8}}){END}",
        priority=52,
        examples=(
            "护照号：«E12345678»",
            "港澳通行证 «H1234567»",
            ("passport_no", "«EA1234567»"),
        ),
        counter_examples=("编号E12345678的订单", ("order", "E12345678")),
    ),
    Rule(
        id="plate.cn",
        type="LICENSE_PLATE",
        gate=_PROVINCES,
        then=_PLATE_SHAPE,
        pattern=rf"[^\x00-\x7f]{_PLATE}",
        priority=50,
        examples=("车牌«京A12345»", "停着«沪AF01234»和«粤B·8Z9K1»。", "«粤Z1234港»"),
        counter_examples=("中A12345", "京ABCDEF", "京A1234567", "新A4纸"),
    ),
    Rule(
        id="plate.cn.police",
        type="LICENSE_PLATE",
        gate=("wj",),
        lead=r"[^0-9ac-eg-mo-qsu-z]",
        then=_PLATE_SHAPE,
        pattern=rf"(?<![0-9A-Za-z])WJ{_PLATE}",
        priority=50,
        examples=("车牌«WJA12345»",),
        counter_examples=("xyzWJA12345",),
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
        examples=("统一社会信用代码：«91110000600037341L»", "«91110000600037341l»"),
        counter_examples=("91110000600037341M", "a91110000600037341L"),
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
        examples=(
            "纳税人税号 «911100006000373419»",
            ("credit_code", "«911100006000373419»"),
        ),
        counter_examples=("911100006000373419", "代码：661100006000373419"),
    ),
    Rule(
        id="id.hk",
        type="HKID",
        digits=6,
        shape=rf"{EDGE}[a-z]{{1,2}}[0-9]{{6}} ?\(?[0-9a]\)?",
        pattern=rf"{START}[A-Za-z]{{1,2}}[0-9]{{6}} ?\([0-9Aa]\)",
        validator=hkid,
        priority=51,
        examples=("HKID «A123456(3)», «AB987654(3)»",),
        counter_examples=("A123456(4)", "call fn123456(3)x and aA123456(3)"),
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
        examples=("HKID: «A1234563»", ("hkid", "«A1234563»")),
        counter_examples=("A1234563", "HKID: A1234564"),
    ),
    Rule(
        id="id.tw",
        type="TWID",
        digits=8,
        shape=rf"{EDGE}[a-z][1289][0-9]{{8}}{STOP}",
        pattern=rf"{START}[A-Z][1289][0-9]{{8}}{END}",
        validator=taiwan_id,
        priority=51,
        examples=("身分證 «A123456789»",),
        counter_examples=("A123456788", "AA123456789", "A323456789"),
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
        examples=("澳门居民身份证 «1234567(8)»", "Macau ID: «5/123456/7»"),
        counter_examples=("1234567(8)", "f1234567(8)"),
    ),
)

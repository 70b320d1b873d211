"""Pack ``pii-cn``: phones, cards, plates and codes of people in China."""

import re

from refold.redaction.checks import Candidate
from refold.redaction.checks.numbers import (
    hkid,
    id_card,
    id_card_in_context,
    id_card_misread,
    mobile,
    student_number,
    taiwan_id,
    uscc,
    uscc_in_context,
)
from refold.redaction.rules.address import ADDRESS_CN
from refold.redaction.rules.rule import (
    EDGE,
    END,
    FROM,
    QUOTE,
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
    r"|(?:national|citizen|resident|chinese|china|prc)[ _-]?id|sfzh?)(?![a-z])"
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

_WECHAT = r"(?:微信|薇信|(?i:v)信|加(?i:v)|(?i:wechat|weixin|[vw]x(?=[ :：=])))"
_WECHAT_ID = r"[A-Za-z][A-Za-z0-9_\-]{5,19}"
# What is no id where settings and documents speak of the service.
_NO_WECHAT_ID = re.compile(
    r"(?i)(?:official|pay|log|sign|support|require|string|number|bool|integ|null|unknown"
    r"|enable|disable|account|wechat|weixin|mini|openid|unionid|option|default|please"
    r"|message|channel|client|config|plugin|group|public|android|chat)[a-z_]*"
    r"|(?:wx|gh_)[0-9a-f]{12,16}"
)
_CALLED_AN_ID = re.compile(
    r"(?i)号码?|[账帐]号|[ _\-]?(?:id|no|num|number|account)|^[^A-Za-z]+[:：是为]"
)


def wechat(found: Candidate) -> bool:
    """The id of somebody in WeChat: of letters alone, it must be called an id."""
    said = found.text[found.match.start() : found.start]
    told = re.search("[0-9_]", found.value) or _CALLED_AN_ID.search(said)
    return bool(told) and wechat_of_key(found)


def wechat_of_key(found: Candidate) -> bool:
    """The text under a key that is called a WeChat id; no setting, no id of an app."""
    return not _NO_WECHAT_ID.fullmatch(found.value)


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
        # Where nobody vouches for the text, or a machine read it from a picture.
        id="id.cn.misread",
        type="ID_CARD",
        digits=17,
        gate=("ocr", "untrusted", "识别", "扫描"),
        context=r"(?<![A-Za-z])(?i:ocr|untrusted)(?i:[ _\-]?(?:text|result|output"
        r"|lines?|content|words?|data|raw))?(?![a-z])|(?:识别|扫描)(?:结果|内容|文[字本]|件)?",
        pattern=rf"{FROM}[1-8](?:[ \-]?[0-9]){{16}}[ \-]?[0-9Xx]{TO}",
        validator=id_card_misread,
        priority=58,
    ),
    InContext(
        id="qq",
        type="QQ",
        digits=6,
        gate=("qq", "扣扣", "企鹅号"),
        context=r"(?:(?<![A-Za-z])(?i:qq)|(?<=[a-z])QQ)(?:[ _\-]?(?i:id|uin|account))?"
        r"(?:号码?|[账帐]号|群号?)?|扣扣号?|企鹅号",
        pattern=rf"{FROM}[1-9][0-9]{{5,10}}{TO}",
        validator=student_number,
        priority=38,
    ),
    Rule(
        id="wechat",
        type="WECHAT",
        gate=("微信", "薇信", "v信", "加v", "wechat", "weixin", "vx", "wx:", "wx："),
        then=r".{0,24}[a-z][0-9a-z_\-]{5}",
        pattern=rf"{START}{_WECHAT}(?i:号码?|[账帐]号"
        rf"|[ _\-]?(?:id|no|num|number|account))?"
        rf"(?:{QUOTE}|[ \t:：=#\-是为叫]|(?i:is|at)(?= )){{0,6}}"
        rf"(?P<value>{_WECHAT_ID})(?![A-Za-z0-9_@.(\-])",
        validator=wechat,
        priority=38,
    ),
    Rule(
        id="wechat.internal",
        type="WECHAT",
        gate=("wxid_",),
        then="[0-9a-z]{8}",
        pattern=r"(?<![0-9A-Za-z])(?i:wxid_[0-9a-z]{8,20})(?![0-9A-Za-z_])",
        priority=38,
    ),
    InContext(
        id="wechat.key",
        type="WECHAT",
        leaf=True,
        gate=("wechat", "weixin", "微信", "wx", "vx"),
        context=r"微信|(?i:wechat|weixin|(?<![a-z])[vw]x)(?i:[ _\-]?(?:id|account))?",
        pattern=_WECHAT_ID,
        validator=wechat_of_key,
        priority=38,
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
    *ADDRESS_CN,
)

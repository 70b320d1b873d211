"""Pack ``pii-cn``: phones, cards, plates and codes of people in China."""

import re

from refold.redaction.checks import Candidate
from refold.redaction.rules.address import ADDRESS_CN
from refold.redaction.rules.rule import START, load

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

_WECHAT = (
    rf"(?:微信|薇信|加(?i:v)|{START}(?:(?i:v)信|(?i:wechat|weixin|[vw]x(?=[ :：=]))))"
)
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


PII_CN = (*load(globals(), "pii_cn"), *ADDRESS_CN)

"""Pack ``pii-cn``: phones, cards, plates and codes of people in China."""

import re

from refold.redaction.checks import Candidate
from refold.redaction.rules.address import ADDRESS_CN
from refold.redaction.rules.rule import load, pattern

_PROVINCES = (
    *"京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼",
    *("使", "领"),
)

_NO_WECHAT_ID = pattern(__name__, "_NO_WECHAT_ID")
_CALLED_AN_ID = pattern(__name__, "_CALLED_AN_ID")


def wechat(found: Candidate) -> bool:
    """The id of somebody in WeChat: of letters alone, it must be called an id."""
    said = found.text[found.match.start() : found.start]
    told = re.search("[0-9_]", found.value) or _CALLED_AN_ID.search(said)
    return bool(told) and wechat_of_key(found)


def wechat_of_key(found: Candidate) -> bool:
    """The text under a key that is called a WeChat id; no setting, no id of an app."""
    return not _NO_WECHAT_ID.fullmatch(found.value)


PII_CN = (*load(globals(), "pii_cn"), *ADDRESS_CN)

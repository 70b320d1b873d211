"""Pack ``person``: names that a label or a key gives away."""

from __future__ import annotations

import re
from functools import partial

from refold.redaction.checks import Candidate
from refold.redaction.rules.rule import Rule, load

_LABEL = (
    r"(?i:full|first|last|given|family|middle|maiden|sur|customer|client|patient|employee"
    r"|student|applicant|passenger|guest|contact|cardholder|account[ _]holder|legal"
    r"|beneficiary|recipient|sender|payee|buyer|seller|driver|member|author|user)"
)
_NAME = r"[A-Z\u00c0-\u00de][\w'’.\-]{0,24}(?: [A-Z\u00c0-\u00de][\w'’.\-]{0,24}){1,3}"
_ONE = rf"{_NAME}|[A-Z\u00c0-\u00de][a-z\u00df-\u00ff'’\-]{{1,24}}"
_HAN = r"[\u4e00-\u9fff]{2,4}(?:·[\u4e00-\u9fff]{1,6})?"
_NOBODY = re.compile(
    r"(?i)(?:.* )?(?:inc|ltd|llc|gmbh|corp|co|api|app|build|run|test|tests|deploy"
    r"|install"
    r"|setup|set|check|checkout|create|update|upload|download|job|jobs|lint|release|server"
    r"|service|project|file|table|column|field|name|string|python|node|none|null|true|false"
    r"|unknown|the|and|of|for|with|version|type|class|model|default|user|group|list|bank"
    r"|university|school|street|road|hotel|page|report|data|dataset|system)(?: .*)?"
)
_NOT_A_NAME = re.compile(
    r"未知|不详|无|必填|为空|不能|字段|类型|长度|列表|信息|参数|名称"
)


def person(found: Candidate) -> bool:
    """Words that start with capitals, of which none is a word of machines or firms."""
    return not _NOBODY.fullmatch(found.value)


def person_zh(found: Candidate) -> bool:
    """A Chinese name; not what a form says of the field for it."""
    return not _NOT_A_NAME.search(found.value)


_Person = partial(Rule, type="PERSON", priority=15)

PERSON = load(globals(), "person")

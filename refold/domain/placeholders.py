"""The forms of placeholders, which stand in events for redacted values."""

from __future__ import annotations

import re
from typing import Final

_TYPE: Final = "[A-Z][A-Z0-9_]{1,39}"
REDACTED: Final = rf"REDACTED:{_TYPE}(?:(?<=:UNSCANNED) [0-9]{{1,12}} bytes)?"
# The end of the Chinese labels that come with Refold.
CHINESE_SUFFIX: Final = "_已脱敏"
CHINESE_LABEL: Final = rf"[^\s\[\]#:]{{1,32}}{CHINESE_SUFFIX}"
# A keyed hash of the value, which tells equal values from others.
VALUE_TAG: Final = "(?:#[a-z2-7]{8})?"
PLACEHOLDER: Final = re.compile(rf"\[(?:{REDACTED}|{CHINESE_LABEL}){VALUE_TAG}\]")
# A placeholder with a number, which identifies a value of a session.  Another spelling
# of the value has the same number and, after a dot, one of its own.
NUMBER: Final = r"[1-9][0-9]{0,5}(?:\.[2-9])?"
NUMBERED: Final = re.compile(rf"\[({_TYPE})_{NUMBER}\]")
# Every placeholder, with or without a number.
STANDS_FOR: Final = re.compile(rf"{PLACEHOLDER.pattern}|\[~?{NUMBERED.pattern[2:]}")

"""Where people live: postal addresses in English and Chinese, by form and context."""

from __future__ import annotations

import re

from refold.redaction.checks import Candidate
from refold.redaction.rules.rule import load, pattern, words

_STREETS = words(
    "street avenue ave road rd boulevard blvd lane ln drive dr court ct place pl"
    " terrace way circle square parkway pkwy highway hwy crescent"
    " close st"
)
_STREET = rf"(?i:{'|'.join(_STREETS)})(?![A-Za-z0-9])\.?"
_COMMON = pattern(__name__, "_COMMON")
_SPOKEN = pattern(__name__, "_SPOKEN")
_OF_A_FOUNDATION = pattern(__name__, "_OF_A_FOUNDATION")
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


_NO_PLACE = pattern(__name__, "_NO_PLACE")
_PLACE = pattern(__name__, "_PLACE")
# The last characters of those, and up to nine of a number: most places have none.
_HAN_END = "|".join(
    rf"(?<=[路街道巷弄同村庄苑组段区园场厦寓栋幢座楼号號院元][0-9A-Za-z\- ]{{{n}}})"
    for n in range(1, 10)
)


ADDRESS_EN = load(globals(), "address_en")
ADDRESS_CN = load(globals(), "address_cn")

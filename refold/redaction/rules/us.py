"""Pack ``pii-us``: numbers that the United States and its banks give to people."""

from refold.redaction.checks.numbers import routing, ssn, student_number
from refold.redaction.rules.rule import (
    EDGE,
    END,
    FROM,
    START,
    STOP,
    TO,
    InContext,
    Rule,
)

_SSN_WORDS = r"(?i:ssn|social[ _-]?security(?:[ _-]?(?:number|no|num))?)(?![a-z])"
_LICENSE_WORDS = (
    r"(?i:driver'?s?'?[ _-]?(?:licen[cs]e|lic)|driving[ _-]?licen[cs]e"
    r"|(?<![a-z])d\.?l\.?(?=[ _-]?(?:no|num|number|#)))(?![a-z])"
)

PII_US = (
    Rule(
        id="ssn",
        type="SSN",
        digits=9,
        shape=rf"{EDGE}[0-8][0-9]{{2}}-[0-9]{{2}}-[0-9]{{4}}{STOP}",
        pattern=rf"{FROM}[0-8][0-9]{{2}}-[0-9]{{2}}-[0-9]{{4}}{TO}",
        validator=ssn,
        priority=54,
    ),
    InContext(
        id="ssn.context",
        type="SSN",
        digits=9,
        gate=("ssn", "social"),
        context=_SSN_WORDS,
        pattern=rf"{START}[0-9]{{3}}([ .]?)[0-9]{{2}}\1[0-9]{{4}}{END}",
        validator=ssn,
        priority=54,
    ),
    Rule(
        id="itin",
        type="ITIN",
        digits=9,
        shape=rf"{EDGE}9[0-9]{{2}}-[5-9][0-9]-[0-9]{{4}}{STOP}",
        pattern=rf"{FROM}9[0-9]{{2}}-(?:5[0-9]|6[0-5]|7[0-9]|8[0-8]|9[0-24-9])-[0-9]{{4}}"
        rf"{TO}",
        priority=54,
    ),
    InContext(
        id="ein.context",
        type="EIN",
        digits=9,
        gate=("ein", "employer", "tax id"),
        context=r"(?<![A-Za-z])(?i:ein|employer (?:identification|id)|"
        r"(?:federal )?tax id)"
        r"(?![a-z])",
        pattern=rf"{FROM}[0-9]{{2}}-[0-9]{{7}}{TO}",
        priority=53,
    ),
    InContext(
        id="passport.us",
        type="PASSPORT",
        digits=8,
        gate=("passport",),
        context=r"(?i:passport)",
        pattern=rf"{START}(?:[A-Za-z][0-9]{{8}}|[0-9]{{9}}){END}",
        validator=student_number,
        priority=52,
    ),
    InContext(
        id="license.us",
        type="DRIVER_LICENSE",
        digits=6,
        gate=("driv", "dl"),
        context=_LICENSE_WORDS,
        pattern=rf"{START}[A-Za-z]{{0,3}}[0-9](?:[ \-]?[0-9]){{5,13}}[A-Za-z]?{END}",
        validator=student_number,
        priority=48,
    ),
    InContext(
        id="routing.us",
        type="ROUTING_NUMBER",
        digits=9,
        gate=("routing", "aba", "rtn"),
        context=r"(?<![A-Za-z])(?i:routing|aba|rtn)(?![a-z])",
        pattern=rf"{FROM}[0-9]{{9}}{TO}",
        validator=routing,
        priority=48,
    ),
)

"""Pack ``pii-us``: numbers that the United States and its banks give to people."""

from refold.redaction.checks.numbers import routing, ssn, student_number
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
)

_SSN_WORDS = (
    r"(?i:ssns?|(?<![a-z])ss ?#|soc(?:ial)?[ ._-]{0,2}sec(?:urity)?"
    r"(?:[ _-]?(?:number|no|num|id))?"
    r"|(?<![a-z])(?:my|his|her|their|your|whose) social)(?![a-z])"
    r"|社保号|社会安全号|社会保障号"
)
_LICENSE_WORDS = (
    r"(?i:driver[’']?s?[’']?[ _-]{0,2}(?:licen[cs]e|lic)|driving[ _-]?licen[cs]e"
    r"|(?<![a-z])d\.?l\.?(?=[ _-]?(?:no|num|number|#|:)))s?(?![a-z])"
    r"|(?<![A-Za-z])C?DL(?![A-Za-z])"
    r"|驾驶证|驾照|驾驶执照"
)
# Of the states whose licences have fewer than six digits in a row: Iowa, New Hampshire,
# Washington; of others, letters and many digits.
_LICENSE_OF_STATE = (
    r"(?:[0-9]{3}[A-Z]{2}[0-9]{4}|[0-9]{2}[A-Z]{3}[0-9]{5}|WDL[0-9A-Z]{9}"
    r"|[A-Z][A-Z*]{6}[0-9]{3}[0-9A-Z*]{2})"
)
_LICENSE_OF_UK = r"[A-Z9]{5}[0-9]{6}[A-Z9]{2}[0-9A-Z]{3}"

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
        gate=(
            "ssn",
            "social",
            "soc sec",
            "ss#",
            "社保号",
            "社会安全号",
            "社会保障号",
        ),
        context=_SSN_WORDS,
        pattern=rf"{START}[0-9]{{3}}[ .\-]?[0-9]{{2}}[ .\-]?[0-9]{{4}}{END}",
        validator=ssn,
        priority=54,
    ),
    Rule(
        id="itin",
        type="ITIN",
        digits=9,
        shape=rf"{EDGE}9[0-9]{{2}}-[5-9][0-9]-[0-9]{{4}}{STOP}",
        # What follows the first dash excludes the numbers that advertisements use.
        pattern=rf"{FROM}(?!987-65-432)9[0-9]{{2}}-(?:5[0-9]|6[0-5]|7[0-9]|8[0-8]|9[0-24-9])-[0-9]{{4}}"
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
        gate=("driver", "driving", "dl ", "dl_n", "dl#", "dl:", "驾"),
        context=_LICENSE_WORDS,
        pattern=rf"{START}(?:(?:(?!C?DL)[A-Z]{{1,3}}[ \-]|[A-Za-z]{{1,3}})?[0-9](?:[ \-]?[0-9]){{5,17}}[A-Za-z]?"
        rf"|{_LICENSE_OF_UK}){END}",
        validator=student_number,
        priority=48,
    ),
    Rule(
        id="license.us.state",
        type="DRIVER_LICENSE",
        gate=("driver", "driving"),
        then=r".{1,5}lic",
        pattern=r"(?i:driv(?:er|ing)[^\n]{1,5}lic(?:en[cs]e)?s?)"
        rf"(?:{QUOTE}|[\s:：=#_.\-]|(?i:number|num|no|is|id)){{1,12}}"
        rf"(?P<value>{_LICENSE_OF_STATE}){END}",
        priority=48,
    ),
    InContext(
        id="license.us.key",
        type="DRIVER_LICENSE",
        leaf=True,
        gate=("driver", "driving"),
        context=_LICENSE_WORDS,
        pattern=_LICENSE_OF_STATE,
        priority=48,
    ),
    InContext(
        id="routing.us",
        type="ROUTING_NUMBER",
        digits=9,
        gate=("routing", "aba ", "rtn"),
        context=r"(?<![A-Za-z])(?i:routing|aba|rtn)(?![a-z])",
        pattern=rf"{FROM}[0-9]{{9}}{TO}",
        validator=routing,
        priority=48,
    ),
)

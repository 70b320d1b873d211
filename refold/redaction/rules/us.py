"""Pack ``pii-us``: numbers that the United States and its banks give to people."""

from refold.redaction.rules.rule import load

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

PII_US = load(globals(), "pii_us")

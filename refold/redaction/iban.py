"""Judge of international bank account numbers: country, length and remainder."""

import re

from refold.redaction.national import bare
from refold.redaction.rule import Candidate

# ISO 13616: how long an account number of each country is.
LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22,
    "BH": 22, "BI": 27, "BR": 29, "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24,
    "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18,
    "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27,
    "GT": 28, "HN": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26,
    "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20,
    "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MN": 20,
    "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24,
    "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24,
    "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "SO": 23, "ST": 25,
    "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20,
    "YE": 30,
}  # fmt: skip

_OF_UUID = re.compile(
    r"(?i)[0-9a-f]{8}-[0-9a-f]{4}-|[0-9a-f]{4}-(?:[0-9a-f]{4}-){0,2}[0-9a-f]{12}$"
)


def iban_checksum(number: str) -> bool:
    """Whether a number without spaces, in upper case, leaves 1 by 97 (ISO 7064)."""
    turned = number[4:] + number[:4]
    return int("".join(str(int(character, 36)) for character in turned)) % 97 == 1


def iban(found: Candidate) -> bool:
    """An account number; not a part of a UUID."""
    if _OF_UUID.match(found.value):
        return False
    number = bare(found.value)
    return LENGTHS.get(number[:2]) == len(number) and iban_checksum(number)

"""Judges of numbers: checksums, dates, and shapes that are no phone and no card."""

from __future__ import annotations

import re
from datetime import date

from refold.redaction.rule import Candidate

_NOT_DIGIT = re.compile(r"[^0-9]")
_DATE = re.compile(
    r"(?:(?:19|20)[0-9]{2}([-/. ]?)(?:0?[1-9]|1[0-2])\1(?:0?[1-9]|[12][0-9]|3[01])"
    r"|(?:0?[1-9]|[12][0-9]|3[01])([-/.])(?:0?[1-9]|1[0-2])\2(?:19|20)?[0-9]{2})"
    r"(?![0-9])"
)
_DECIMAL = re.compile(r"[0-9]+\.[0-9]+")
_EPOCH_MS = re.compile(r"1[4-9][0-9]{11}")
_ID_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)

# Leading digits and lengths of the card networks, for numbers without context.
_CARD = re.compile(
    r"4[0-9]{15}"
    r"|5[1-5][0-9]{14}"
    r"|2(?:22[1-9]|2[3-9][0-9]|[3-6][0-9]{2}|7[01][0-9]|720)[0-9]{12}"
    r"|3[47][0-9]{13}"
    r"|3(?:0[0-5]|[68][0-9])[0-9]{11}"
    r"|35(?:2[89]|[3-8][0-9])[0-9]{12}"
    r"|6(?:011|4[4-9][0-9]|5[0-9]{2})[0-9]{12}"
    r"|62[0-9]{14}(?:[0-9]{3})?"
)

# Calling codes with the lengths, code included, of the numbers behind them.
_CALLING = re.compile(
    r"1[2-9][0-9]{9}"
    r"|86(?:1[3-9][0-9]{9}|[1-9][0-9]{8,10})"
    r"|7[3-9][0-9]{9}"
    r"|(?:2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58])[0-9]{8,12}"
    r"|(?:2(?:1[12368]|[2-689][0-9])|(?:3[578]|42|5[09]|6[789]|8[0357-9]|9[679])[0-9])[0-9]{7,10}"
)


def digits_of(text: str) -> str:
    return _NOT_DIGIT.sub("", text)


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of a card."""
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(doubled) + sum(map(int, digits[-1::-2]))) % 10 == 0


def id_checksum(number: str) -> bool:
    """Whether the last of 18 characters is the check character of GB 11643."""
    total = sum(int(d) * w for d, w in zip(number, _ID_WEIGHTS, strict=False))
    return "10X98765432"[total % 11] == number[17].upper()


def id_card(found: Candidate) -> bool:
    """A resident identity number: a real day of birth and a right check character."""
    number = re.sub(r"[^0-9Xx]", "", found.value)
    return _is_day(number[6:14]) and id_checksum(number)


def _is_day(digits: str) -> bool:
    try:
        born = date(int(digits[:4]), int(digits[4:6]), int(digits[6:]))
    except ValueError:
        return False
    return 1900 <= born.year < 2100


def card(found: Candidate) -> bool:
    """A card number that needs no context: a network's range and the Luhn digit."""
    digits = digits_of(found.value)
    return bool(_CARD.fullmatch(digits)) and luhn(digits) and not _uniform(digits)


def card_in_context(found: Candidate) -> bool:
    digits = digits_of(found.value)
    return not (_EPOCH_MS.fullmatch(digits) or _uniform(digits))


def mobile(found: Candidate) -> bool:
    """A Chinese mobile number; not a fraction, a factor, or a multiple of 4 KiB."""
    digits = digits_of(found.value)[-11:]
    if found.value == digits:
        return int(digits) % 4096 != 0 and not found.after(2).lstrip().startswith("*")
    return not _DECIMAL.fullmatch(found.value)


def international(found: Candidate) -> bool:
    """A number after ``+``: a calling code with a length it can have.

    An added line of a diff also starts with ``+``; there, only the forms that can
    hardly be anything else are taken.
    """
    digits = digits_of(found.value.split("x")[0].replace("(0)", ""))
    if not _CALLING.fullmatch(digits):
        return False
    bare = len(found.value) == len(digits) + 1
    starts_line = found.before(1) == "\n"
    return not (bare and starts_line) or digits.startswith(("1", "861"))


def phone_shape(found: Candidate) -> bool:
    """A number that the context calls a phone; not a date, a fraction or a time."""
    value = found.value
    return not (
        _DATE.match(value)
        or _DECIMAL.fullmatch(value)
        or _EPOCH_MS.fullmatch(value)
        or _uniform(digits_of(value))
    )


def _uniform(digits: str) -> bool:
    """One digit all over, like 0000000000, which nobody has."""
    return len(set(digits)) == 1


def student_number(found: Candidate) -> bool:
    return not _uniform(digits_of(found.value))

"""The checks that a rule of a policy may name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from refold.redaction import iban, keys, national, numbers, secret
from refold.redaction.rule import Candidate, Validator

_SHAPES: Final = {
    "gb11643": re.compile(r"[0-9]{17}[0-9X]"),
    "gb32100": re.compile(r"[0-9A-Z]{18}"),
    "hkid": re.compile(r"[A-Z]{1,2}[0-9]{6}[0-9A]"),
    "ssn": re.compile(r"[0-9]{9}"),
    "twid": re.compile(r"[A-Z][0-9]{9}"),
}


def _shaped(name: str, found: Candidate) -> bool:
    """Whether the value, whatever pattern matched it, can be checked at all."""
    return bool(_SHAPES[name].fullmatch(national.bare(found.value)))


def _luhn(found: Candidate) -> bool:
    digits = re.sub("[^0-9]", "", found.value)
    return len(digits) > 1 and len(set(digits)) > 1 and numbers.luhn(digits)


def _iban(found: Candidate) -> bool:
    return national.bare(found.value).isascii() and iban.iban(found)


def _gb11643(found: Candidate) -> bool:
    return _shaped("gb11643", found) and national.id_card(found)


def _gb32100(found: Candidate) -> bool:
    return _shaped("gb32100", found) and national.uscc(found)


def _hkid(found: Candidate) -> bool:
    return _shaped("hkid", found) and national.hkid(found)


def _twid(found: Candidate) -> bool:
    return _shaped("twid", found) and national.taiwan_id(found)


def _ssn(found: Candidate) -> bool:
    return _shaped("ssn", found) and national.ssn(found)


def _entropy(found: Candidate) -> bool:
    return secret.entropy(found.value) >= 3


VALIDATORS: Final[Mapping[str, Validator]] = {
    "luhn": _luhn,
    "iban": _iban,
    "gb11643": _gb11643,
    "gb32100": _gb32100,
    "hkid": _hkid,
    "twid": _twid,
    "ssn": _ssn,
    "jwt": keys.jwt,
    "entropy": _entropy,
}

"""Judges of numbers: checksums, dates, and shapes that are no phone and no card."""

from __future__ import annotations

import re
from datetime import date

from refold.redaction.checks import Candidate
from refold.redaction.checks.names import LEXICON, iban_lengths, patterns, words

_LIKE = patterns("numbers")
_IBAN_LENGTHS = iban_lengths()
# What stands between the numbers of a row, and around the value of a name.
_BESIDE, _AROUND = " ,;|/\t", " :=#：\"'\\"


def digits_of(text: str) -> str:
    """The ASCII digits of ``text``, without what is between them."""
    return _LIKE.NOT_DIGIT.sub("", text)


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of a card."""
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(doubled) + sum(map(int, digits[-1::-2]))) % 10 == 0


def any_luhn(found: Candidate) -> bool:
    """Two digits or more, not all the same, of which the last is a check digit."""
    digits = digits_of(found.value)
    return len(digits) > 1 and not _uniform(digits) and luhn(digits)


def card(found: Candidate) -> bool:
    """A card number that needs no context: a network's range and the Luhn digit."""
    digits = digits_of(found.value)
    if not (_LIKE.CARD.fullmatch(digits) and luhn(digits)) or _uniform(digits):
        return False
    if digits == found.value:
        return not _LIKE.ORDER.search(found.before(24))
    return not _LIKE.IN_HEX.search(found.before(25) + found.after(25))


def card_in_context(found: Candidate) -> bool:
    """A number that is called a card; not a time, and not one digit all over."""
    digits = digits_of(found.value)
    return not (_LIKE.EPOCH_MS.fullmatch(digits) or _uniform(digits))


def mobile(found: Candidate) -> bool:
    """A Chinese mobile number; not a fraction, a factor, or a multiple of 4 KiB."""
    value = found.value
    if len(value) > 11 and value[-3:].lower() not in ("e10", "+10"):
        return not _LIKE.DECIMAL.fullmatch(value)
    return float(value) % 4096 != 0 and not (_counts(found) or _in_row(found))


def _counts(found: Candidate) -> bool:
    """Whether what is around a number says that it counts or names something else."""
    after, before = found.after(12), found.before(24)
    if _LIKE.UNIT.match(after) or re.match(r" ?\*{1,2}[0-9A-Za-z(]| \*{1,2} ", after):
        return True
    named = before.rstrip(_AROUND)
    # A search is slow, and a list of phones long.
    if (named[-1:].isalpha() or before[-1:] in "+-#") and _LIKE.COUNT.search(before):
        return True
    if not (named[-1:].isalnum() and before[-1:] == " "):
        return False
    row = found.before(64)
    return "r" in row and bool(_LIKE.LISTED.search(row))


def _in_row(found: Candidate) -> bool:
    """Whether a number beside it, as long and no mobile phone's, is of the same row."""
    beside = found.before(15).rstrip(_BESIDE)
    return bool(
        (beside[-1:].isdigit() and _LIKE.NO_MOBILE.search(beside[-12:]))
        or _LIKE.NO_MOBILE_AFTER.match(found.after(16))
    )


def international(found: Candidate) -> bool:
    """A number after ``+``: a calling code with a length it can have.

    An added line of a diff also starts with ``+``; there, only the forms that can
    hardly be anything else are taken.
    """
    digits = digits_of(found.value.split("x")[0].replace("(0)", ""))
    if not _LIKE.CALLING.fullmatch(digits) or _LIKE.DECIMAL.fullmatch(found.value[1:]):
        return False
    bare = len(found.value) == len(digits) + 1
    starts_line = found.before(1) == "\n"
    return not (bare and starts_line) or digits.startswith(("1", "861"))


def encoded(found: Candidate) -> bool:
    """The same after ``%2B``, as URLs write ``+``; its escape is no part of it."""
    return bool(_LIKE.CALLING.fullmatch(re.split("[Bb]", found.value)[-1]))


def phone_shape(found: Candidate) -> bool:
    """A number that the context calls a phone; not a date, a fraction or a time."""
    value = found.value
    return not (
        _LIKE.DATE.match(value)
        or _LIKE.DECIMAL.fullmatch(value)
        or _LIKE.EPOCH_MS.fullmatch(value)
        or _uniform(digits_of(value))
    )


def _uniform(digits: str) -> bool:
    """One digit all over, like 0000000000, which nobody has."""
    return len(set(digits)) == 1


def student_number(found: Candidate) -> bool:
    """A number that is called an identity; not one digit all over."""
    return not _uniform(digits_of(found.value))


_GB_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_USCC = "0123456789ABCDEFGHJKLMNPQRTUWXY"
_PROVINCES, _USCC_KINDS = frozenset(words("provinces")), frozenset(words("uscc"))
# The letters of a Taiwanese identity number, in the order of their values from 10 on.
_TAIWAN = "ABCDEFGHJKLMNPQRSTUVXYWZIO"


def bare(text: str) -> str:
    """Letters in upper case and digits, without what separates them."""
    return _LIKE.NOT_ALNUM.sub("", text).upper()


def weighted(digits: str, weights: tuple[int, ...]) -> int:
    """The sum of each digit times its weight, as far as both go."""
    return sum(int(d) * w for d, w in zip(digits, weights, strict=False))


def is_day(digits: str) -> bool:
    """Whether eight digits are a day on which a living person may be born."""
    try:
        born = date(int(digits[:4]), int(digits[4:6]), int(digits[6:]))
    except ValueError:
        return False
    return 1850 <= born.year < 2100


def gb11643_checksum(number: str) -> bool:
    """Whether the last of 18 characters is the check character (mod 11-2)."""
    return "10X98765432"[weighted(number, _GB_WEIGHTS) % 11] == number[17]


def id_card(found: Candidate) -> bool:
    """A resident identity number (GB 11643): province, birthday, check character."""
    number = bare(found.value)
    formed = bool(_LIKE.ID_CARD.fullmatch(number)) and number[:2] in _PROVINCES
    return formed and is_day(number[6:14]) and gb11643_checksum(number)


def id_card_misread(found: Candidate) -> bool:
    """The same, of which a digit may be wrong: province, and a birthday since 1900."""
    number = bare(found.value)
    return (
        number[:2] in _PROVINCES and "19" <= number[6:8] < "21" and is_day(number[6:14])
    )


def id_card_in_context(found: Candidate) -> bool:
    """A number that is called an identity number: it holds a day of birth."""
    number = bare(found.value)
    return is_day("19" + number[6:12] if len(number) == 15 else number[6:14])


def uscc_checksum(code: str) -> bool:
    """Whether the last of 18 characters is the check character of GB 32100 (mod 31)."""
    if any(character not in _USCC for character in code):
        return False
    total = sum(_USCC.index(c) * pow(3, i, 31) for i, c in enumerate(code[:17]))
    return _USCC[-total % 31] == code[17]


def uscc(found: Candidate) -> bool:
    """A unified social credit code (GB 32100) with a letter, as no other number has."""
    code = bare(found.value)
    return not code.isdigit() and uscc_in_context(found) and uscc_checksum(code)


def uscc_in_context(found: Candidate) -> bool:
    """What is called such a code: its first two places and its province exist."""
    code = bare(found.value)
    placed = code[2:4] in _PROVINCES or code[2:4] == "10"
    return len(code) == 18 and code[:2] in _USCC_KINDS and placed


def hkid(found: Candidate) -> bool:
    """A Hong Kong identity card: one or two letters, six digits, a check character."""
    number = bare(found.value)
    if not _LIKE.HKID.fullmatch(number):
        return False
    letters, last = number[:-7], number[-1]
    values = [36] * (2 - len(letters)) + [ord(letter) - 55 for letter in letters]
    values += [int(digit) for digit in number[-7:-1]]
    total = sum(v * w for v, w in zip(values, range(9, 1, -1), strict=True))
    return (total + (10 if last == "A" else int(last))) % 11 == 0


def taiwan_id(found: Candidate) -> bool:
    """A Taiwanese identity number; the second digit tells citizens and residents."""
    number = bare(found.value)
    if not _LIKE.TAIWAN_ID.fullmatch(number):
        return False
    head = _TAIWAN.index(number[0]) + 10
    total = head // 10 + head % 10 * 9
    return (total + weighted(number[1:], (8, 7, 6, 5, 4, 3, 2, 1, 1))) % 10 == 0


def ssn(found: Candidate) -> bool:
    """Area, group and serial of a US social security number can be given out."""
    number = bare(found.value)
    area, group, serial = number[:3], number[3:5], number[5:]
    given_out = area not in ("000", "666") and area[:1] != "9" and group != "00"
    return number.isdigit() and len(number) == 9 and given_out and serial != "0000"


def routing(found: Candidate) -> bool:
    """A US bank's routing number: a Federal Reserve district and the check digit."""
    number = bare(found.value)
    first = int(number[:2])
    district = first <= 12 or 21 <= first <= 32 or 61 <= first <= 72 or first == 80
    weights = (3, 7, 1, 3, 7, 1, 3, 7, 1)
    return district and first > 0 and weighted(number, weights) % 10 == 0


def german_tax_id(found: Candidate) -> bool:
    """A Steuer-ID: it does not begin with 0, and ends with its check digit."""
    number = bare(found.value)
    return number[0] != "0" and mod_11_10(number)


def mod_11_10(number: str) -> bool:
    """Whether the last digit is the check digit of ISO 7064 mod 11,10."""
    product = 10
    for digit in number[:-1]:
        total = (int(digit) + product) % 10 or 10
        product = total * 2 % 11
    return (11 - product) % 10 == int(number[-1])


def french_nir(found: Candidate) -> bool:
    """A French social security number: 13 characters and 97 less their remainder."""
    number = bare(found.value)
    digits = number[:13].replace("2A", "19", 1).replace("2B", "18", 1)
    return digits.isdigit() and 97 - int(digits) % 97 == int(number[13:])


def spanish_id(found: Candidate) -> bool:
    """A DNI or NIE: the letter at the end is the remainder of the number."""
    number = bare(found.value)
    digits = number[:-1]
    if digits[0] in "XYZ":
        digits = str("XYZ".index(digits[0])) + digits[1:]
    return "TRWAGMYFPDXBNJZSQVHLCKE"[int(digits) % 23] == number[-1]


def codice_fiscale(found: Candidate) -> bool:
    """An Italian tax code: 15 characters and a check letter."""
    code = bare(found.value)
    odd = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10,
           22, 25, 24, 23)  # fmt: skip
    places = [ord(c) - (48 if c.isdigit() else 65) for c in code]
    total = sum(odd[place] for place in places[:15:2]) + sum(places[1:15:2])
    return total % 26 == places[15]


def dutch_bsn(found: Candidate) -> bool:
    """A BSN: the eleven test, in which the last digit counts against the others."""
    number = bare(found.value).zfill(9)
    return weighted(number, (*range(9, 1, -1), -1)) % 11 == 0 and int(number) > 0


def pesel(found: Candidate) -> bool:
    """A Polish PESEL: a day of birth, whose month tells the century, and a check."""
    number = bare(found.value)
    century = (1900, 2000, 2100, 2200, 1800)[int(number[2]) // 2]
    month = int(number[2:4]) % 20
    born = f"{century + int(number[:2])}{month:02}{number[4:6]}"
    weights = (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)
    return is_day(born) and weighted(number, weights) % 10 == 0


def nhs(found: Candidate) -> bool:
    """A number of the British NHS: mod 11 with weights from ten down."""
    number = bare(found.value)
    return weighted(number, (10, 9, 8, 7, 6, 5, 4, 3, 2, 1)) % 11 == 0


def nino(found: Candidate) -> bool:
    """A British national insurance number, whose letters have rules."""
    number = bare(found.value)
    return number[:2] not in ("BG", "GB", "KN", "NK", "NT", "TN", "ZZ")


def vat(found: Candidate) -> bool:
    """A VAT number of a state of the EU, or Britain, that has this length."""
    number = bare(found.value)
    form = LEXICON["numbers"]["vat"].get(number[:2])
    if form is None or not re.fullmatch(form, number[2:]):
        return False
    return number[:2] != "DE" or mod_11_10(number[2:])


def iban_checksum(number: str) -> bool:
    """Whether a number without spaces, in upper case, leaves 1 by 97 (ISO 7064)."""
    turned = number[4:] + number[:4]
    return int("".join(str(int(character, 36)) for character in turned)) % 97 == 1


def iban(found: Candidate) -> bool:
    """An account number; not a part of a UUID, or of what is dumped in hex."""
    dumped = re.search("[0-9a-f]{4} $", found.before(5))
    if _LIKE.OF_UUID.match(found.value) or (dumped and found.value.islower()):
        return False
    number = bare(found.value)
    return _IBAN_LENGTHS.get(number[:2]) == len(number) and iban_checksum(number)

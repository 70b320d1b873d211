"""Checks of numbers: checksums, dates, and the forms of phones, cards and ids."""

from __future__ import annotations

import itertools
import re
from datetime import date
from typing import Final

from refold.redaction.checks import Candidate
from refold.redaction.checks.names import LEXICON, iban_lengths, patterns, words

_PATTERNS = patterns("numbers")
_IBAN_LENGTHS = iban_lengths()
# The characters between the numbers of a row.
_BETWEEN = " ,;|/\t"
# The characters between a name and its value.
_LINKS = " \t:：=,，、;；|/\"'`()（）[]【】《》<>-—。.*_"
_AFTER_NAME = " :=#：\"'\\"


def digits_of(text: str) -> str:
    """Return the ASCII digits of ``text`` without anything between them."""
    return _PATTERNS.NOT_DIGIT.sub("", text)


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of a card."""
    total = 0
    for digit in digits[-1::-2]:
        total += int(digit)
    for digit in digits[-2::-2]:
        total += sum(divmod(2 * int(digit), 10))
    return total % 10 == 0


def any_luhn(candidate: Candidate) -> bool:
    """Two digits or more, not all equal; the last one is their check digit."""
    digits = digits_of(candidate.value)
    return len(digits) > 1 and not _uniform(digits) and luhn(digits)


def card(candidate: Candidate) -> bool:
    """A card number that needs no context: a network's range and a check digit."""
    digits = digits_of(candidate.value)
    if not _PATTERNS.CARD.fullmatch(digits) or not luhn(digits) or _uniform(digits):
        return False
    if digits == candidate.value:
        if _PATTERNS.UNIT.match(candidate.after(12)):
            return False
        return not _PATTERNS.ORDER.search(candidate.before(24))
    return not _PATTERNS.IN_HEX.search(candidate.before(25) + candidate.after(25))


def card_in_context(candidate: Candidate) -> bool:
    """A number that is called a card; not a time, and not a repeated digit."""
    digits = digits_of(candidate.value)
    return not (_PATTERNS.EPOCH_MS.fullmatch(digits) or _uniform(digits))


def mobile(candidate: Candidate) -> bool:
    """A Chinese mobile number; not a fraction, a factor, or a multiple of 4 KiB.

    Eleven digits have no check digit, so they need a sign that somebody is called.
    Spaces and hyphens in their usual places, and the calling code, are such signs.
    """
    value = candidate.value
    is_float = value[-3:].lower() in ("e10", "+10")
    if len(value) > 11 and not is_float:
        return not _PATTERNS.DECIMAL.fullmatch(value)
    if float(value) % 4096 == 0:
        return False
    if _counts(candidate) or _in_row(candidate):
        return False
    return _is_called(candidate, alone=not is_float)


def is_mobile(text: str) -> bool:
    """Whether the whole text may be a Chinese mobile number."""
    return _PATTERNS.MOBILE.fullmatch(text) is not None


def is_count(key: str, text: str) -> bool:
    """Whether eleven digits under this key of an object count or name something."""
    return is_mobile(text) and _counts_by_name(key)


def _counts_by_name(key: str) -> bool:
    if _PATTERNS.COUNTING.search(key):
        return True
    return _is_name_of_count(f"{key}:")


def _is_name_of_count(before: str) -> bool:
    """Whether the text before a number ends with the name of a count or another id.

    The pattern is slow, so it is tried only after a word that may end such a name.
    """
    name = before.rstrip(_AFTER_NAME).lower()
    if not name.endswith(_COUNTS):
        is_one_letter = name.endswith(_LETTERS_OF_COUNTS)
        if not is_one_letter or "a" <= name[-2:-1] <= "z":
            return False
    return _PATTERNS.COUNT.search(before) is not None


def _is_member(candidate: Candidate) -> bool:
    """Whether a number is a value of an object in JSON, and its key no count."""
    if not _PATTERNS.AFTER_MEMBER.match(candidate.after(_NEAR)):
        return False
    start = candidate.start
    if candidate.text.rfind('"', max(0, start - _MEMBER), start) < 0:
        return False
    member = _PATTERNS.MEMBER.search(candidate.before(_MEMBER))
    return member is not None and not _counts_by_name(member[1])


# How far before a number in JSON its key is looked for.
_MEMBER: Final = 1024
# The most characters of a text that may consist of numbers of phones alone, and how
# many around a number may show that it is one.
_ALONE: Final = 128
_NEAR: Final = 48
# The most characters of a line that are read before and after a number.
_LIST: Final = 512
_DIGITS: Final = "0123456789"
# The ends of names of counts, and letters that are such names by themselves.
_COUNTS: Final = words("counts")
_LETTERS_OF_COUNTS: Final = tuple("xyzijktn")
# Words that introduce a phone number, in lower case.
_PHONE_WORDS: Final = words("calls")
# The signs that may stand between such a word and the number, and how many of them.
_SIGNS_BEFORE_PHONE: Final = ' \t\r\n:：=,.()">+-'
_MOST_SIGNS: Final = 4
# The characters and words between two mobile numbers, and those of the calling code.
_BETWEEN_MOBILES: Final = " ,，;；、|/&或和+86-"
_WORDS_BETWEEN_MOBILES: Final = ("or", "and", "not")
# A sign of multiplication after a number.
_FACTOR: Final = re.compile(r" ?\*{1,2}[0-9A-Za-z(]| \*{1,2} ")


def _is_called(candidate: Candidate, *, alone: bool) -> bool:
    """Whether the text around a number shows that it is a phone's.

    It is the whole text, is in a list of such numbers, stands in Chinese prose or next
    to a name, in a line with an e-mail address, or behind a word about calling.

    alone: the whole text may be such numbers, with nothing that calls them so.
    """
    text = candidate.text
    if alone and len(text) <= _ALONE and _PATTERNS.ONLY_MOBILES.fullmatch(text):
        return True
    if _in_list(candidate) or _is_member(candidate):
        return True
    before = candidate.before(_NEAR).rpartition("\n")[2]
    after = candidate.after(_NEAR).partition("\n")[0]
    if "@" in before or "@" in after:
        return True
    if _may_end_with_mobiles(before):
        before = _PATTERNS.MOBILES_BEFORE.sub("", before)
    last = before.rstrip(_LINKS)[-1:]
    first = after.lstrip(_LINKS)[:1]
    if _is_chinese(last) or _is_chinese(first):
        return True
    return _has_phone_word(before)


def _may_end_with_mobiles(before: str) -> bool:
    """Whether a text may end with mobile numbers and what stands between them."""
    rest = before.rstrip(_BETWEEN_MOBILES)
    return rest[-1:].isdigit() or rest.endswith(_WORDS_BETWEEN_MOBILES)


def _has_phone_word(before: str) -> bool:
    """Whether the text before a number ends with a word about calling.

    Up to four other words may stand behind that word.
    """
    lower = before.lower()
    if not any(map(lower.__contains__, _PHONE_WORDS)):
        return False
    # In most lists the word stands right before the number.
    end = lower.rstrip(_SIGNS_BEFORE_PHONE)
    if end.endswith("phone") and len(lower) - len(end) <= _MOST_SIGNS:
        character = end[-6:-5]
        if not ("a" <= character <= "z" or character == "_"):
            return True
    return _PATTERNS.CALLED.search(before) is not None


def _in_list(candidate: Candidate) -> bool:
    """Whether both neighbours of a number are mobile numbers, or ends of the text."""
    before = candidate.before(18)
    after = candidate.after(18)
    in_front = _PATTERNS.MOBILE_IN_FRONT.search(before)
    behind = _PATTERNS.MOBILE_BEHIND.match(after)
    if not (in_front or behind) or not _is_line_of_numbers(candidate):
        return False
    return bool(in_front or not before.strip()) and bool(behind or not after.strip())


def _is_line_of_numbers(candidate: Candidate) -> bool:
    """Whether the line around a number has nothing but numbers: no array of code.

    Of a long line, only the part near the number is read: otherwise each number of a
    list would cost the whole line.
    """
    before = candidate.before(_LIST)
    line = before.rpartition("\n")[2]
    if len(line) == _LIST:
        # The first number may be cut.
        line = line.lstrip(_DIGITS)
    rest = candidate.after(_LIST).partition("\n")[0]
    return bool(
        _PATTERNS.ONLY_NUMBERS.fullmatch(line)
        and _PATTERNS.ONLY_NUMBERS.fullmatch(rest)
    )


def _is_chinese(character: str) -> bool:
    return "\u3400" <= character <= "\u9fff"


def _counts(candidate: Candidate) -> bool:
    """Whether the text around a number shows that it is a count or another id."""
    after = candidate.after(12)
    before = candidate.before(24)
    if _PATTERNS.UNIT.match(after):
        return True
    if _FACTOR.match(after):
        return True
    name = before.rstrip(_AFTER_NAME)
    # A search is slow, and lists of phones are long.
    sign = before[-1:]
    if sign in ("+", "-"):
        # An added or removed line of a diff.
        return before == sign or before[:-1].endswith(("\n", "\\n"))
    if sign == "#" or (name[-1:].isalpha() and _is_name_of_count(before)):
        return True
    if not name[-1:].isalnum() or before[-1:] != " ":
        return False
    row = candidate.before(64)
    return "r" in row and bool(_PATTERNS.LISTED.search(row))


def _in_row(candidate: Candidate) -> bool:
    """Whether the next number in its row is as long, and no mobile phone's."""
    previous = candidate.before(15).rstrip(_BETWEEN)
    if previous[-1:].isdigit() and _PATTERNS.NO_MOBILE.search(previous[-12:]):
        return True
    return bool(_PATTERNS.NO_MOBILE_AFTER.match(candidate.after(16)))


def international(candidate: Candidate) -> bool:
    """A number after ``+``: a calling code with a possible length.

    An added line of a diff also starts with ``+``; there, only unmistakable forms
    count.
    """
    value = candidate.value
    digits = digits_of(value.split("x")[0].replace("(0)", ""))
    if not _PATTERNS.CALLING.fullmatch(digits) or _PATTERNS.DECIMAL.fullmatch(
        value[1:]
    ):
        return False
    has_no_separators = len(value) == len(digits) + 1
    may_be_of_diff = has_no_separators and candidate.before(1) == "\n"
    return not may_be_of_diff or digits.startswith(("1", "861"))


def encoded(candidate: Candidate) -> bool:
    """A number after ``%2B``, the ``+`` of URLs, which is no part of the number."""
    return bool(_PATTERNS.CALLING.fullmatch(re.split("[Bb]", candidate.value)[-1]))


def phone_shape(candidate: Candidate) -> bool:
    """A number that the context calls a phone; not a date, a fraction or a time."""
    value = candidate.value
    return not (
        _PATTERNS.DATE.match(value)
        or _PATTERNS.DECIMAL.fullmatch(value)
        or _PATTERNS.EPOCH_MS.fullmatch(value)
        or _uniform(digits_of(value))
    )


def _uniform(digits: str) -> bool:
    """Whether all digits are equal, as in 0000000000, which nobody has."""
    return len(set(digits)) == 1


def student_number(candidate: Candidate) -> bool:
    """A number that is called an identity; not a repeated digit."""
    return not _uniform(digits_of(candidate.value))


_GB_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_USCC = "0123456789ABCDEFGHJKLMNPQRTUWXY"
_PROVINCES = frozenset(words("provinces"))
_USCC_KINDS = frozenset(words("uscc"))
# The letters of a Taiwanese identity number, in the order of their values from 10 on.
_TAIWAN = "ABCDEFGHJKLMNPQRSTUVXYWZIO"


def bare(text: str) -> str:
    """Return the letters, in upper case, and the digits of ``text``."""
    return _PATTERNS.NOT_ALNUM.sub("", text).upper()


def weighted(digits: str, weights: tuple[int, ...]) -> int:
    """Return the sum of each digit times its weight; the shorter sequence ends it."""
    total = 0
    for digit, weight in zip(digits, weights, strict=False):
        total += int(digit) * weight
    return total


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


def id_card(candidate: Candidate) -> bool:
    """A resident identity number (GB 11643): province, birthday, check character."""
    number = bare(candidate.value)
    if not _PATTERNS.ID_CARD.fullmatch(number) or number[:2] not in _PROVINCES:
        return False
    return is_day(number[6:14]) and gb11643_checksum(number)


def id_card_misread(candidate: Candidate) -> bool:
    """A misread identity number: a province, and a birthday since 1900."""
    number = bare(candidate.value)
    if number[:2] not in _PROVINCES:
        return False
    return "19" <= number[6:8] < "21" and is_day(number[6:14])


def id_card_in_context(candidate: Candidate) -> bool:
    """A number that is called an identity number: it contains a day of birth."""
    number = bare(candidate.value)
    if len(number) == 15:  # the form before 1999
        return is_day("19" + number[6:12])
    return is_day(number[6:14])


def uscc_checksum(code: str) -> bool:
    """Whether the last of 18 characters is the check character of GB 32100 (mod 31)."""
    if any(character not in _USCC for character in code):
        return False
    total = 0
    for index, character in enumerate(code[:17]):
        total += _USCC.index(character) * pow(3, index, 31)
    return _USCC[-total % 31] == code[17]


def uscc(candidate: Candidate) -> bool:
    """A unified social credit code (GB 32100) with a letter, as no other number has."""
    code = bare(candidate.value)
    return not code.isdigit() and uscc_in_context(candidate) and uscc_checksum(code)


def uscc_in_context(candidate: Candidate) -> bool:
    """A number that is called such a code: its kind and its province exist."""
    code = bare(candidate.value)
    province = code[2:4]
    if len(code) != 18 or code[:2] not in _USCC_KINDS:
        return False
    return province in _PROVINCES or province == "10"


def hkid(candidate: Candidate) -> bool:
    """A Hong Kong identity card: one or two letters, six digits, a check character."""
    number = bare(candidate.value)
    if not _PATTERNS.HKID.fullmatch(number):
        return False
    letters = number[:-7]
    values = [ord(letter) - 55 for letter in letters]
    if len(letters) == 1:
        values.insert(0, 36)  # for the blank before a single letter
    values += [int(digit) for digit in number[-7:-1]]
    total = 0
    for value, weight in zip(values, range(9, 1, -1), strict=True):
        total += value * weight
    total += 10 if number[-1] == "A" else int(number[-1])
    return total % 11 == 0


def taiwan_id(candidate: Candidate) -> bool:
    """A Taiwanese identity number, of a citizen or a resident."""
    number = bare(candidate.value)
    if not _PATTERNS.TAIWAN_ID.fullmatch(number):
        return False
    head = _TAIWAN.index(number[0]) + 10
    total = head // 10 + head % 10 * 9
    return (total + weighted(number[1:], (8, 7, 6, 5, 4, 3, 2, 1, 1))) % 10 == 0


def ssn(candidate: Candidate) -> bool:
    """A US social security number whose area, group and serial are in use."""
    number = bare(candidate.value)
    if not number.isdigit() or len(number) != 9:
        return False
    area = number[:3]
    if area in ("000", "666") or area.startswith("9"):
        return False
    return number[3:5] != "00" and number[5:] != "0000"


def routing(candidate: Candidate) -> bool:
    """A US bank's routing number: a Federal Reserve district and the check digit."""
    number = bare(candidate.value)
    first = int(number[:2])
    is_district = (
        1 <= first <= 12 or 21 <= first <= 32 or 61 <= first <= 72 or first == 80
    )
    return is_district and weighted(number, (3, 7, 1, 3, 7, 1, 3, 7, 1)) % 10 == 0


def german_tax_id(candidate: Candidate) -> bool:
    """A German Steuer-ID: it does not begin with 0, and ends with a check digit."""
    number = bare(candidate.value)
    return number[0] != "0" and mod_11_10(number)


def mod_11_10(number: str) -> bool:
    """Whether the last digit is the check digit of ISO 7064 mod 11,10."""
    product = 10
    for digit in number[:-1]:
        total = (int(digit) + product) % 10 or 10
        product = total * 2 % 11
    return (11 - product) % 10 == int(number[-1])


def french_nir(candidate: Candidate) -> bool:
    """A French social security number: 13 characters and their check number."""
    number = bare(candidate.value)
    # The departments of Corsica count as numbers.
    digits = number[:13].replace("2A", "19", 1).replace("2B", "18", 1)
    return digits.isdigit() and 97 - int(digits) % 97 == int(number[13:])


def spanish_id(candidate: Candidate) -> bool:
    """A Spanish DNI or NIE: the last letter stands for the number's remainder."""
    number = bare(candidate.value)
    digits = number[:-1]
    if digits[0] in "XYZ":
        digits = str("XYZ".index(digits[0])) + digits[1:]
    return "TRWAGMYFPDXBNJZSQVHLCKE"[int(digits) % 23] == number[-1]


def codice_fiscale(candidate: Candidate) -> bool:
    """An Italian tax code: 15 characters and a check letter."""
    code = bare(candidate.value)
    ranks: list[int] = []  # of each character among the digits or among the letters
    for character in code:
        first = "0" if character.isdigit() else "A"
        ranks.append(ord(character) - ord(first))
    total = sum(ranks[1:15:2])
    for rank in ranks[:15:2]:
        total += _CODICE_FISCALE_ODD[rank]
    return total % 26 == ranks[15]


# The values of characters in odd places, by their rank.
_CODICE_FISCALE_ODD = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8,
                       12, 14, 16, 10, 22, 25, 24, 23)  # fmt: skip


def dutch_bsn(candidate: Candidate) -> bool:
    """A Dutch BSN: the eleven test, in which the last digit is subtracted."""
    number = bare(candidate.value).zfill(9)
    return weighted(number, (*range(9, 1, -1), -1)) % 11 == 0 and int(number) > 0


def pesel(candidate: Candidate) -> bool:
    """A Polish PESEL: a day of birth, with the century in its month, and a check."""
    number = bare(candidate.value)
    century = (1900, 2000, 2100, 2200, 1800)[int(number[2]) // 2]
    month = int(number[2:4]) % 20
    born = f"{century + int(number[:2])}{month:02}{number[4:6]}"
    weights = (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)
    return is_day(born) and weighted(number, weights) % 10 == 0


def nhs(candidate: Candidate) -> bool:
    """A number of the British NHS: mod 11 with weights from ten down."""
    number = bare(candidate.value)
    return weighted(number, (10, 9, 8, 7, 6, 5, 4, 3, 2, 1)) % 11 == 0


def nino(candidate: Candidate) -> bool:
    """A British national insurance number, whose letters have rules."""
    number = bare(candidate.value)
    return number[:2] not in ("BG", "GB", "KN", "NK", "NT", "TN", "ZZ")


def vat(candidate: Candidate) -> bool:
    """A VAT number in the form of its state, which is of the EU, or Britain."""
    number = bare(candidate.value)
    form = LEXICON["numbers"]["vat"].get(number[:2])
    if form is None or not re.fullmatch(form, number[2:]):
        return False
    return number[:2] != "DE" or mod_11_10(number[2:])


def iban_checksum(number: str) -> bool:
    """Whether a number in upper case, without spaces, has the remainder 1 by 97.

    This is the check of ISO 7064 mod 97-10.
    """
    digits = ""
    for character in number[4:] + number[:4]:
        digits += str(int(character, 36))
    return int(digits) % 97 == 1


def iban(candidate: Candidate) -> bool:
    """An account number; not a part of a UUID, or of a hex dump."""
    if _PATTERNS.OF_UUID.match(candidate.value):
        return False
    follows_hex = re.search("[0-9a-f]{4} $", candidate.before(5))
    if follows_hex and candidate.value.islower():
        return False
    number = bare(candidate.value)
    return _IBAN_LENGTHS.get(number[:2]) == len(number) and iban_checksum(number)


def nhs_number(candidate: Candidate) -> bool:
    """A number that is called one of the NHS, with its check digit."""
    return nhs(candidate)


def with_digits(candidate: Candidate) -> bool:
    """A number of a record: at least four digits."""
    return len(digits_of(candidate.value)) >= 4


def pairs(candidate: Candidate) -> bool:
    """Five pairs of digits of a phone; no bytes that count up, no repeated ones."""
    groups = re.split(r"[ .]", candidate.value)
    steps = {int(after) - int(before) for before, after in itertools.pairwise(groups)}
    return len(steps) > 1 and len(set(groups)) > 2


def date_cell(candidate: Candidate) -> bool:
    """A cell that is a date and nothing else."""
    return bool(_PATTERNS.DAY.fullmatch(candidate.value))


def phone_cell(candidate: Candidate) -> bool:
    """A cell that has the form of a phone and nothing else."""
    value = candidate.value
    digits = digits_of(value.removesuffix(".0"))
    return (
        7 <= len(digits) <= 21
        and _PATTERNS.PHONE.fullmatch(value) is not None
        and phone_shape(candidate)
    )


def landline(candidate: Candidate) -> bool:
    """A phone with an area code; not the middle of a UUID."""
    if not phone_shape(candidate):
        return False
    return not _PATTERNS.IN_UUID.search(candidate.before(9) + "|" + candidate.after(14))

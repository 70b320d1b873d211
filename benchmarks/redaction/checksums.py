"""Check digits, so that made-up numbers are as valid as real ones.

Written apart from the validators of Refold: an error there must not hide itself here.
"""

from __future__ import annotations

import random

USCC = "0123456789ABCDEFGHJKLMNPQRTUWXY"


def digits(rng: random.Random, count: int) -> str:
    """``count`` random digits, the first of them not 0."""
    return str(rng.randint(1, 9)) + "".join(rng.choices("0123456789", k=count - 1))


def luhn(body: str) -> str:
    """``body`` and its Luhn digit."""
    total = 0
    for place, digit in enumerate(reversed(body)):
        value = int(digit) * (2 if place % 2 == 0 else 1)
        total += value - 9 if value > 9 else value
    return body + str(-total % 10)


def iban(country: str, account: str) -> str:
    """The IBAN of ``account``, with check digits by ISO 7064."""
    spelt = "".join(str(int(sign, 36)) for sign in f"{account}{country}00")
    return f"{country}{98 - int(spelt) % 97:02}{account}"


def resident_id(area: str, birth: str, serial: str) -> str:
    """A resident identity number of 18 characters (GB 11643)."""
    body = area + birth + serial
    total = sum(int(digit) * pow(2, 17 - place) for place, digit in enumerate(body))
    return body + "10X98765432"[total % 11]


def credit_code(body: str) -> str:
    """A unified social credit code of 18 characters (GB 32100)."""
    total = sum(USCC.index(sign) * pow(3, at, 31) for at, sign in enumerate(body))
    return body + USCC[-total % 31]


def hong_kong_id(letter: str, number: str) -> str:
    """A Hong Kong identity card number with its digit in brackets."""
    signs = [36, ord(letter) - 55, *map(int, number)]
    total = sum(
        sign * weight for sign, weight in zip(signs, range(9, 1, -1), strict=True)
    )
    return f"{letter}{number}({'0123456789A'[-total % 11]})"


def taiwan_id(letter: str, number: str) -> str:
    """A Taiwanese identity number: a letter, a sex digit, seven digits, a check."""
    value = "ABCDEFGHJKLMNPQRSTUVXYWZIO".index(letter) + 10
    signs = [value // 10, value % 10, *map(int, number)]
    weights = (1, 9, 8, 7, 6, 5, 4, 3, 2, 1)
    total = sum(sign * weight for sign, weight in zip(signs, weights, strict=True))
    return f"{letter}{number}{-total % 10}"


def tax_id_de(body: str) -> str:
    """A German tax number of eleven digits (ISO 7064 mod 11, 10)."""
    product = 10
    for digit in body:
        total = (int(digit) + product) % 10 or 10
        product = total * 2 % 11
    return body + str((11 - product) % 10)


def social_fr(body: str) -> str:
    """A French social security number: 13 digits and a key of two."""
    return f"{body}{97 - int(body) % 97:02}"


def identity_es(number: str) -> str:
    """A Spanish DNI: eight digits and a letter."""
    return number + "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23]


def pesel(body: str) -> str:
    """A Polish PESEL of eleven digits."""
    weights = (1, 3, 7, 9, 1, 3, 7, 9, 1, 3)
    total = sum(int(d) * w for d, w in zip(body, weights, strict=True))
    return body + str(-total % 10)


def citizen_nl(rng: random.Random) -> str:
    """A Dutch BSN of nine digits."""
    while True:
        body = digits(rng, 8)
        total = sum(int(d) * w for d, w in zip(body, range(9, 1, -1), strict=True))
        if total % 11 < 10:
            return body + str(total % 11)


def routing_us(body: str) -> str:
    """An American routing number of nine digits."""
    total = sum(int(d) * w for d, w in zip(body, (3, 7, 1) * 2 + (3, 7), strict=True))
    return body + str(-total % 10)

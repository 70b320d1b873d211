"""Made-up personal data of every type, in the formats in which people write it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TypeAlias

from benchmarks.redaction import checksums, vocabulary as words
from benchmarks.redaction.checksums import digits

Maker: TypeAlias = Callable[[random.Random], str]


def email(rng: random.Random) -> str:
    """An address at a domain of the vocabulary."""
    first, last = rng.choice(words.GIVEN), rng.choice(words.FAMILY)
    name = rng.choice(("{0}.{1}", "{0}{2}", "{0}_{1}{2}", "{0}+{3}", "{1}-{0}")).format(
        first, last, rng.randint(1, 99), rng.choice(words.SYMBOLS)
    )
    name = name if rng.random() < 0.2 else name.lower()
    return f"{name}@{rng.choice(words.DOMAINS)}"


def mobile_cn(rng: random.Random) -> str:
    """A Chinese mobile number, plain, grouped or with the country's code."""
    head = f"1{rng.choice('3456789')}{rng.randint(0, 9)}"
    middle, tail = digits(rng, 4), digits(rng, 4)
    form = rng.choice(
        ("{}{}{}", "{}{}{}", "{}-{}-{}", "{} {} {}", "+86 {}{}{}", "+86-{}-{}-{}")
    )
    return form.format(head, middle, tail)


def landline_cn(rng: random.Random) -> str:
    """A Chinese landline with its area code."""
    area = rng.choice(("010", "021", "0755", "0571", "028", "0431"))
    return f"{area}-{digits(rng, 8 if len(area) == 3 else 7)}"


def phone_us(rng: random.Random) -> str:
    """An American number, as written there."""
    area, office, line = f"{rng.randint(201, 989)}", f"{rng.randint(200, 999)}", 0
    line = rng.randint(1000, 9999)
    form = rng.choice(
        ("({}) {}-{}", "{}-{}-{}", "{}.{}.{}", "+1 {} {} {}", "+1-{}-{}-{}", "+1{}{}{}")
    )
    return form.format(area, office, line)


def phone_world(rng: random.Random) -> str:
    """An international number with its country's code."""
    r = rng.randint
    return rng.choice(
        (
            f"+44 20 7{r(100, 999)} {r(1000, 9999)}",
            f"+44 7{r(100, 999)} {r(100000, 999999)}",
            f"+49 30 {r(1000000, 9999999)}",
            f"+49 (0)89 {r(100000, 999999)}",
            f"+33 6 {r(10, 99)} {r(10, 99)} {r(10, 99)} {r(10, 99)}",
            f"+81-90-{r(1000, 9999)}-{r(1000, 9999)}",
            f"+55 11 9{r(1000, 9999)}-{r(1000, 9999)}",
            f"+61 4{r(10, 99)} {r(100, 999)} {r(100, 999)}",
            f"+34 6{r(10, 99)} {r(100, 999)} {r(100, 999)}",
        )
    )


def phone_local(rng: random.Random) -> str:
    """A national number that only its context tells from another number."""
    r = rng.randint
    return rng.choice(
        (
            f"0{r(20, 89)} {r(1000000, 9999999)}",
            f"0{r(100, 499)}/{r(100000, 999999)}",
            f"06 {r(10, 99)} {r(10, 99)} {r(10, 99)} {r(10, 99)}",
            f"07{r(100, 999)} {r(100000, 999999)}",
            f"{r(200, 989)}{r(200, 999)}{r(1000, 9999)}",
            f"{r(200, 999)}-{r(1000, 9999)}",
            f"0{r(41, 49)} {r(10, 99)} {r(10, 99)} {r(10, 99)}",
        )
    )


def bank_card(rng: random.Random) -> str:
    """A card number that passes Luhn, plain or in groups."""
    head, length = rng.choice(
        (
            ("4", 16),
            ("5" + rng.choice("12345"), 16),
            ("37", 15),
            ("6222", 19),
            ("62", 16),
        )
    )
    number = checksums.luhn(head + digits(rng, length - len(head) - 1))
    if length == 15:
        parts = [number[:4], number[4:10], number[10:]]
    else:
        parts = [number[at : at + 4] for at in range(0, length, 4)]
    return rng.choice(("", " ", "-", "")).join(parts)


def resident_id(rng: random.Random) -> str:
    """A Chinese identity number with a true check digit."""
    area = rng.choice(("110105", "310104", "440305", "330106", "510107", "420106"))
    birth = f"{rng.randint(1955, 2006)}{rng.randint(1, 12):02}{rng.randint(1, 28):02}"
    return checksums.resident_id(area, birth, f"{rng.randint(1, 999):03}")


def credit_code(rng: random.Random) -> str:
    """A Chinese company's unified social credit code."""
    area = rng.choice(("110108", "310115", "440300", "330100"))
    body = "".join(rng.choices(checksums.USCC, k=9))
    return checksums.credit_code(f"91{area}{body}")


def plate(rng: random.Random) -> str:
    """A Chinese number plate, old style or new energy."""
    head = rng.choice("京沪粤浙川鄂苏鲁") + rng.choice("ABCDEFGH")
    tail = "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZ0123456789", k=4))
    return head + rng.choice((f"{digits(rng, 5)}", f"D{digits(rng, 5)}", f"{tail}8"))


def iban(rng: random.Random) -> str:
    """An IBAN of one of six countries, plain or in groups of four."""
    account = rng.choice(
        (
            ("DE", digits(rng, 18)),
            ("GB", "NWBK" + digits(rng, 14)),
            ("FR", digits(rng, 23)),
            ("ES", digits(rng, 20)),
            ("NL", "ABNA" + digits(rng, 10)),
            ("CH", digits(rng, 17)),
        )
    )
    number = checksums.iban(*account)
    groups = " ".join(number[at : at + 4] for at in range(0, len(number), 4))
    return rng.choice((number, groups))


def ssn(rng: random.Random) -> str:
    """An American social security number with dashes."""
    area = rng.choice([n for n in range(1, 900) if n != 666])
    return f"{area:03}-{rng.randint(1, 99):02}-{rng.randint(1, 9999):04}"


def ip4(rng: random.Random) -> str:
    """An address of version 4 that is neither loopback nor a mask."""
    return f"{rng.choice((10, 45, 81, 192, 203))}." + ".".join(
        str(rng.randint(1, 254)) for _ in range(3)
    )


def ip6(rng: random.Random) -> str:
    """An address of version 6, whole or with its zeros left out."""
    groups = [f"{rng.randint(1, 0xFFFF):x}" for _ in range(4)]
    whole = "2001:0db8:85a3:0000:0000:" + ":".join(
        f"{int(g, 16):04x}" for g in groups[:3]
    )
    return rng.choice((f"2001:db8:{groups[0]}::{groups[1]}", whole))


def mac(rng: random.Random) -> str:
    """A hardware address."""
    pairs = [f"{rng.randint(0, 255):02x}" for _ in range(6)]
    text = rng.choice((":", "-")).join(pairs)
    return rng.choice((text, text.upper()))


def passport_cn(rng: random.Random) -> str:
    """A Chinese passport's number."""
    return rng.choice(("E", "G", "EA", "EB"))[:2].ljust(2, "1") + digits(rng, 7)


PERSONAL: Mapping[str, tuple[Maker, ...]] = {
    "EMAIL": (email,),
    "PHONE": (mobile_cn, phone_us, phone_world, landline_cn),
    "PHONE_LOCAL": (phone_local,),
    "BANK_CARD": (bank_card,),
    "ID_CARD": (resident_id,),
    "USCC": (credit_code,),
    "LICENSE_PLATE": (plate,),
    "IBAN": (iban,),
    "SSN": (ssn,),
    "IP": (ip4, ip4, ip6),
    "MAC": (mac,),
    "PASSPORT": (passport_cn,),
    "STUDENT_ID": (lambda rng: f"20{rng.randint(18, 25)}{digits(rng, 6)}",),
    "HKID": (
        lambda rng: checksums.hong_kong_id(rng.choice("ACDGKPZ"), digits(rng, 6)),
    ),
    "TWID": (
        lambda rng: checksums.taiwan_id(
            rng.choice("ABFHNP"), rng.choice("12") + digits(rng, 7)
        ),
    ),
    "TAX_ID_DE": (lambda rng: checksums.tax_id_de(digits(rng, 10)),),
    "SOCIAL_FR": (
        lambda rng: checksums.social_fr(
            f"{rng.choice('12')}{rng.randint(50, 99)}{rng.randint(1, 12):02}"
            f"{rng.randint(10, 89)}{rng.randint(100, 399)}{rng.randint(100, 899)}"
        ),
    ),
    "IDENTITY_ES": (lambda rng: checksums.identity_es(digits(rng, 8)),),
    "PESEL": (
        lambda rng: checksums.pesel(
            f"{rng.randint(50, 99)}{rng.randint(1, 12):02}{rng.randint(1, 28):02}"
            f"{rng.randint(1000, 9999)}"
        ),
    ),
    "CITIZEN_NL": (checksums.citizen_nl,),
    "ROUTING_US": (
        lambda rng: checksums.routing_us(f"0{rng.randint(11, 99)}{digits(rng, 5)}"),
    ),
}


def make(rng: random.Random, kind: str) -> str:
    """A value of ``kind``, one of the keys of ``PERSONAL``."""
    return rng.choice(PERSONAL[kind])(rng)

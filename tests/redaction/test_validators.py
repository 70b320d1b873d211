"""Check digits agree with other implementations, and validators with theirs."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given, strategies as st
from stdnum import iban as stdnum_iban, luhn as stdnum_luhn
from stdnum.cn import ric as stdnum_ric, uscc as stdnum_uscc
from stdnum.de import idnr as stdnum_idnr
from stdnum.es import dni as stdnum_dni, nie as stdnum_nie
from stdnum.fr import nir as stdnum_nir
from stdnum.gb import nhs as stdnum_nhs
from stdnum.iso7064 import mod_97_10
from stdnum.it import codicefiscale as stdnum_codice
from stdnum.nl import bsn as stdnum_bsn
from stdnum.pl import pesel as stdnum_pesel
from stdnum.us import rtn as stdnum_rtn, ssn as stdnum_ssn

from refold.redaction.checks import (
    Candidate,
    Validator,
    numbers,
    numbers as national,
    secrets as keys,
    secrets as secret,
)
from refold.redaction.checks.names import iban_lengths

DIGITS = "0123456789"
UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def candidate(value: str, before: str = "", after: str = "") -> Candidate:
    match = re.compile(re.escape(value)).match(before + value + after, len(before))
    assert match
    return Candidate(before + value + after, *match.span(), match)


def digits(length: int) -> st.SearchStrategy[str]:
    return st.text(DIGITS, min_size=length, max_size=length)


def with_some_check(
    body: st.SearchStrategy[str], alphabet: str
) -> st.SearchStrategy[list[str]]:
    """A body with each character that may be its check."""
    return body.map(lambda text: [text + last for last in alphabet])


def agrees(ours: Validator, theirs: ModuleType, candidates: list[str]) -> None:
    accepted = {value for value in candidates if ours(candidate(value))}

    assert accepted == {value for value in candidates if theirs.is_valid(value)}


@given(digits(15))
def test_luhn_agrees_with_other_implementations(body: str) -> None:
    for last in DIGITS:
        assert numbers.luhn(body + last) == stdnum_luhn.is_valid(body + last)


@given(
    st.sampled_from(sorted(iban_lengths())),
    st.text(DIGITS + UPPER, min_size=40, max_size=40),
)
def test_an_iban_has_its_country_length_and_check_digits(
    country: str, account: str
) -> None:
    body = account[: iban_lengths()[country] - 4]
    right = [
        number
        for check in range(2, 99)
        if numbers.iban(candidate(number := f"{country}{check:02}{body}"))
    ]

    assert len(right) == 1
    assert mod_97_10.is_valid(right[0][4:] + right[0][:4])
    assert not numbers.iban(candidate(right[0] + "0"))
    assert numbers.iban(candidate(right[0].lower()))


@pytest.mark.parametrize(
    "number",
    [
        "GB33BUKB20201555555555",
        "DE75512108001245126199",
        "FR7630006000011234567890189",
        "NL02ABNA0123456789",
        "BE71096123456769",
        "NO8330001234567",
    ],
)
def test_an_iban_accepted_by_others_is_accepted(number: str) -> None:
    assert stdnum_iban.is_valid(number)
    assert numbers.iban(candidate(number))


@given(
    with_some_check(
        st.builds(
            lambda region, year, rest: f"{region}{year}{rest}",
            st.sampled_from(("110101", "310104")),
            st.integers(1900, 2020),
            st.sampled_from(("0101", "1231", "0229", "0231", "1301")).flatmap(
                lambda day: digits(3).map(lambda serial: day + serial)
            ),
        ),
        DIGITS + "X",
    )
)
def test_a_chinese_identity_number_agrees_with_other_implementations(
    candidates: list[str],
) -> None:
    agrees(national.id_card, stdnum_ric, candidates)


@given(
    with_some_check(
        st.text("0123456789ABCDEFGHJKLMNPQRTUWXY", min_size=9, max_size=9).map(
            lambda organisation: "91110000" + organisation
        ),
        "0123456789ABCDEFGHJKLMNPQRTUWXY",
    )
)
def test_a_social_credit_code_ends_with_its_check(candidates: list[str]) -> None:
    right = [code for code in candidates if national.uscc_checksum(code)]

    assert right == [
        code
        for code in candidates
        if stdnum_uscc.calc_check_digit(code[:-1]) == code[-1]
    ]
    assert len(right) == 1


@given(digits(9))
def test_a_social_security_number_agrees_with_other_implementations(
    number: str,
) -> None:
    dashed = f"{number[:3]}-{number[3:5]}-{number[5:]}"
    known_to_all = ("078-05-1120", "457-55-5462", "219-09-9999")
    if dashed not in known_to_all:
        assert national.ssn(candidate(dashed)) == stdnum_ssn.is_valid(dashed)


NATIONAL: list[tuple[Validator, ModuleType, st.SearchStrategy[list[str]]]] = [
    (national.spanish_id, stdnum_dni, with_some_check(digits(8), UPPER)),
    (
        national.spanish_id,
        stdnum_nie,
        with_some_check(
            st.builds(str.__add__, st.sampled_from("XYZ"), digits(7)), UPPER
        ),
    ),
    (national.nhs, stdnum_nhs, with_some_check(digits(9), DIGITS)),
    (
        national.dutch_bsn,
        stdnum_bsn,
        with_some_check(digits(8).filter(lambda n: int(n) > 0), DIGITS),
    ),
    (
        national.routing,
        stdnum_rtn,
        with_some_check(
            st.builds(
                str.__add__,
                st.sampled_from(("01", "12", "21", "32", "61", "80")),
                digits(6),
            ),
            DIGITS,
        ),
    ),
]


@pytest.mark.parametrize(("ours", "theirs", "candidates"), NATIONAL)
def test_a_national_number_agrees_with_other_implementations(
    ours: Validator, theirs: ModuleType, candidates: st.SearchStrategy[list[str]]
) -> None:
    @given(candidates)
    def law(drawn: list[str]) -> None:
        agrees(ours, theirs, drawn)

    law()


@pytest.mark.parametrize(
    ("ours", "theirs", "shape"),
    [
        (national.german_tax_id, stdnum_idnr, "9" * 11),
        (national.french_nir, stdnum_nir, "9" * 15),
        (national.pesel, stdnum_pesel, "9" * 11),
    ],
)
def test_numbers_that_stdnum_accepts_are_accepted(
    ours: Validator, theirs: ModuleType, shape: str
) -> None:
    draw = random.Random(7)
    drawn = ["".join(draw.choice(DIGITS) for _ in shape) for _ in range(20_000)]
    valid = [
        number
        for number in drawn
        if theirs.is_valid(number)
        and (theirs is not stdnum_pesel or number[2] in "0123")
    ]

    assert valid
    assert not [number for number in valid if not ours(candidate(number))]


@pytest.mark.parametrize("code", ["RCCMNL83S18D969H", "RSSMRA85T10A562S"])
def test_an_italian_tax_code_ends_with_its_check(code: str) -> None:
    right = [
        letter
        for letter in UPPER
        if national.codice_fiscale(candidate(code[:-1] + letter))
    ]

    assert right == [stdnum_codice.calc_check_digit(code[:-1])]


@pytest.mark.parametrize(
    ("judge", "right", "wrong"),
    [
        (national.hkid, "A123456(3)", "A123456(4)"),
        (national.hkid, "AB987654(3)", "AB987654(2)"),
        (national.hkid, "C668668(9)", "C668668(8)"),
        (national.taiwan_id, "A123456789", "A123456788"),
        (national.taiwan_id, "A800000014", "A800000013"),
        (national.nino, "AB123456C", "GB123456C"),
        (national.vat, "DE136695976", "DE136695978"),
        (national.vat, "ATU13585627", "AT13585627"),
        (national.vat, "NL123456789B01", "NL123456789X01"),
    ],
)
def test_numbers_that_are_known(judge: Validator, right: str, wrong: str) -> None:
    assert judge(candidate(right))
    assert not judge(candidate(wrong))


def jwt_of(header: object) -> str:
    head = base64.urlsafe_b64encode(json.dumps(header).encode()).decode().rstrip("=")
    return f"{head}.eyJzdWIiOiI3In0.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("header", "is_one"),
    [
        ({"alg": "HS256", "typ": "JWT"}, True),
        ({"enc": "A256GCM"}, True),
        ({"typ": "JWT"}, False),
        (["alg"], False),
        ("alg", False),
    ],
)
def test_a_jwt_begins_with_a_header_that_names_an_algorithm(
    header: object, is_one: bool
) -> None:
    assert keys.jwt(candidate(jwt_of(header))) is is_one


@given(st.text(max_size=40))
def test_entropy_is_between_nothing_and_that_of_all_different(text: str) -> None:
    assert 0 <= secret.entropy(text) <= len(f"{len(text):b}")


def test_entropy_is_of_how_many_characters_differ() -> None:
    assert secret.entropy("aaaa") == 0
    assert secret.entropy("abab") == 1
    assert secret.entropy("abcd") == 2


@pytest.mark.parametrize(
    ("judge", "value", "is_one"),
    [
        (keys.issued, "ghp_000000000000000000000000000000FAKE", True),
        (keys.issued, "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", False),
        (keys.issued, "AKIAIOSFODNN7EXAMPLE", False),
        (keys.varied, "q7Zt0Kx3Vb9Lm2Np", True),
        (keys.varied, "continuous-integration", False),
        (keys.basic, "YWRhOmh1bnRlcjI=", True),
        (keys.basic, "YWRhaHVudGVyMg==", False),
        (keys.session, "f3a9k2lq8zt0vb7np5rs1x", True),
        (keys.session, "7f3a9c1e-5b8d-4046-ace8-137f95bd0462", False),
        (keys.cookie, "theme=dark; sid=f3a9K2lq8Zt0Vb7Np5Rs", True),
        (keys.cookie, "theme=dark; lang=en", False),
    ],
)
def test_keys_and_tokens_are_distinguished_from_stand_ins(
    judge: Validator, value: str, is_one: bool
) -> None:
    assert bool(judge(candidate(value))) is is_one


@pytest.mark.parametrize(
    ("judge", "value", "before", "after"),
    [
        (numbers.mobile, "13912345670", '{"ts": ', "}"),
        (numbers.mobile, "13912345670", "id=", ""),
        (numbers.mobile, "13912345670", "-rw-r--r-- 1 a a ", ""),
        (numbers.mobile, "13912345670", "编号", ""),
        (keys.url_password, "pass", "https://user:", "@hostname/x"),
        (keys.url_password, "$PASSWORD", "https://user:", "@db.example.com"),
    ],
)
def test_text_around_a_value_can_refuse_it(
    judge: Callable[[Candidate], bool], value: str, before: str, after: str
) -> None:
    assert not judge(candidate(value, before, after))

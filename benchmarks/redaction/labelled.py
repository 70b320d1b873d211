"""Labelled texts of our own: every type in several languages and carriers, and traps.

What is held out stands in other sentences and carriers than what rules are tuned to.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.redaction import personal
from benchmarks.redaction.credentials import HEX, SECRETS, run, uuid
from benchmarks.redaction.finding import Span
from benchmarks.redaction.traps import TRAPS
from benchmarks.redaction.vendors import CARRIERS, VENDORS, carried, secret_of


class Item(NamedTuple):
    """A text, what in it is to be found, and whether rules may be tuned to it."""

    text: str
    spans: tuple[Span, ...]
    held_out: bool
    name: str = ""


# By type: sentences to tune to, and sentences held out.
_SENTENCES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "EMAIL": (
        ("Write to {} today.", "邮箱：{}", '{{"email": "{}"}}', "<a href=mailto:{}>"),
        ("Schreib an {}, bitte!", "抄送{}。", "From: Ada <{}>", "uid=7;mail={};ok"),
    ),
    "PHONE": (
        ("Call {} now", "手机{}", '{{"phone": "{}"}}', "电话：{}，谢谢", "tel:{}"),
        ("Ring me on {}, please", "打给{}吧", "mobile,{},ok", "Rückruf unter {}."),
    ),
    "PHONE_LOCAL": (
        ("Phone: {}", "my phone number is {}.", "Tel. {}", '{{"mobile": "{}"}}'),
        ("Fax: {}", "reach me by phone at {}", "Téléphone : {}", "Telefon: {}"),
    ),
    "BANK_CARD": (
        ("Card {} was charged.", "银行卡{}", '{{"card_number": "{}"}}', "{}"),
        ("Karte: {}", "刷了{}这张卡", "pan={}&cvv=", "I lost {} yesterday"),
    ),
    "ID_CARD": (
        ("身份证号：{}", "id card {} checked", '{{"id_number": "{}"}}', "{}"),
        ("证件{}已核验", "办理人（{}）", "row 3 | {} | ok", "He showed {}."),
    ),
    "USCC": (
        ("统一社会信用代码：{}", '{{"uscc": "{}"}}'),
        ("税号 {}", "开票信息：某公司，{}。"),
    ),
    "LICENSE_PLATE": (("车牌{}", "车牌号：{}。"), ("{}停在楼下", "他开{}走了")),
    "IBAN": (
        ("IBAN {}", "Pay to {} please.", '{{"iban": "{}"}}'),
        ("Überweisung auf {} heute", "compte {}.", "汇款到 {}"),
    ),
    "SSN": (
        ("SSN: {}", "My social security number is {}.", '{{"ssn": "{}"}}'),
        ("He gave {} as his SSN", "ssn,{},ok", "Applicant {} approved"),
    ),
    "IP": (
        ("Connection from {} refused", "服务器IP是{}", '{{"ip": "{}"}}'),
        ("ssh {} failed", "[{}] GET /", "屏蔽了{}。", "peer={} up"),
    ),
    "MAC": (("MAC {} joined", "地址{}"), ("lladdr {} REACHABLE", "hwaddr={}")),
    "PASSPORT": (("护照号：{}", "护照 {}"), ("护照号码为{}。", "passport no. {}")),
    "STUDENT_ID": (
        ("学号：{}", "student id {}"),
        ("学号是{}。", '{{"student_no": "{}"}}'),
    ),
    "HKID": (("香港身份证 {}", "HKID: {}"), ("HKID card {} shown", "{}（香港）")),
    "TWID": (("身分證字號：{}", "台湾身份证 {}"), ("身分證 {}。", "身份证字号 {}")),
    "TAX_ID_DE": (
        ("Steuer-ID: {}", "Steueridentifikationsnummer {}"),
        ("IdNr. {}", "meine Steuer-IdNr lautet {}"),
    ),
    "SOCIAL_FR": (
        ("NIR : {}", "numéro de sécurité sociale {}"),
        ("n° sécu {}", "Sécurité sociale : {}"),
    ),
    "IDENTITY_ES": (("DNI: {}", "con DNI {}"), ("NIF {}", "documento {} (DNI)")),
    "PESEL": (("PESEL: {}", "pesel {}"), ("numer PESEL {}", '{{"pesel": "{}"}}')),
    "CITIZEN_NL": (("BSN: {}", "burgerservicenummer {}"), ("bsn {}", "BSN-nummer {}")),
    "ROUTING_US": (
        ("routing number {}", "ABA {}"),
        ("Routing #: {}", '{{"routing_number": "{}"}}'),
    ),
    "JWT": (
        ("Cookie: session={}", "jwt {}", 'token = "{}"'),
        ("id_token={}&state=x", "收到 {} 后", "Authorization: Bearer {}"),
    ),
    "PRIVATE_KEY": (("{}\n", "key.pem:\n{}\nend"), ("cat id_rsa\n{}\n$ ", "私钥\n{}")),
    "PASSWORD": (
        ("password: {}", "密码：{}", "DB_PASSWORD={}", '{{"password": "{}"}}'),
        ("my password is {}", "口令是{}", "mysql --password={} app", "passwd={};"),
    ),
    "TOKEN": (
        ('api_token = "{}"', "Authorization: Bearer {}", "SECRET_KEY={}"),
        ("X-Auth-Token: {}", "auth_token: {}", '{{"clientSecret":"{}"}}'),
    ),
}


def items(rng: random.Random, each: int) -> list[Item]:
    """``each`` texts of each type in each half, as many traps, and keys of vendors."""
    made: list[Item] = []
    for kind, halves in _SENTENCES.items():
        for held_out, sentences in enumerate(halves):
            for number in range(each):
                sentence = sentences[number % len(sentences)]
                made.append(_item(rng, kind, sentence, bool(held_out)))
    return [*made, *_traps(rng, each * 4)]


def vendor_items(rng: random.Random) -> list[Item]:
    """A key of each vendor in each carrier that is held out if the vendor is."""
    made = []
    for number, vendor in enumerate(VENDORS):
        held_out = number % 2 == 1
        for carrier in (name for name, held in CARRIERS.items() if held is held_out):
            value = vendor.make(rng)
            secret = secret_of(value)
            text = carried(vendor, carrier, value)
            start = text.index(secret)
            span = Span(start, start + len(secret), "API_KEY")
            name = f"{vendor.name} · {carrier}"
            made.append(Item(text, (span,), held_out, name))
    return made


def _item(rng: random.Random, kind: str, sentence: str, held_out: bool) -> Item:
    value = SECRETS[kind](rng) if kind in SECRETS else personal.make(rng, kind)
    before, _, after = sentence.replace("{{", "{").replace("}}", "}").partition("{}")
    span = Span(len(before), len(before) + len(value), _TYPE.get(kind, kind))
    return Item(before + value + after, (span,), held_out, kind)


def _traps(rng: random.Random, each: int) -> Iterator[Item]:
    """What looks like personal data and is none."""
    for number in range(each):
        trap = TRAPS[number % len(TRAPS)]
        text = trap.format(
            d6=rng.randint(10**5, 10**6 - 1),
            d8=rng.randint(10**7, 10**8 - 1),
            d10=rng.randint(2 * 10**9, 10**10 - 1),
            d12=rng.randint(10**11, 10**12 - 1),
            ms=rng.randint(1_500_000_000_000, 1_900_000_000_000),
            h40=run(rng, 40, HEX),
            h64=run(rng, 64, HEX),
            uuid=uuid(rng),
            f=rng.random(),
        )
        yield Item(text, (), number // len(TRAPS) % 2 == 1, "trap")


_TYPE = {"PHONE_LOCAL": "PHONE", "PASSWORD": "SECRET", "TOKEN": "SECRET"}

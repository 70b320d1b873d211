"""Labelled texts, our own and those of ``--data``, and how many labels a tool finds.

Held-out values are in other sentences and carriers than those to which rules are tuned.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.redaction import values
from benchmarks.redaction.tools import Span, Tool
from benchmarks.redaction.values import (
    CARRIERS,
    HEX,
    SECRETS,
    VENDORS,
    carried,
    run,
    secret_of,
    uuid,
)

TRAPS: tuple[str, ...] = (
    '{{"ts": {ms}, "n": 3}}',
    '{{"id": {d10}, "size": {d12}}}',
    "订单号 {d12} 已发货",
    "order no. {d12} left the warehouse",
    "commit {h40}",
    "sha256:{h64}",
    "request {uuid} took {d6} µs",
    "loss={f:.15f} lr={f:.3e}",
    "version 1.2.3.4 released",
    "chrome/120.0.6099.109 on v10.2.33.4",
    "PASSWORD_MIN_LENGTH=12",
    "MAX_TOKENS=100",
    "max_tokens: 4096, stop: null",
    'password = os.environ["DB_PASSWORD"]',
    "password: str | None = None",
    "api_key: ${{{{ secrets.API_KEY }}}}",
    "DB_PASSWORD=$DB_PASSWORD",
    "DB_PASSWORD=${{DB_PASSWORD:?not set}}",
    "token = get_token(user)",
    "Authorization: Bearer <token>",
    "Authorization: Bearer $TOKEN",
    "postgres://user:password@host:5432/db",
    "postgres://$USER:$PASS@db/app",
    "git clone git@github.com:org/repo.git",
    "import {{x}} from '@scope/package'",
    "@dataclass(frozen=True)",
    "AKIA is the prefix of an access key",
    "keys start with sk- or ghp_",
    "-----BEGIN CERTIFICATE-----",
    "ssh-rsa is an algorithm, eyJ is how a token starts",
    "please call me back, my phone is broken",
    "手机没电了，明天再打电话",
    "密码忘记了怎么办？",
    "密码长度至少 8 位，身份证照片请上传",
    "2026-03-04 05:06:07.{d6}",
    "ratio 3.14159265358979 of {d8}",
    "ISBN 978-3-16-148410-0",
    "page 1234-5678 of 9999",
    "matrix 1234 5678 9012 3456 7890",
    "range 100-200-3000, step 555",
    "127.0.0.1:8080 and 0.0.0.0",
    "build {d8}, run {d10}, inode {d12}",
    "the secret of success: patience",
    "token: a word or a part of one",
    "std::vector<int>::iterator, a::b::c",
    "12:34:56 and 1:2:3",
    "G12345678 是订单编号",
    "部门编号 91110108，共 18 位",
    "C12345678",
    "x-request-id: {uuid}",
)


class Item(NamedTuple):
    """A text, its values to be found, and whether rules may be tuned to it."""

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
    "PASSPORT_US": (
        ("passport number {}", "US passport: {}"),
        ('{{"passportNo": "{}"}}', "Her passport # is {}."),
    ),
    "NINO": (
        ("National Insurance number {}", "NINO: {}"),
        ("NI number is {}.", '{{"nino": "{}"}}'),
    ),
    "LICENSE_US": (
        ("driver's license {}", "Driver License No: {}"),
        ('{{"driver_license": "{}"}}', "my drivers licence number is {}"),
    ),
    "ADDRESS_EN": (
        ("I live at {}", "Ship to: {}", '{{"address": "{}"}}'),
        ("Please send the parcel to {}, thanks", "billing address = {}", "{}"),
    ),
    "ADDRESS_ZH": (
        ("地址：{}", "我住在{}", '{{"address": "{}"}}'),
        ("快递放到{}就行", "公司搬到了{}。", '{{"收货地址": "{}"}}'),
    ),
    "QQ": (("QQ：{}", "加我QQ {}"), ("qq号是{}", '{{"qq": "{}"}}', "QQ群 {} 已满")),
    "WECHAT": (
        ("微信号：{}", "WeChat ID: {}"),
        ("加我微信{}", "vx：{}", '{{"wechat": "{}"}}', "my wechat is {}"),
    ),
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
    labelled: list[Item] = []
    for kind, halves in _SENTENCES.items():
        for held_out, sentences in enumerate(halves):
            for number in range(each):
                sentence = sentences[number % len(sentences)]
                labelled.append(_item(rng, kind, sentence, bool(held_out)))
    return [*labelled, *_traps(rng, each * 4)]


def vendor_items(rng: random.Random) -> list[Item]:
    """Return a key of each vendor in each carrier that is held out if the vendor is."""
    labelled = []
    for number, vendor in enumerate(VENDORS):
        held_out = number % 2 == 1
        for carrier in (
            name for name, is_held_out in CARRIERS.items() if is_held_out is held_out
        ):
            value = vendor.make(rng)
            secret = secret_of(value)
            text = carried(vendor, carrier, value)
            start = text.index(secret)
            span = Span(start, start + len(secret), "API_KEY")
            name = f"{vendor.name} · {carrier}"
            labelled.append(Item(text, (span,), held_out, name))
    return labelled


def _item(rng: random.Random, kind: str, sentence: str, held_out: bool) -> Item:
    value = SECRETS[kind](rng) if kind in SECRETS else values.make(rng, kind)
    before, _, after = sentence.replace("{{", "{").replace("}}", "}").partition("{}")
    span = Span(len(before), len(before) + len(value), _TYPE.get(kind, kind))
    return Item(before + value + after, (span,), held_out, kind)


def _traps(rng: random.Random, each: int) -> Iterator[Item]:
    """Return texts that look like personal data and are none."""
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


_TYPE = {
    "PASSPORT_US": "PASSPORT",
    "NINO": "NATIONAL_ID",
    "LICENSE_US": "DRIVER_LICENSE",
    "ADDRESS_EN": "ADDRESS",
    "ADDRESS_ZH": "ADDRESS",
    "PHONE_LOCAL": "PHONE",
    "PASSWORD": "SECRET",
    "TOKEN": "SECRET",
}


SENTENCES = "pii_presidio_synth_v2.json"
CASES = "pii_cases_dev.json"
STRUCTURED = {
    "CREDIT_CARD": "BANK_CARD",
    "EMAIL_ADDRESS": "EMAIL",
    "IBAN_CODE": "IBAN",
    "IP_ADDRESS": "IP",
    "PHONE_NUMBER": "PHONE",
    "US_SSN": "SSN",
}


class Case(NamedTuple):
    """A text that must, or must not, lose its ``expected`` value."""

    id: str
    text: str
    must: bool
    expected: str


def sentences(folder: Path) -> list[Item]:
    """The sentences with spans; those of odd index are held out."""
    return [
        Item(entry["full_text"], tuple(map(_span, entry["spans"])), index % 2 == 1)
        for index, entry in enumerate(_read(folder / SENTENCES))
    ]


def cases(folder: Path) -> list[Case]:
    """The cases."""
    return [
        Case(
            f"{entry['fixture']}/{entry['id']}",
            entry["input"],
            entry["should_match"],
            entry.get("expected_text") or "",
        )
        for entry in _read(folder / CASES)
    ]


def _span(span: dict[str, Any]) -> Span:
    kind = span["entity_type"]
    kind = STRUCTURED.get(kind, f"other:{kind}")
    return Span(span["start_position"], span["end_position"], kind)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@dataclass(slots=True)
class Count:
    """Of one type: labelled values, those covered wholly and partly; and findings."""

    spans: int = 0
    whole: int = 0
    part: int = 0
    found: int = 0
    false: int = 0

    @property
    def missed(self) -> int:
        """Return the values of which no character was covered."""
        return self.spans - self.whole - self.part

    @property
    def recall(self) -> float:
        """Share of the values that were covered wholly."""
        return self.whole / self.spans if self.spans else 1.0

    @property
    def precision(self) -> float:
        """Share of the findings that touch something labelled."""
        return 1 - self.false / self.found if self.found else 1.0

    def add(self, other: Count) -> None:
        """Count ``other`` in."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Score:
    """Counts by type, and values that were not covered or falsely found."""

    types: dict[str, Count] = field(default_factory=lambda: defaultdict(Count))
    missed: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)

    @property
    def total(self) -> Count:
        """All types together."""
        total = Count()
        for count in self.types.values():
            total.add(count)
        return total


def score(tool: Tool, items: Iterable[Item]) -> Score:
    """Run ``tool`` on ``items``.

    Types that start with ``other:`` are labelled but not requested: they count neither
    as missed nor, if something is found in them, as falsely found.
    """
    result = Score()
    for item in items:
        spans = tool.spans(item.text)
        _count_labelled(result, item, spans)
        _count_found(result, item, spans)
    return result


def _count_labelled(result: Score, item: Item, found_spans: Sequence[Span]) -> None:
    for span in item.spans:
        if span.type.startswith("other:"):
            continue
        count = result.types[span.type]
        count.spans += 1
        left = _left(item.text, span, found_spans)
        if not left:
            count.whole += 1
            continue
        value = item.text[span.start : span.end]
        count.part += left < sum(map(str.isalnum, value))
        result.missed.append(f"{item.name or span.type}: {item.text!r}")


def _count_found(result: Score, item: Item, found_spans: Sequence[Span]) -> None:
    for span in found_spans:
        result.types[span.type].found += 1
        if not any(s.start < span.end and span.start < s.end for s in item.spans):
            result.types[span.type].false += 1
            result.false.append(f"{span.type}: {item.text!r}")


def _left(text: str, span: Span, found_spans: Sequence[Span]) -> int:
    """How many letters and digits of ``span`` nothing covers."""
    return sum(
        text[at].isalnum() and not any(f.start <= at < f.end for f in found_spans)
        for at in range(span.start, span.end)
    )


def wrong(tool: Tool, cases: Iterable[Case]) -> dict[str, str]:
    """Return the cases with a wrong result, and how it is wrong."""
    verdicts = {case.id: _fault(tool, case) for case in cases}
    return {name: fault for name, fault in verdicts.items() if fault}


def _fault(tool: Tool, case: Case) -> str:
    found_spans = tool.spans(case.text)
    if not case.must:
        return f"found {found_spans[0].type} in {case.text!r}" if found_spans else ""
    if not found_spans:
        return f"missed in {case.text!r}"
    start = case.text.find(case.expected)
    whole = Span(start, start + len(case.expected), "")
    return (
        f"partly covered in {case.text!r}"
        if _left(case.text, whole, found_spans)
        else ""
    )

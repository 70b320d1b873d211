"""Generated values: of people, with valid check digits; secrets; keys of vendors."""

from __future__ import annotations

import base64
import json
import random
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from benchmarks.redaction import prose

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


def checked_iban(country: str, account: str) -> str:
    """The IBAN of ``account``, with check digits by ISO 7064."""
    spelt = "".join(str(int(sign, 36)) for sign in f"{account}{country}00")
    return f"{country}{98 - int(spelt) % 97:02}{account}"


def checked_resident_id(area: str, birth: str, serial: str) -> str:
    """A resident identity number of 18 characters (GB 11643)."""
    body = area + birth + serial
    total = sum(int(digit) * pow(2, 17 - place) for place, digit in enumerate(body))
    return body + "10X98765432"[total % 11]


def checked_credit_code(body: str) -> str:
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


LETTERS = string.ascii_letters
LOWER = string.ascii_lowercase
ALNUM = LETTERS + string.digits
HEX = "0123456789abcdef"
BASE32 = string.ascii_uppercase + "234567"
UPPER = string.ascii_uppercase + string.digits
BASE64 = ALNUM + "+/"
URL64 = ALNUM + "-_"


def run(rng: random.Random, length: int, alphabet: str = ALNUM) -> str:
    """``length`` characters of ``alphabet``."""
    return "".join(rng.choices(alphabet, k=length))


def uuid(rng: random.Random) -> str:
    """A UUID of version 4."""
    text = run(rng, 32, HEX)
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"


def jwt(rng: random.Random) -> str:
    """Return a signed JSON web token with a header that says so."""
    header = {"alg": rng.choice(("HS256", "RS256")), "typ": "JWT"}
    claims = {
        "sub": str(rng.randint(1, 99999)),
        "iat": 1700000000 + rng.randint(0, 9**7),
    }
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in (header, claims)
    ]
    return ".".join((*parts, run(rng, 43, URL64)))


def private_key(rng: random.Random) -> str:
    """Return the complete text of a key in PEM."""
    kind = rng.choice(("RSA ", "EC ", "OPENSSH ", ""))
    lines = "\n".join(run(rng, 64, BASE64) for _ in range(rng.randint(3, 12)))
    mark = f"{kind}PRIVATE KEY-----"
    return f"-----BEGIN {mark}\n{lines}\n-----END {mark}"


def password(rng: random.Random) -> str:
    """Return a password of a careful person or a generator."""
    return rng.choice(
        (
            run(rng, 8, LOWER) + run(rng, 2, string.digits) + "!",
            run(rng, rng.randint(12, 20)),
            run(rng, 4).title() + rng.choice("@#%*") + run(rng, 6),
            "-".join(run(rng, 4, LOWER + string.digits) for _ in range(4)),
        )
    )


SECRETS: Mapping[str, Callable[[random.Random], str]] = {
    "JWT": jwt,
    "PRIVATE_KEY": private_key,
    "PASSWORD": password,
    "TOKEN": lambda rng: run(rng, rng.choice((24, 32, 40)), rng.choice((ALNUM, HEX))),
}


_SLOT = re.compile(r"\{([a-z]+|[A-Za-z]\d+)\}")
_ALPHABETS = {
    "A": ALNUM,
    "b": BASE64,
    "c": "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L",
    "d": string.digits,
    "h": HEX,
    "l": LOWER + string.digits,
    "t": BASE32,
    "u": UPPER,
    "w": URL64,
}


def filled(template: str, rng: random.Random) -> str:
    """Return ``template`` with each slot drawn again.

    A letter and a number stand for that many characters of an alphabet, digits without
    a leading 0; a word is one of the shapes below, or not a slot.
    """

    def fill(slot: re.Match[str]) -> str:
        name = slot[1]
        if shape := _SHAPES.get(name):
            return shape(rng)
        if name.isalpha():
            return slot[0]
        text = run(rng, int(name[1:]), _ALPHABETS[name[0]])
        return f"{rng.randint(1, 9)}{text[1:]}" if name[0] == "d" else text

    return _SLOT.sub(fill, template)


def path(rng: random.Random) -> str:
    """A path of a project."""
    folders = rng.choices(prose.SYMBOLS, k=rng.randint(1, 3))
    ending = rng.choice((".py", ".ts", ".go", ".md", "_test.py", ".yaml"))
    return "/".join(("src", *folders, rng.choice(prose.SYMBOLS) + ending))


def stamp(rng: random.Random) -> str:
    """A time as logs write it."""
    r = rng.randint
    day = f"{r(2023, 2026)}-{r(1, 12):02}-{r(1, 28):02}"
    return f"{day}T{r(0, 23):02}:{r(0, 59):02}:{r(0, 59):02}.{r(0, 999):03}Z"


def sentence(rng: random.Random) -> str:
    """The start of an English sentence."""
    return prose.english(rng, 40).split("\n")[0][:90]


_SHAPES: Mapping[str, Callable[[random.Random], str]] = {
    "n": lambda rng: str(rng.randint(1, 9999)),
    "path": path,
    "second": lambda rng: str(rng.randint(1_500_000_000, 1_900_000_000)),
    "milli": lambda rng: str(rng.randint(1_500_000_000_000, 1_900_000_000_000)),
    "sentence": sentence,
    "stamp": stamp,
    "status": lambda rng: rng.choice(("200", "200", "304", "404")),
    "thing": lambda rng: rng.choice(prose.EN_THINGS),
    "uuid": uuid,
    "word": lambda rng: rng.choice(prose.SYMBOLS),
}


Maker: TypeAlias = Callable[[random.Random], str]


def email(rng: random.Random) -> str:
    """An address at a domain of the vocabulary."""
    first = rng.choice(prose.GIVEN)
    last = rng.choice(prose.FAMILY)
    name = rng.choice(("{0}.{1}", "{0}{2}", "{0}_{1}{2}", "{0}+{3}", "{1}-{0}")).format(
        first, last, rng.randint(1, 99), rng.choice(prose.SYMBOLS)
    )
    name = name if rng.random() < 0.2 else name.lower()
    return f"{name}@{rng.choice(prose.DOMAINS)}"


def mobile_cn(rng: random.Random) -> str:
    """A Chinese mobile number, plain, grouped or with the country's code."""
    head = f"1{rng.choice('3456789')}{rng.randint(0, 9)}"
    middle = digits(rng, 4)
    tail = digits(rng, 4)
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
    area = f"{rng.randint(201, 989)}"
    office = f"{rng.randint(200, 999)}"
    line = 0
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
    number = luhn(head + digits(rng, length - len(head) - 1))
    if length == 15:
        parts = [number[:4], number[4:10], number[10:]]
    else:
        parts = [number[at : at + 4] for at in range(0, length, 4)]
    return rng.choice(("", " ", "-", "")).join(parts)


def resident_id(rng: random.Random) -> str:
    """A Chinese identity number with a true check digit."""
    area = rng.choice(("110105", "310104", "440305", "330106", "510107", "420106"))
    birth = f"{rng.randint(1955, 2006)}{rng.randint(1, 12):02}{rng.randint(1, 28):02}"
    return checked_resident_id(area, birth, f"{rng.randint(1, 999):03}")


def credit_code(rng: random.Random) -> str:
    """A Chinese company's unified social credit code."""
    area = rng.choice(("110108", "310115", "440300", "330100"))
    body = "".join(rng.choices(USCC, k=9))
    return checked_credit_code(f"91{area}{body}")


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
    number = checked_iban(*account)
    groups = " ".join(number[at : at + 4] for at in range(0, len(number), 4))
    return rng.choice((number, groups))


def ssn(rng: random.Random) -> str:
    """An American social security number with dashes."""
    area = rng.choice([n for n in range(1, 900) if n != 666])
    return f"{area:03}-{rng.randint(1, 99):02}-{rng.randint(1, 9999):04}"


def ip4(rng: random.Random) -> str:
    """Return an address of version 4 that is neither loopback nor a mask."""
    return f"{rng.choice((10, 45, 81, 192, 203))}." + ".".join(
        str(rng.randint(1, 254)) for _ in range(3)
    )


def ip6(rng: random.Random) -> str:
    """Return an address of version 6, in full or without its zeros."""
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


def address_en(rng: random.Random) -> str:
    """A number, a street, and perhaps the town."""
    name = rng.choice(("Oak", "Elm Grove", "Mission Hill", "N. Sheridan", "Queen"))
    kind = rng.choice(("Street", "Ave", "Road", "Blvd.", "Lane", "Drive", "Court"))
    town = rng.choice(("", ", Boise, ID 83701", ", Apt 4B, Austin, TX 78701"))
    return f"{rng.randint(1, 9999)} {name} {kind}{town}"


def address_zh(rng: random.Random) -> str:
    """From the city to the room."""
    city = rng.choice(("北京市朝阳区", "浙江省杭州市西湖区", "成都市武侯区", ""))
    road = rng.choice(("建国路", "文三路", "人民大道", "中山东路", "龙华镇二巷"))
    room = rng.choice(("", "3栋2单元501室", "A座1203室"))
    return f"{city}{road}{rng.randint(1, 1999)}号{room}"


def nino(rng: random.Random) -> str:
    """A British national insurance number."""
    number = digits(rng, 6)
    spaced = " ".join((number[:2], number[2:4], number[4:]))
    return rng.choice((f"JG{number}A", f"AB {spaced} C", f"SX-{number}-D"))


def license_us(rng: random.Random) -> str:
    """A driver's licence as California, Florida, New Hampshire or New York has it."""
    many = digits(rng, 12)
    florida = f"F{many[:3]}-{many[3:6]}-{many[6:8]}-{many[8:11]}-0"
    return rng.choice((f"D{digits(rng, 7)}", florida, f"12ABC{many[:5]}", many[:9]))


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
    "PASSPORT_US": (lambda rng: f"C{digits(rng, 8)}", lambda rng: digits(rng, 9)),
    "NINO": (nino,),
    "LICENSE_US": (license_us,),
    "ADDRESS_EN": (address_en,),
    "ADDRESS_ZH": (address_zh,),
    "QQ": (lambda rng: digits(rng, rng.randint(6, 10)),),
    "WECHAT": (lambda rng: f"{run(rng, 5, LOWER)}_{digits(rng, 4)}",),
    "STUDENT_ID": (lambda rng: f"20{rng.randint(18, 25)}{digits(rng, 6)}",),
    "HKID": (lambda rng: hong_kong_id(rng.choice("ACDGKPZ"), digits(rng, 6)),),
    "TWID": (
        lambda rng: taiwan_id(rng.choice("ABFHNP"), rng.choice("12") + digits(rng, 7)),
    ),
    "TAX_ID_DE": (lambda rng: tax_id_de(digits(rng, 10)),),
    "SOCIAL_FR": (
        lambda rng: social_fr(
            f"{rng.choice('12')}{rng.randint(50, 99)}{rng.randint(1, 12):02}"
            f"{rng.randint(10, 89)}{rng.randint(100, 399)}{rng.randint(100, 899)}"
        ),
    ),
    "IDENTITY_ES": (lambda rng: identity_es(digits(rng, 8)),),
    "PESEL": (
        lambda rng: pesel(
            f"{rng.randint(50, 99)}{rng.randint(1, 12):02}{rng.randint(1, 28):02}"
            f"{rng.randint(1000, 9999)}"
        ),
    ),
    "CITIZEN_NL": (citizen_nl,),
    "ROUTING_US": (lambda rng: routing_us(f"0{rng.randint(11, 99)}{digits(rng, 5)}"),),
}


def make(rng: random.Random, kind: str) -> str:
    """A value of ``kind``, one of the keys of ``PERSONAL``."""
    return rng.choice(PERSONAL[kind])(rng)


KeyMaker: TypeAlias = Callable[[random.Random], str]


@dataclass(frozen=True, slots=True)
class Vendor:
    """One kind of key: its issuer, its name, and its format.

    bare: whether the key can be recognized without a name next to it.
    """

    name: str
    variable: str
    make: KeyMaker
    bare: bool = True


def _mapbox(rng: random.Random) -> str:
    claims = json.dumps({"u": run(rng, 8, LOWER), "a": run(rng, 20, LOWER)})
    body = base64.urlsafe_b64encode(claims.encode()).decode().rstrip("=")
    return f"sk.{body}.{run(rng, 22, URL64)}"


def _one_password(rng: random.Random) -> str:
    claims = json.dumps({"signInAddress": "x.1p.com", "secret": run(rng, 160)})
    return "ops_" + base64.b64encode(claims.encode()).decode()


def _discord(rng: random.Random) -> str:
    number = str(rng.randint(10**17, 10**18)).encode()
    head = base64.b64encode(number).decode().rstrip("=")
    return f"{head}.{run(rng, 6, URL64)}.{run(rng, 38, URL64)}"


def _vendor(line: str) -> Vendor:
    name, variable, template, *rest = line.split()
    return Vendor(name, variable, partial(filled, template), "context" not in rest)


# name, variable, format; ``context`` if nothing in the key itself identifies it.
_TABLE = """\
aws-access-key AWS_ACCESS_KEY_ID AKIA{t16}
aws-temporary-key AWS_ACCESS_KEY_ID ASIA{t16}
aws-secret AWS_SECRET_ACCESS_KEY {b40} context
aws-session AWS_SESSION_TOKEN IQoJb3JpZ2luX2Vj{b300} context
azure-storage AZURE_STORAGE_KEY {b86}== context
azure-client-secret AZURE_CLIENT_SECRET {A3}8Q~{w34}
google-api-key GOOGLE_API_KEY AIza{w35}
google-oauth-secret GOOGLE_CLIENT_SECRET GOCSPX-{w28}
google-access-token GOOGLE_ACCESS_TOKEN ya29.a0A{w140}
github-classic GITHUB_TOKEN ghp_{A36}
github-fine-grained GH_TOKEN github_pat_{A22}_{A59}
github-server GITHUB_TOKEN ghs_{A36}
gitlab-personal GITLAB_TOKEN glpat-{w20}
gitlab-runner RUNNER_TOKEN glrt-{w20}
gitlab-deploy DEPLOY_TOKEN gldt-{w20}
slack-bot SLACK_BOT_TOKEN xoxb-{d12}-{d13}-{A24}
slack-app SLACK_APP_TOKEN xapp-1-A{u10}-{d13}-{h64}
slack-webhook SLACK_WEBHOOK_URL https://hooks.slack.com/services/T{u10}/B{u10}/{A24}
discord-webhook DISCORD_WEBHOOK https://discord.com/api/webhooks/{d18}/{w68}
telegram-bot TELEGRAM_BOT_TOKEN {d10}:AA{w33}
stripe-live STRIPE_SECRET_KEY sk_live_51{A97}
stripe-restricted STRIPE_KEY rk_live_{A24}
stripe-webhook STRIPE_WEBHOOK_SECRET whsec_{A32}
square-access SQUARE_ACCESS_TOKEN EAAA{w60}
square-secret SQUARE_SECRET sq0csp-{w43}
braintree BRAINTREE_ACCESS_TOKEN access_token$production${l16}${h32}
shopify-access SHOPIFY_ACCESS_TOKEN shpat_{h32}
shopify-secret SHOPIFY_SHARED_SECRET shpss_{h32}
twilio-key TWILIO_API_KEY SK{h32}
twilio-auth TWILIO_AUTH_TOKEN {h32} context
sendgrid SENDGRID_API_KEY SG.{w22}.{w43}
mailgun MAILGUN_API_KEY key-{h32}
mailchimp MAILCHIMP_API_KEY {h32}-us12
brevo BREVO_API_KEY xkeysib-{h64}-{A16}
postmark POSTMARK_SERVER_TOKEN {uuid} context
npm NPM_TOKEN npm_{A36}
python-index PYPI_TOKEN pypi-AgEIcHlwaS5vcmc{w120}
rubygems GEM_HOST_API_KEY rubygems_{h48}
nuget NUGET_API_KEY oy2{l43}
crates CARGO_REGISTRY_TOKEN cio{A32}
docker-hub DOCKER_TOKEN dckr_pat_{w27}
hugging-face HF_TOKEN hf_{A34}
openai-project OPENAI_API_KEY sk-proj-{w74}T3BlbkFJ{w74}
openai-old OPENAI_API_KEY sk-{A20}T3BlbkFJ{A20}
anthropic ANTHROPIC_API_KEY sk-ant-api03-{w93}AA
openrouter OPENROUTER_API_KEY sk-or-v1-{h64}
groq GROQ_API_KEY gsk_{A52}
perplexity PERPLEXITY_API_KEY pplx-{A48}
replicate REPLICATE_API_TOKEN r8_{A37}
xai XAI_API_KEY xai-{A80}
deepseek DEEPSEEK_API_KEY sk-{h32}
cohere COHERE_API_KEY {A40} context
mistral MISTRAL_API_KEY {A32} context
langsmith LANGSMITH_API_KEY lsv2_pt_{h32}_{h10}
langfuse LANGFUSE_SECRET_KEY sk-lf-{uuid}
pinecone PINECONE_API_KEY pcsk_{A6}_{A63}
tavily TAVILY_API_KEY tvly-dev-{A32}
weights-biases WANDB_API_KEY {h40} context
digitalocean DIGITALOCEAN_TOKEN dop_v1_{h64}
heroku HEROKU_API_KEY HRKU-AA{w58}
vercel VERCEL_TOKEN {A24} context
netlify NETLIFY_AUTH_TOKEN nfp_{A36}
fly FLY_API_TOKEN fm2_lJPECAAA{b180}
cloudflare CLOUDFLARE_API_TOKEN {w40} context
cloudflare-ca CF_ORIGIN_CA_KEY v1.0-{h24}-{h146}
fastly FASTLY_API_TOKEN {w32} context
terraform TF_API_TOKEN {A14}.atlasv1.{A67}
vault VAULT_TOKEN hvs.CAES{w90}
doppler DOPPLER_TOKEN dp.pt.{A43}
pulumi PULUMI_ACCESS_TOKEN pul-{h40}
databricks DATABRICKS_TOKEN dapi{h32}
planetscale PLANETSCALE_TOKEN pscale_tkn_{w43}
supabase SUPABASE_ACCESS_TOKEN sbp_{h40}
postgres-url DATABASE_URL postgres://app:{A16}@db.internal:5432/app
mongo-url MONGODB_URI mongodb+srv://svc:{A18}@cluster0.ab1cd.mongodb.net/prod
redis-url REDIS_URL rediss://default:{A22}@cache.internal:6380/0
amqp-url AMQP_URL amqp://worker:{A14}@mq.internal/tasks
grafana-service GRAFANA_TOKEN glsa_{A32}_{h8}
grafana-cloud GRAFANA_CLOUD_TOKEN glc_eyJvIjoi{b80}
datadog DD_API_KEY {h32} context
new-relic NEW_RELIC_API_KEY NRAK-{u27}
sentry SENTRY_AUTH_TOKEN sntrys_eyJpYXQiOjE3{b120}_{b43}
sentry-user SENTRY_TOKEN sntryu_{h64}
pagerduty PAGERDUTY_TOKEN u+{w18} context
atlassian JIRA_API_TOKEN ATATT3xFfGF0{w172}={h8}
bitbucket BITBUCKET_APP_PASSWORD ATBB{A32}
linear LINEAR_API_KEY lin_api_{A40}
notion NOTION_TOKEN ntn_{A46}
notion-old NOTION_API_KEY secret_{A43}
airtable AIRTABLE_TOKEN pat{A14}.{h64}
asana ASANA_ACCESS_TOKEN 1/{d16}:{h32}
figma FIGMA_TOKEN figd_{w40}
postman POSTMAN_API_KEY PMAK-{h24}-{h34}
readme README_API_KEY rdme_{l70}
prefect PREFECT_API_KEY pnu_{A36}
facebook FACEBOOK_ACCESS_TOKEN EAAB{A150}
twitter TWITTER_BEARER_TOKEN AAAAAAAAAAAAAAAAAAAAA{A40}%3D{A50}
dropbox DROPBOX_TOKEN sl.B{w135}
hubspot HUBSPOT_TOKEN pat-na1-{uuid}
algolia ALGOLIA_ADMIN_KEY {h32} context
alibaba-id ALIBABA_ACCESS_KEY_ID LTAI5t{A18}
alibaba-secret ALIBABA_ACCESS_KEY_SECRET {A30} context
tencent TENCENT_SECRET_ID AKID{A32}
volcengine VOLC_ACCESS_KEY AKLT{A44}
yandex YANDEX_API_KEY AQVN{w36}
duffel DUFFEL_TOKEN duffel_live_{w43}
easypost EASYPOST_API_KEY EZAK{A54}
lob LOB_API_KEY live_{h35}
plaid PLAID_ACCESS_TOKEN access-production-{uuid}
razorpay RAZORPAY_KEY_ID rzp_live_{A14}
flutterwave FLW_SECRET_KEY FLWSECK-{h32}-X
typeform TYPEFORM_TOKEN tfp_{A44}_{w14}
frameio FRAMEIO_TOKEN fio-u-{w64}
shippo SHIPPO_TOKEN shippo_live_{h40}
clojars CLOJARS_TOKEN CLOJARS_{l60}
age AGE_KEY AGE-SECRET-KEY-1{c58}
jfrog ARTIFACTORY_API_KEY AKCp8{A68}
dynatrace DYNATRACE_TOKEN dt0c01.{t24}.{t64}
scalingo SCALINGO_TOKEN tk-us-{w48}
sourcegraph SRC_ACCESS_TOKEN sgp_{h16}_{h40}
octopus OCTOPUS_API_KEY API-{u26}
infracost INFRACOST_API_KEY ico-{A32}
contentful CONTENTFUL_TOKEN CFPAT-{w43}
okta OKTA_API_TOKEN 00{w40} context
circleci CIRCLE_TOKEN CCIPAT_{A22}_{h40}
buildkite BUILDKITE_TOKEN bkua_{h40}
snyk SNYK_TOKEN {uuid} context
sonarqube SONAR_TOKEN squ_{h40}
tailscale TS_AUTHKEY tskey-auth-k{A11}CNTRL-{A32}
""".split("\n")

VENDORS: tuple[Vendor, ...] = (
    *(_vendor(line) for line in _TABLE if line),
    Vendor("discord-bot", "DISCORD_TOKEN", _discord),
    Vendor("mapbox", "MAPBOX_SECRET_TOKEN", _mapbox),
    Vendor("one-password", "OP_SERVICE_ACCOUNT_TOKEN", _one_password),
)

# How a key travels; {camel} is the variable in camelCase, {low} in lower case.
_SHOWN = {
    "env": "export {name}={value}\nexport LOG_LEVEL=debug\n",
    "dotenv-quoted": '# local\n{name}="{value}"\nPORT=8080\n',
    "json": '{{"region": "eu", "{low}": "{value}", "retries": 3}}',
    "yaml": "service:\n  replicas: 2\n  {low}: {value}\n  timeout: 30s\n",
    "curl": 'curl -sS -H "Authorization: Bearer {value}" https://api.example.net/v2/me',
    "curl-header": "curl -H 'X-Api-Key: {value}' -d @body.json https://api.example.net",
    "python": 'client = Client(\n    {low}="{value}",\n    timeout=30,\n)\n',
    "javascript": "const {camel} = '{value}';\nmodule.exports = {{ {camel} }};\n",
    "go": 'func main() {{\n\t{camel} := "{value}"\n\trun({camel})\n}}\n',
    "java": 'private static final String {name} = "{value}";\n',
    "flag": "deploy --region eu --{dashed} {value} --verbose",
    "log": "2026-03-04T05:06:07Z ERROR upstream said 401 for {low}={value} attempt=2",
    "english": "For the demo use {value} as the {vendor} key; it expires on Friday.",
    "chinese": "{vendor} 的密钥是 {value}，周五之前有效，请不要外传。",
}
_HELD_OUT = {
    "alone": "{value}\n",
    "comment": "    pass  # was {value} until the last rotation\n",
    "dockerfile": "FROM debian\nENV {name} {value}\nENV LANG=C\n",
    "properties": "spring.profile=prod\nacme.{dotted}={value}\n",
    "terraform": 'variable "x" {{\n  {low} = "{value}"\n}}\n',
    "php": "<?php define('{name}', '{value}');\n",
    "ruby": "config = {{ :{low} => '{value}', :retries => 3 }}\n",
    "query": "GET https://api.example.net/v1/items?page=2&{low}={value}&sort=asc",
    "nested-json": '{{"body": "{{\\"{camel}\\": \\"{value}\\"}}", "status": 200}}',
    "xml": '<add key="{name}" value="{value}" />\n<timeout>30</timeout>\n',
    "table": "| name | value |\n|---|---|\n| {name} | {value} |\n| region | eu |\n",
    "diff": '@@ -1,2 +1,2 @@\n-{low}: str = ""\n+{low}: str = "{value}"\n',
    "csharp": 'var options = new Options {{ {pascal} = "{value}" }};\n',
    "question": "why does {value} give me a 403? {low} worked yesterday",
}
# Of each carrier, whether it is held out.
CARRIERS: dict[str, bool] = {
    **dict.fromkeys(_SHOWN, False),
    **dict.fromkeys(_HELD_OUT, True),
}


def carried(vendor: Vendor, carrier: str, value: str) -> str:
    """``value`` in the text of a carrier."""
    low = vendor.variable.lower()
    pascal = "".join(map(str.title, low.split("_")))
    return (_SHOWN | _HELD_OUT)[carrier].format(
        name=vendor.variable,
        low=low,
        dashed=low.replace("_", "-"),
        dotted=low.replace("_", "."),
        camel=pascal[0].lower() + pascal[1:],
        pascal=pascal,
        vendor=vendor.name.replace("-", " ").title(),
        value=value,
    )


def secret_of(value: str) -> str:
    """Return the part of a value that must go: the password of a URL, or all."""
    _, scheme, rest = value.partition("://")
    if scheme and "@" in rest:
        return rest.split("@")[0].split(":")[1]
    if scheme:
        return rest.rsplit("/", 1)[1]
    return value

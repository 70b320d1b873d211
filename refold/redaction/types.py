"""The types of what is redacted: their names, other systems' names, and labels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{1,39}")
# What a policy may put between the brackets of a placeholder.
LABEL: Final = re.compile(r"[^\W\d_][\w\-]{1,39}")


class Type(NamedTuple):
    """What a placeholder names.

    zh:      what stands in a Chinese label.
    aliases: what Presidio, Google's DLP and Amazon Comprehend call it.
    """

    name: str
    zh: str
    what: str
    aliases: tuple[str, ...]


_TYPES: Final = """
EMAIL | 邮箱 | an e-mail address | EMAIL_ADDRESS
PHONE | 手机号 | a telephone number | PHONE_NUMBER
PERSON | 姓名 | a person's name | NAME PERSON_NAME
ADDRESS | 地址 | where somebody lives, or a place | LOCATION STREET_ADDRESS
    LOCATION_COORDINATES
ORGANIZATION | 机构 | a company or body | ORGANIZATION_NAME ORG
DATE_TIME | 日期 | a date or a time | DATE TIME
DATE_OF_BIRTH | 出生日期 | a day of birth | BIRTH_DATE DOB
AGE | 年龄 | an age |
NRP | 民族 | nationality, religion or politics | ETHNIC_GROUP
USERNAME | 用户名 | a login name | USER_NAME
QQ | QQ号 | a QQ number |
WECHAT | 微信号 | a WeChat id |
URL | 网址 | an address on the web | DOMAIN_NAME
BANK_CARD | 银行卡号 | the number of a payment card | CREDIT_CARD CREDIT_CARD_NUMBER
    CREDIT_DEBIT_NUMBER
CVV | 安全码 | the check number of a card | CREDIT_DEBIT_CVV
IBAN | 国际银行账号 | an international account number | IBAN_CODE
    INTERNATIONAL_BANK_ACCOUNT_NUMBER
BANK_ACCOUNT | 银行账号 | the number of a bank account | US_BANK_NUMBER
    BANK_ACCOUNT_NUMBER FINANCIAL_ACCOUNT_NUMBER
ROUTING_NUMBER | 银行路由号 | a bank's routing number | BANK_ROUTING
    ABA_ROUTING_NUMBER AMERICAN_BANKERS_CUSIP_ID
SWIFT | 银行代码 | a bank's BIC | SWIFT_CODE BIC
CRYPTO | 钱包地址 | a wallet's address | CRYPTO_WALLET
ID_CARD | 身份证号 | a Chinese resident identity number (GB 11643) |
    CHINA_RESIDENT_ID_NUMBER CN_ID_CARD RESIDENT_ID
HKID | 香港身份证号 | a Hong Kong identity number | HONG_KONG_ID_NUMBER
TWID | 台湾身份证号 | a Taiwan identity number | TAIWAN_ID_NUMBER
MACAU_ID | 澳门身份证号 | a Macau identity number | MACAU_ID_NUMBER
USCC | 统一社会信用代码 | a unified social credit code (GB 32100) |
    CHINA_UNIFIED_SOCIAL_CREDIT_CODE
STUDENT_ID | 学号 | a student's number |
EMPLOYEE_ID | 工号 | an employee's number |
PASSPORT | 护照号 | a passport's number | PASSPORT_NUMBER US_PASSPORT CHINA_PASSPORT
DRIVER_LICENSE | 驾驶证号 | the number of a driver's licence | US_DRIVER_LICENSE
    DRIVER_ID DRIVERS_LICENSE_NUMBER
LICENSE_PLATE | 车牌号 | a vehicle's plate | VEHICLE_LICENSE_PLATE
VIN | 车架号 | a vehicle's number | VEHICLE_IDENTIFICATION_NUMBER
SSN | 社保号 | a US social security number | US_SSN US_SOCIAL_SECURITY_NUMBER
ITIN | 美国税号 | a US taxpayer's number | US_ITIN
    US_INDIVIDUAL_TAXPAYER_IDENTIFICATION_NUMBER
EIN | 雇主识别号 | a US employer's number | US_EMPLOYER_IDENTIFICATION_NUMBER
TAX_ID | 税号 | a taxpayer's number | TAX_NUMBER TIN
VAT | 增值税号 | a number for value added tax | VAT_NUMBER VAT_ID
NATIONAL_ID | 身份号码 | another country's identity number | NATIONAL_ID_NUMBER
    GOVERNMENT_ID ES_NIF ES_NIE IT_FISCAL_CODE IT_IDENTITY_CARD PL_PESEL IN_AADHAAR
    IN_PAN SG_NRIC_FIN FI_PERSONAL_IDENTITY_CODE UK_NINO UK_NATIONAL_INSURANCE_NUMBER
    KR_RRN
NIR | 法国社保号 | a French social security number | FRANCE_NIR
NHS_NUMBER | 英国医疗号 | a British patient's number | UK_NHS
    UK_NATIONAL_HEALTH_SERVICE_NUMBER
HEALTH_ID | 医疗号 | the number of a patient or of an insurance | AU_MEDICARE
    MEDICAL_LICENSE MEDICAL_RECORD_NUMBER CA_HEALTH_NUMBER
IP | IP地址 | an address of the internet protocol | IP_ADDRESS
MAC | MAC地址 | a network card's address | MAC_ADDRESS
API_KEY | 密钥 | a key with a vendor's prefix | AWS_ACCESS_KEY AWS_SECRET_KEY
    AWS_CREDENTIALS GCP_API_KEY AZURE_AUTH_TOKEN GCP_CREDENTIALS
AUTH_TOKEN | 令牌 | a token in a header | HTTP_COOKIE OAUTH_CLIENT_SECRET ACCESS_TOKEN
JWT | 令牌JWT | a JSON web token | JSON_WEB_TOKEN
PRIVATE_KEY | 私钥 | a private key | ENCRYPTION_KEY
SECRET | 密码 | a password, or another secret | PASSWORD PIN STORAGE_SIGNED_URL
PASSWORD_HASH | 密码散列 | the hash of a password | WEAK_PASSWORD_HASH
URL_CREDENTIAL | 网址密码 | the password in a URL | BASIC_AUTH_HEADER
UNSCANNED | 未扫描 | a text that took more work than the policy allows |
OTHER | 敏感信息 | what a recognizer found and gave no usable name |
"""


def _types() -> Iterator[Type]:
    for row in _TYPES.strip().replace("\n    ", " ").splitlines():
        name, zh, what, aliases = map(str.strip, row.split("|"))
        yield Type(name, zh, what, tuple(aliases.split()))


TYPES: Final[Mapping[str, Type]] = {known.name: known for known in _types()}
LOCALES: Final = ("en", "zh")

_BY_ALIAS: Final[Mapping[str, str]] = {
    alias: known.name for known in TYPES.values() for alias in known.aliases
}


def canonical(name: str) -> str:
    """Our name of the type that ``name``, perhaps another system's, stands for.

    A name that nobody uses is returned as it is.
    """
    upper = name.upper()
    return _BY_ALIAS.get(upper, upper if upper in TYPES else name)


def well_formed(name: str) -> bool:
    """Whether ``name`` can stand in a placeholder."""
    return bool(NAME.fullmatch(name))


def labels(locale: str, kinds: Iterable[str]) -> dict[str, str]:
    """What stands between the brackets of a placeholder in ``locale``, by type.

    English has none of its own: its placeholder is ``[REDACTED:TYPE]``.

    Raises KeyError for a locale that is not in ``LOCALES``.
    """
    if locale not in LOCALES:
        raise KeyError(locale)
    if locale == "en":
        return {}
    spoken = {kind: TYPES[kind].zh if kind in TYPES else kind for kind in kinds}
    return {kind: f"{word}_已脱敏" for kind, word in spoken.items()}


UNSCANNED: Final = "UNSCANNED"
_TAG = r"(?:#[a-z2-7]{8})?"
# The labels that come with Refold end like this, whatever the policy of a text was.
_LABELLED = "_已脱敏"
_REDACTED = r"REDACTED:[A-Z][A-Z0-9_]{1,39}(?:(?<=:UNSCANNED) [0-9]{1,12} bytes)?"
_LABEL = rf"[^\s\[\]#:]{{1,32}}{_LABELLED}"
PLACEHOLDER: Final = re.compile(rf"\[(?:{_REDACTED}|{_LABEL}){_TAG}\]")
LONGEST: Final = 64
_MARKS = ("[REDACTED:", _LABELLED)
# The number in it says which value of a session it stands for.
NUMBERED: Final = re.compile(r"\[([A-Z][A-Z0-9_]{1,39})_[1-9][0-9]{0,5}\]")
_RENAMED = re.compile(r"~[0-9]+$")


class Placeholders:
    """How a policy writes placeholders, and how any are recognized.

    labels: by type, what stands between the brackets instead of ``REDACTED:TYPE``.
    kinds:  the types of which values are numbered, if they are.
    """

    __slots__ = ("_labels", "_marks", "_pattern")

    def __init__(
        self, labels: Mapping[str, str] | None = None, kinds: Iterable[str] = ()
    ) -> None:
        self._labels, kinds = dict(labels or {}), tuple(kinds)
        own = [label for label in self._labels.values() if _LABELLED not in label]
        numbered = [*(f"[{kind}_" for kind in kinds), *(["[~"] if kinds else [])]
        self._marks = (*_MARKS, *(f"[{label}" for label in own), *numbered)
        self._pattern = _pattern(own, kinds)

    def of(self, kind: str, tag: str = "") -> str:
        """The placeholder for a value of type ``kind``."""
        label = self._labels.get(kind) or f"REDACTED:{kind}"
        return f"[{label}#{tag}]" if tag else f"[{label}]"

    def unscanned(self, text: str) -> str:
        """What stands for a ``text`` that was not looked at to its end."""
        size = len(text.encode(errors="replace"))
        return f"[REDACTED:{UNSCANNED} {size} bytes]"

    def within(self, text: str) -> bool:
        """Whether ``text`` may hold a placeholder."""
        if "[" in text:
            for mark in self._marks:
                if mark in text:
                    return True
        return False

    def pieces(self, text: str) -> list[tuple[str, bool]]:
        """Split ``text`` into what may be redacted and the placeholders it has.

        Returns (piece, is a placeholder) in order; joined they are ``text``.
        """
        if not self.within(text):
            return [(text, False)]
        found = []
        end = 0
        for match in self._pattern.finditer(text):
            found += [(text[end : match.start()], False), (match.group(), True)]
            end = match.end()
        found.append((text[end:], False))
        return [(piece, kept) for piece, kept in found if piece]

    def spoken(self, key: str) -> str:
        """What a redacted key still says of its value: its words, no placeholder.

        It is the same before and after ``renamed`` numbered the key, so a second pass
        sees the context of the first.
        """
        if not self.within(key):
            return key
        bare = self._pattern.sub(" ", key)
        return key if bare == key else _RENAMED.sub("", bare)


def _pattern(labels: Iterable[str], kinds: Iterable[str]) -> re.Pattern[str]:
    own = [re.escape(one) for one in sorted(labels, key=len, reverse=True)]
    if numbered := "|".join(sorted(kinds, key=len, reverse=True)):
        own.append(rf"~?(?:{numbered})_[1-9][0-9]{{0,5}}")
    if not own:
        return PLACEHOLDER
    return re.compile(rf"\[(?:{_REDACTED}|{_LABEL}|{'|'.join(own)}){_TAG}\]")


def renamed(key: str, taken: set[str], copies: dict[str, int]) -> str:
    """``key``, or ``key~2``, ``key~3``… if it is taken; ``copies`` counts for each."""
    name, copy = key, copies.get(key, 1)
    while name in taken:
        copy += 1
        name = f"{key}~{copy}"
    copies[key] = copy
    return name

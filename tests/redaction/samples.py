"""Generated values of every type, and strategies that hide them in texts and JSON."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from hypothesis import strategies as st

KEY_TAIL = "q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6CgTuEaX"
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow3fTq9ZkLm2Np5Rs8Wd1Yf4Hj6Cg\n"
    "-----END RSA PRIVATE KEY-----"
)


class Planted(NamedTuple):
    """A text that holds ``value``, which must be redacted as ``type``."""

    type: str
    value: str
    text: str


def plant(kind: str, value: str, around: str = "{}") -> Planted:
    return Planted(kind, value, around.format(value))


PLANTED = (
    plant("EMAIL", "lin.wei+work@mail.example.org", "write to {} today"),
    plant("EMAIL", "zhao_6@163.com", "邮箱{}，谢谢"),
    plant("PHONE", "13912345670", "手机号{}"),
    plant("PHONE", "139 1234 5670", "or {} at night"),
    plant("PHONE", "+86 159-8765-4321"),
    plant("PHONE", "010-62345678", "座机：{}。"),
    plant("PHONE", "+44 20 7946 0958", "tel {} (UK)"),
    plant("PHONE", "%2B14155550132", "?phone={}&n=1"),
    plant("PHONE", "(415) 555-0132", "Call {}."),
    plant("PHONE", "0490 75 40 81", "Phone: {}"),
    plant("ID_CARD", "11010119900307002X", "办理人{}"),
    plant("ID_CARD", "110101199003071234", "身份证号是{}"),
    plant("BANK_CARD", "4111 1111 1111 1111", "card {} please"),
    plant("BANK_CARD", "6222021234567890", "工行卡{}"),
    plant("STUDENT_ID", "2021001234", "学号：{}，三年级"),
    plant("STUDENT_ID", "U202112345", "student id {}"),
    plant("JWT", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI3In0.Zk3fTq9-wB_7xQ", "is {} ok"),
    plant("PRIVATE_KEY", PEM, "file:\n{}\n"),
    plant("URL_CREDENTIAL", "hunter2", "postgres://ada:{}@db:5432/app"),
    plant("API_KEY", "ghp_" + KEY_TAIL, "use {} then"),
    plant("API_KEY", "ghp_" + KEY_TAIL, "?u=%3Fx%3D{}"),
    plant("API_KEY", "sk-ant-api03-" + KEY_TAIL, "key {}"),
    plant("API_KEY", "AKIA" + "Q7ZT4KX3VB6LM2NP"),
    plant("AUTH_TOKEN", "f3a9K2lq8Zt0Vb7Np5Rs", "Authorization: Bearer {}"),
    plant("SECRET", "s3cr-t!x9", "DB_PASSWORD={}"),
    plant("SECRET", "hunter2x", "登录密码：{}，请保密"),
    plant("SECRET", "a8f5f167f44f4964", 'api_key: "{}"'),
    plant("USCC", "91110000600037341L", "统一社会信用代码：{}"),
    plant("LICENSE_PLATE", "京A12345", "他的车是{}，停在楼下"),
    plant("SSN", "123 45 6789", "SSN: {}"),
    plant("NATIONAL_ID", "AB123456C", "NINO {}"),
    plant("DRIVER_LICENSE", "D1234567", "driver's license: {}"),
    plant("IP", "84.23.11.9", "login from {} today"),
    plant("IP", "2001:db8:85a3::8a2e:370:7334", "IP：{}"),
    plant("ADDRESS", "742 Evergreen Terrace, Springfield, OR 97403", "to {}."),
    plant("ADDRESS", "北京市朝阳区建国路88号A座1203室", "寄到{}，谢谢"),
    plant("QQ", "12345678", "QQ：{}"),
    plant("WECHAT", "zhang_san88", "微信号：{}"),
    plant("PASSPORT", "E12345678", "护照号：{}"),
    plant("HKID", "A123456(3)", "HKID {}."),
    plant("TWID", "A123456789", "身分證字號 {}"),
    plant("IBAN", "GB33 BUKB 2020 1555 5555 55", "pay to {} please"),
    plant("SECRET", "letmein", "export PGPASSWORD={}"),
    plant("SECRET", "bear-77!", "deploy --password '{}' now"),
    plant("SECRET", "hunter2x", "machine m login ada password {}"),
    plant("AUTH_TOKEN", "f3a9K2lq8Zt0Vb7Np5Rs", "Cookie: sid={}"),
    plant("API_KEY", "glpat-q7Zt0Kx3Vb9Lm2Np5Rs8", "remote: {}"),
)

# Values that only their key identifies.
KEYED = (
    plant("PHONE", "4155550132"),
    plant("STUDENT_ID", "2021001234"),
    plant("BANK_CARD", "630427373398"),
    plant("ID_CARD", "110101199003071234"),
    plant("SECRET", "correct horse battery"),
    plant("SECRET", "a8f5f167f44f"),
)
KEYS = {
    "PHONE": ("phone", "mobile_no", "homePhone", "电话"),
    "STUDENT_ID": ("student_id", "studentNo", "学号"),
    "BANK_CARD": ("card", "bank_card", "cardNumber", "卡号"),
    "ID_CARD": ("id_card", "身份证", "证件号码"),
    "SECRET": ("password", "DB_PASSWORD", "userPassword", "密码"),
}

# Output of an agent's tools without any secret.
NOISE = (
    "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "550e8400-e29b-41d4-a716-446655440000 took 0.1234567890123456 s",
    "ts=1767294668088 dur=1767294668 ns=1767294668088123456 seq=0000000000123",
    "2026-01-02T03:04:05.678901Z INFO [worker-12] 10.0.12.7:8080 200 1532 0.004",
    "-rw-r--r-- 1 root root 17179869184 Jan  2 03:04 disk.img",
    "total 34359738368 free 12884901888 used 15032385536",
    "max_tokens=4096, temperature=0.7, top_p=1.0, MAX_TOKENS=100000",
    "token_count: 123456789, tokens: [101, 2023, 2003], next_token: 'ab12cd34ef56'",
    "def connect(password: str | None = None, token: str = '') -> Session:",
    "password = os.environ['DB_PASSWORD']; token = get_token(user_id=1234567)",
    "secret = settings.SECRET_KEY_2; api_key = os.getenv('API_KEY_V2')",
    "env:\n  TOKEN: ${{ secrets.GITHUB_TOKEN }}\n  PASSWORD: $DB_PASSWORD\n",
    "postgres://app:${PASSWORD}@db/app redis://:***@cache http://localhost:8080/@x",
    "git@github.com:owner/repository.git lodash@4.17.21 icon@2x.png",
    "array([ 146.68862757,   5.57510612, -131.69539607])",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4",
    "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBaMQsw",
    "version 1.2.3.4, build 20260102.3, chromium 126.0.6478.126",
    "SELECT id, name FROM users WHERE id IN (1000001, 1000002, 1000003);",
    "PASS: test_password_reset_2 (0.01s)\nFAIL: TestTokenRefresh3",
    "ISBN 978-3-16-148410-0, order 202601020304050607",
    "https://user:pass@hostname/path, ssh -p 22 build@ci.example.com uptime",
    "DB_PASSWORD=${DB_PASSWORD:?not set}, PASSWORD=$(pass show db), --password <pw>",
    "Cookie: theme=dark; lang=en, session_id=7f3a9c1e-5b8d-4046-ace8-137f95bd0462",
    "apiKeyHash: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "学生共 1234567 人，编号 20210012345，订单号 123456789012345678",
)

PLACEHOLDERS = ("[REDACTED:PHONE]", "[REDACTED:API_KEY#abcdefgh]", "[REDACTED:SECRET]")
_SCRAPS = (
    "[REDACTED:",
    "REDACTED:PHONE]",
    "[REDACTED:PHO",
    "]",
    "[",
    "#",
    ":",
    "=",
    "'",
    '"',
    "\\",
    "\\n",
    "\\u5bc6\\u7801\\uff1a",
    "\\u0031",
    "password",
    "token=",
    "密码：",
    "手机",
    "学号",
    "phone: ",
    "card ",
    "://",
    "@",
    "a@b",
    ".com",
    "+86",
    "138",
    "1234",
    "5678",
    "0",
    "4111",
    "-----BEGIN PRIVATE KEY-----",
    "-----END PRIVATE KEY-----",
    "eyJ",
    "sk-",
    "ghp_",
    "Bearer ",
    "{",
    "}",
    ",",
    ", ",
    "\n",
    " ",
    "\u200b",
    "\u00a0",
    "＠",
    "１３８",
    "—",
    "~2",
)

pii = st.sampled_from([planted.text for planted in PLANTED] + [p.value for p in KEYED])
texts = st.lists(
    st.one_of(
        pii,
        st.sampled_from(PLACEHOLDERS),
        st.sampled_from(_SCRAPS),
        st.sampled_from(NOISE),
        st.text(max_size=6),
        st.text("0123456789 -.+x", max_size=20),
    ),
    max_size=8,
).map("".join)
keys = st.one_of(
    st.sampled_from(list(chain.from_iterable(KEYS.values()))),
    st.sampled_from(("id", "n", "text", "value", "name", "number", "token", "api_key")),
    texts,
)
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.integers(-(2**63), 2**64 - 1),
        st.sampled_from(
            (13912345670, 110101199003070038, 4111111111111111, 2021001234)
        ),
        texts,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=8,
)
objects = st.dictionaries(keys, values, max_size=4)

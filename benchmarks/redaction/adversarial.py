"""Secrets as attackers of redaction would place them: forms crossed with values.

Each form has a kind and a half: rules may be tuned to the forms of ``dev``; held-out
forms were written before they were tried.  Values are generated from a seed, others for
each half.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from string import ascii_letters, ascii_lowercase, digits
from typing import Any, Final, Literal, NamedTuple

Half = Literal["dev", "held_out"]


class Case(NamedTuple):
    """A text, the values that must not be left in it, and the kind of its form."""

    text: str
    secrets: tuple[str, ...]
    kind: str


# Forms by kind: ``V`` is a password, ``T`` a token, ``A`` to ``C`` bodies of keys with a
# prefix, ``J`` a JWT; ``⏎`` ends a line.
_DEV: Final = r"""
tail        password: V sslmode=require § api_key: T region=us § client_secret: T tenant=abc
tail        token: T user=bob § password=V port=5432 § secret: T host=db1 § pwd: V timeout=30
env         DB_PASSWORD=V § export API_KEY=T § SECRET_KEY_BASE=T § set GITHUB_TOKEN=T
env         PASSWORD=\⏎V § export DB_PASSWORD=\⏎  V § TOKEN_PROD=T § MYSQL_ROOT_PASSWORD: V
yaml        password: V § password: "V" § password: >-⏎  V⏎user: x § password: |⏎  V⏎
yaml        db:⏎  password:⏎    V⏎ § - name: DB_PASSWORD⏎  value: V § api_key: 'T'
json        {"password": "V"} § {"name": "password", "value": "V"} § "api_key":"T"
json        {"id": "password", "value": "V"} § {"ParameterKey": "password", "ParameterValue": "V"}
json        {"SecretString": "V"} § {"key": "API_TOKEN", "val": "T"}
xml         <password>V</password> § <add key="DbPassword" value="V"/> § <entry key="db.password">V</entry>
xml         <name>password</name><value>V</value>
code        password = "V" § db.setPassword("V"); § const token = 'T'; § password: str = "V"
code        'password' => 'V', § :password => "V" § #define WIFI_PASSWORD "V" § let pw = "V"
code        define('DB_PASSWORD', 'V'); § private final String dbPassword = "V";
terraform   variable "db_password" {⏎  default = "V"⏎} § master_password = "V"
command     gh secret set X --body V § sshpass -p V ssh u@h § zip -P V out.zip f § 7z a -pV out.7z f
command     ["mysql", "-u", "root", "-pV", "db"] § keytool -genkey -storepass V § http -a admin:V :80
command     vault login T § echo V | sudo -S apt § echo "root:V" | chpasswd § mysqldump -pV db
command     printf '%s' V | docker login -u me --password-stdin § curl -u bob:V http://x § redis-cli -a V
command     kubectl create secret generic x --from-literal=foo=V § rabbitmqctl add_user bob V
table       user,password⏎bob,V⏎ § name,value⏎db_password,V⏎ § | user | password |⏎|---|---|⏎| bob | V |
table        user | password ⏎------+----------⏎ bob  | V⏎ § user;password;role⏎bob;V;admin
prose       the password for admin is V § pw: V § user=bob pass=V § log in with password V
prose       creds are bob / V § the password on staging was changed to V.
chinese     密码就是V § 密码改成了 V § 登录密码：V § 新密码是：V § 密码已经重置为V
language    contraseña: V § mot de passe : V § パスワード: V § 비밀번호: V § пароль: V § Passwort: V
language    senha: V § La contraseña es V § a senha é V § パスワードはVです
url         postgres://u:V@h/db § ?password=V&x=1 § password%3DV%26user%3Dbob § ftp://bob:V@h
after       password=[REDACTED:SECRET]V § token: [REDACTED:API_KEY]T
joined      TOKEN_ghp_A § xghp_A § my_ghp_A_old § ghs_12345_J
"""
_HELD_OUT: Final = r"""
tail        passwd: V charset=utf8 § access_token: T scope=read § db_pass: V db=7 § apikey=T env=prod
tail        auth_token: T retries=3 § passphrase: V cipher=aes § smtp_password=V; ssl=on
env         REDIS_PASSWORD='V' § $env:API_SECRET="T" § setenv DB_PASSWD V § STRIPE_SECRET=T
env         env DB_PWD=V python x.py § JWT_SECRET="T" § AUTH0_CLIENT_SECRET=T § ADMIN_PASSWORD_2=V
yaml        database_password: V # rotate § "secret": "T" § credentials:⏎  password: 'V'⏎
yaml        users:⏎  - name: bob⏎    password: V⏎ § auth:⏎  token: T § pass: "V"
json        {"db": {"pwd": "V"}} § {"clientSecret":"T"} § {\"password\": \"V\"}
json        {"Name": "DB_PASSWORD", "Value": "V", "Type": "x"} § {"field": "password", "value": "V"}
json        [{"key":"x","value":"y"},{"key":"db_password","value":"V"}] § {"refresh_token": "T"}
xml         <property name="javax.persistence.jdbc.password" value="V"/> § <Password>V</Password>
xml         <key>password</key>⏎<string>V</string> § <param name="api_key">T</param>
xml         <connection user="a" password="V"/>
code        $password = 'V'; § PASSWORD := "V" § @password = "V"
code        new Client({ apiKey: "T" }) § passwd = r'V' § .password("V") § string pwd = @"V";
code        ENV["API_TOKEN"] = "T" § os.environ["DB_PASSWORD"] = "V" § --set-string auth.password=V
code        PGPASSWORD=V psql -h x § ALTER USER bob WITH PASSWORD 'V'; § IDENTIFIED BY "V"
terraform   variable "api_token" {⏎  type = string⏎  default     = "T"⏎} § password = "V" # tf
command     unzip -P V x.zip § rar a -hpV o.rar d § mongosh -u a -p V § ldapsearch -x -w V
command     openssl enc -aes-256-cbc -k V -in f § smbclient //h/s -U bob%V § az login -u x -p V
command     echo 'V' | sudo -S -k ls § sudo -S <<< "V" ls § net user bob V /add § wget --password=V u
command     helm registry login r -u b -p V § mosquitto_pub -u bob -P V -t x § ngrok authtoken T
command     ["sshpass","-p","V","ssh","h"] § sqlcmd -S h -U sa -P V § gpg --batch --passphrase V -c f
command     docker run -e MYSQL_PASSWORD=V mysql § curl -H "x-api-key: T" u § git clone https://bob:V@h/r
table       email,passwd,role⏎a@h.example,V,admin⏎ § id	user	secret⏎1	bob	T⏎
table       | Name | API key |⏎| --- | --- |⏎| prod | T | § host     login   password⏎db1.x    bob     V⏎
prose       Your temporary password is V. § my password: V § The root password is now "V"
prose       please use V as the password § password = V (do not share) § pass V to nobody: password is V
prose       Login: bob⏎Password: V⏎ § username bob, password V § the api key is T
chinese     账号admin密码V § 口令：V § 数据库密码为V，请保管 § 密码设置为 V § 令牌：T
language    Contraseña = V § Mot de passe: "V" § Kennwort: V § Пароль — V § 암호: V § clave: V
language    das Passwort ist V § パスワードは「V」 § palavra-passe: V
url         redis://:V@cache:6379 § amqp://bob:V@mq/v § jdbc:mysql://h/db?user=a&password=V
url         https://api.x.example/v1?api_key=T&q=1 § mongodb+srv://bob:V@c.example/db
after       password: [REDACTED:SECRET]V⏎next § pwd=[REDACTED:SECRET#abcdefgh]V
joined      OLD-glpat-B § keyghp_A § TOKEN=xoxb-C § ghs_777_J
"""
PREFIXES: Final[dict[Half, tuple[Callable[[int, str], str], ...]]] = {
    "dev": (
        lambda n, line: f"{n:6}\t{line}",
        lambda n, line: f"{n:6}→{line}",
        lambda n, line: f"{n}: {line}",
        lambda n, line: f"{n}|{line}",
        lambda n, line: f"keys/id_rsa:{n}:{line}",
        lambda _, line: f"# {line}",
        lambda _, line: f"// {line}",
        lambda _, line: f" * {line}",
        lambda _, line: f"-{line}",
        lambda _, line: f"+{line}",
        lambda _, line: f"│ {line} │",
        lambda _, line: f"echo '{line}' >> k",
        lambda n, line: f"2026-05-01T10:00:{n:02}Z app[12]: {line}",
    ),
    "held_out": (
        lambda _, line: f"> {line}",
        lambda n, line: f"{n:>4} | {line}",
        lambda n, line: f"[{n:03}] {line}",
        lambda _, line: f";; {line}",
        lambda _, line: f"    {line}",
        lambda _, line: f"-- {line}",
        lambda _, line: f"REM {line}",
        lambda _, line: f"web_1  | {line}",
        lambda n, line: f"id_rsa-{n}-{line}",
        lambda _, line: f'\t\t"{line}\\n"',
        lambda n, line: f"May  1 10:00:{n:02} host sshd[{n}]: {line}",
        lambda _, line: f"<li>{line}</li>",
        lambda n, line: f"L{n:<5}{line}",
    ),
}
_BREAKS: Final[dict[Half, tuple[str, ...]]] = {
    "dev": ("\n", "\\n", "\\\\n", "<br>", "&#10;", "\r\n"),
    "held_out": ("\\r\\n", "<br/>", "&#xa;", "\n\n", " ", "\\n\n"),
}
_BASE64: Final = ascii_letters + digits + "+/"


def cases(half: Half, *, times: int = 6) -> Iterator[Case]:
    """Return all cases of a half: each form with ``times`` values of its own."""
    chance = random.Random(f"adversarial {half}")
    forms = _DEV if half == "dev" else _HELD_OUT
    for row in forms.strip().splitlines():
        kind = row[:12].strip()
        written_forms = row[12:]
        for form in written_forms.split(" § "):
            for _ in range(times):
                yield _filled(form, kind, chance)
    yield from _keys(half, chance)


def _filled(form: str, kind: str, chance: random.Random) -> Case:
    values = {
        "V": _password(chance),
        "T": "".join(
            chance.choices(ascii_letters + digits, k=chance.choice((24, 32, 40)))
        ),
        "A": "".join(chance.choices(ascii_letters + digits, k=36)),
        "B": "".join(chance.choices(ascii_letters + digits, k=20)),
        "C": "-".join("".join(chance.choices(digits, k=12)) for _ in range(2))
        + "-"
        + "".join(chance.choices(ascii_letters + digits, k=24)),
        "J": _jwt(chance),
    }
    text = []
    used = []
    for place, character in enumerate(form):
        around = form[max(0, place - 1) : place] + form[place + 1 : place + 2]
        alone = not any(
            neighbour == "_" or (neighbour.isascii() and neighbour.isalpha())
            for neighbour in around
        )
        joined = form[:place].endswith(("-p", "-hp", "%3D", "ghp_", "12345_", "777_"))
        if character in values and (alone or joined):
            text.append(values[character])
            used.append(values[character])
        else:
            text.append("\n" if character == "⏎" else character)
    return Case("".join(text), tuple(used), kind)


def _password(chance: random.Random) -> str:
    word = chance.choice(
        ("Winter", "Falcon", "blue", "Sommer", "changeme", "Dragon", "kitten")
    )
    return chance.choice(
        (
            f"{word}{chance.randint(1000, 9999)}",
            f"{word}-{chance.randint(10, 99)}{chance.choice('!#%*')}x",
            "".join(chance.choices(ascii_letters + digits, k=12)) + "7a",
            "".join(chance.choices(ascii_lowercase + digits, k=8)) + "K3!",
        )
    )


def _jwt(chance: random.Random) -> str:
    def part(text: str) -> str:
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    signed = "".join(chance.choices(ascii_letters + digits + "-_", k=43))
    subject = json.dumps({"sub": chance.randint(1, 9**9)})
    return f"{part(json.dumps({'alg': 'RS256'}))}.{part(subject)}.{signed}"


def _keys(half: Half, chance: random.Random) -> Iterator[Case]:
    """Private keys behind prefixes, between odd breaks, cut, and as base64."""
    for prefix in PREFIXES[half]:
        for cut in (slice(None), slice(0, 6), slice(None, -2), slice(4, None)):
            lines = _pem(chance)[cut]
            text = "\n".join(prefix(n, line) for n, line in enumerate(lines, 1))
            yield Case(text, _material(lines), "key")
    for between in _BREAKS[half]:
        lines = _pem(chance)
        yield Case(between.join(lines), _material(lines), "key")
    for width in (64, 76):
        whole = base64.b64encode("\n".join(_pem(chance)).encode()).decode()
        parts = [whole[n : n + width] for n in range(0, len(whole), width)]
        yield Case(
            "key: |\n" + "\n".join(f"  {part}" for part in parts), (*parts,), "key"
        )
        shifted = base64.b64encode(("x=" + "\n".join(_pem(chance))).encode()).decode()
        yield Case(f"data: {shifted}", (shifted[40:400],), "key")


def _pem(chance: random.Random) -> list[str]:
    kind, start = chance.choice(
        (
            ("RSA PRIVATE", "MIIEpAIBAAKCAQEA"),
            ("PRIVATE", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"),
            ("OPENSSH PRIVATE", "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAE"),
        )
    )
    body = start + "".join(chance.choices(_BASE64, k=900))
    lines = [body[n : n + 64] for n in range(0, len(body), 64)]
    return [f"-----BEGIN {kind} KEY-----", *lines, f"-----END {kind} KEY-----"]


def _material(lines: list[str]) -> tuple[str, ...]:
    return tuple(line for line in lines if not line.startswith("-"))


def recall(
    half: Half, redact: Callable[[str], str], *, every: int = 1
) -> tuple[Counter[str], Counter[str], list[Case]]:
    """Count existing and found cases by kind, and return the missed ones.

    Only one in ``every`` cases is tried.
    """
    counts = Counter[str]()
    hits = Counter[str]()
    missed = []
    for case in islice(cases(half), 0, None, every):
        clean = redact(case.text)
        counts[case.kind] += 1
        if any(secret in clean for secret in case.secrets):
            missed.append(case)
        else:
            hits[case.kind] += 1
    return counts, hits, missed


def main() -> None:
    """Print the recall of the default policy, by kind."""
    from refold.redaction import Plan, Redactor

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("dev", "held_out"), default="dev")
    parser.add_argument("--misses", action="store_true")
    given = parser.parse_args()
    redactor = Redactor(Plan(engine="stdlib"))

    def redact(text: str) -> str:
        clean: Any = redactor.value({"content": text})[0]
        return str(clean["content"])

    counts, hits, missed = recall(given.half, redact)
    for kind in sorted(counts):
        print(f"{kind:10} {hits[kind]:4} of {counts[kind]:4}")
    total = sum(counts.values())
    share = 1 - len(missed) / total
    print(f"{'all':10} {total - len(missed):4} of {total:4}  {share:.3f}")
    for case in missed if given.misses else ():
        print(repr(case.text[:160]))


if __name__ == "__main__":
    main()

"""A frozen corpus of carriers, written before the rules that it measures were extended.

Each class is a way in which an agent meets a secret or personal data. ``<<kind>>``
plants a generated value that must disappear; ``[[kind]]`` puts a generated value that
carries nothing. A near miss must stay byte for byte. The corpus is data to measure
with: change neither its texts nor its makers, and add no rule that names one of its
texts.

Run ``python -m tests.redaction.second_corpus SEED -v`` for recall by class and for the
near misses that changed.
"""

from __future__ import annotations

import base64
import random
import re
import string
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

SEED = 20_260_731
DRAWS = 3

_WORDS = [
    "amber",
    "birch",
    "canyon",
    "delta",
    "ember",
    "flint",
    "garnet",
    "hazel",
    "indigo",
    "juniper",
    "kestrel",
    "larch",
    "maple",
    "nettle",
    "onyx",
    "poplar",
    "quartz",
    "raven",
    "saffron",
    "thistle",
    "umber",
    "violet",
    "willow",
    "yarrow",
    "zinnia",
    "orchard",
    "beacon",
    "comet",
    "drift",
    "eagle",
]
_ALPHANUMERIC = string.ascii_letters + string.digits


def _token(size: int) -> Callable[[random.Random], str]:
    def make(random: random.Random) -> str:
        return "".join(random.choice(_ALPHANUMERIC) for _ in range(size))

    return make


def _hexadecimal(size: int) -> Callable[[random.Random], str]:
    def make(random: random.Random) -> str:
        return "".join(random.choice("0123456789abcdef") for _ in range(size))

    return make


def _password(random: random.Random) -> str:
    """A password of one of five makers, as people and generators choose them."""
    word = random.choice(_WORDS).capitalize()
    other = random.choice(_WORDS).capitalize()
    number = random.randrange(10, 100)
    maker = random.randrange(5)
    if maker == 0:
        return f"{word}{random.choice('-_!#.')}{other}{number}"
    if maker == 1:
        return f"{word.lower()}{random.choice('@!$')}{number}{other.lower()}"
    if maker == 2:
        return "".join(random.choice(_ALPHANUMERIC) for _ in range(12)) + str(
            random.randrange(10)
        )
    if maker == 3:
        letters = "".join(random.choice(_ALPHANUMERIC) for _ in range(10))
        return (
            letters[:4]
            + random.choice("!%+=")
            + letters[4:]
            + str(random.randrange(10))
        )
    return f"{word}{random.randrange(1000, 9999)}{random.choice('!?*')}"


def _plain_password(random: random.Random) -> str:
    """A password that needs no quotes in a shell, in a URL, or in YAML."""
    word = random.choice(_WORDS).capitalize()
    other = random.choice(_WORDS).capitalize()
    if random.random() < 0.5:
        return f"{word}{random.choice('-_.')}{other}{random.randrange(10, 100)}"
    return "".join(random.choice(_ALPHANUMERIC) for _ in range(13)) + str(
        random.randrange(10)
    )


def _passphrase(random: random.Random) -> str:
    return (
        " ".join(random.choice(_WORDS) for _ in range(4))
        + f" {random.randrange(10, 100)}"
    )


def _base64_bytes(size: int) -> Callable[[random.Random], str]:
    def make(random: random.Random) -> str:
        return base64.b64encode(random.randbytes(size)).decode()

    return make


def _basic(random: random.Random) -> str:
    return base64.b64encode(f"deploy:{_plain_password(random)}".encode()).decode()


def _sasl_plain(random: random.Random) -> str:
    return base64.b64encode(f"\0mailer\0{_plain_password(random)}".encode()).decode()


def _uuid(random: random.Random) -> str:
    digits = _hexadecimal(32)(random)
    return "-".join(
        (
            digits[:8],
            digits[8:12],
            "4" + digits[13:16],
            "a" + digits[17:20],
            digits[20:],
        )
    )


def _luhn(digits: str) -> str:
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit)
        if place % 2 == 0:
            value = value * 2 - 9 if value > 4 else value * 2
        total += value
    return digits + str(-total % 10)


def _card(random: random.Random) -> str:
    digits = _luhn("4539" + "".join(str(random.randrange(10)) for _ in range(11)))
    if random.random() < 0.5:
        return digits
    return " ".join((digits[:4], digits[4:8], digits[8:12], digits[12:]))


def _phone_cn(random: random.Random) -> str:
    return random.choice(("138", "139", "150", "177", "186", "199")) + "".join(
        str(random.randrange(10)) for _ in range(8)
    )


def _phone_us(random: random.Random) -> str:
    area = random.choice(("212", "415", "503", "617", "702", "805"))
    middle = random.randrange(220, 999)
    last = random.randrange(1000, 9999)
    return random.choice(
        (
            f"({area}) {middle}-{last}",
            f"{area}-{middle}-{last}",
            f"+1 {area} {middle} {last}",
        )
    )


def _phone_de(random: random.Random) -> str:
    return f"+49 {random.choice(('151', '160', '171', '30'))} {random.randrange(1000000, 9999999)}"


def _phone_fr(random: random.Random) -> str:
    pairs = " ".join(f"{random.randrange(10, 99)}" for _ in range(4))
    return f"{random.choice(('06', '07', '01'))} {pairs}"


def _email(random: random.Random) -> str:
    return f"{random.choice(_WORDS)}.{random.choice(_WORDS)}{random.randrange(100)}@{random.choice(_WORDS)}-mail.de"


def _iban(random: random.Random) -> str:
    account = "".join(str(random.randrange(10)) for _ in range(18))
    check = 98 - int(account + "131400") % 97
    return f"DE{check:02}{account}"


def _citizen_cn(random: random.Random) -> str:
    digits = f"310104{random.randrange(1960, 2004)}{random.randrange(1, 13):02}{random.randrange(1, 28):02}"
    digits += f"{random.randrange(100, 999)}"
    weights = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
    total = sum(
        int(digit) * weight for digit, weight in zip(digits[:17], weights, strict=True)
    )
    return digits + "10X98765432"[total % 11]


def _ssn(random: random.Random) -> str:
    return f"{random.randrange(101, 665)}-{random.randrange(10, 99)}-{random.randrange(1001, 9999)}"


def _birthday(random: random.Random) -> str:
    year = random.randrange(1950, 2004)
    month = random.randrange(1, 13)
    day = random.randrange(1, 29)
    return random.choice((f"{year}-{month:02}-{day:02}", f"{month:02}/{day:02}/{year}"))


def _digits(size: int) -> Callable[[random.Random], str]:
    def make(random: random.Random) -> str:
        return str(random.randrange(1, 10)) + "".join(
            str(random.randrange(10)) for _ in range(size - 1)
        )

    return make


MAKERS: dict[str, Callable[[random.Random], str]] = {
    "password": _password,
    "plain": _plain_password,
    "phrase": _passphrase,
    "token": _token(32),
    "token40": _token(40),
    "hex32": _hexadecimal(32),
    "hex64": _hexadecimal(64),
    "b64": _base64_bytes(32),
    "basic": _basic,
    "sasl": _sasl_plain,
    "uuid": _uuid,
    "card": _card,
    "phone.cn": _phone_cn,
    "phone.us": _phone_us,
    "phone.de": _phone_de,
    "phone.fr": _phone_fr,
    "email": _email,
    "iban": _iban,
    "citizen.cn": _citizen_cn,
    "ssn": _ssn,
    "birthday": _birthday,
    "code6": _digits(6),
    "digits8": _digits(8),
    "digits11": _digits(11),
    "digits16": _digits(16),
    "word": lambda random: random.choice(_WORDS),
}


class Carrier(NamedTuple):
    """A class of texts: what is planted in it, and texts that look alike and carry nothing."""

    name: str
    personal: bool
    positives: tuple[str, ...]
    near_misses: tuple[str, ...]


CARRIERS: tuple[Carrier, ...] = (
    Carrier(
        "docker",
        False,
        (
            "services:\n  db:\n    image: postgres:16\n    environment:\n      - POSTGRES_PASSWORD=<<plain>>\n",
            "services:\n  web:\n    environment:\n      SESSION_SECRET: <<token>>\n      PORT: 8080\n",
            "FROM node:22\nARG NPM_TOKEN=<<token40>>\nENV SMTP_PASS=<<plain>> PORT=25\n",
            '$ docker inspect web\n[{"Config": {"Env": ["PATH=/usr/bin", "MYSQL_ROOT_PASSWORD=<<plain>>"]}}]\n',
            "$ docker run -d -e REDIS_PASS=<<plain>> -e TZ=UTC redis\n",
            "$ docker login registry.example.test -u ci -p <<plain>>\nLogin Succeeded\n",
        ),
        (
            "environment:\n  - POSTGRES_PASSWORD=${POSTGRES_PASSWORD:?not set}\n  - TZ=UTC\n",
            "ARG NPM_TOKEN\nENV SMTP_PASS_FILE=/run/secrets/smtp\n",
            '{"Config": {"Env": ["PATH=/usr/local/bin", "PASSWORD_MIN_LENGTH=12"]}}\n',
        ),
    ),
    Carrier(
        "terraform",
        False,
        (
            'db_password = "<<password>>"\nregion = "eu-west-1"\n',
            'resource "aws_db_instance" "main" {\n  username = "app"\n  password = "<<password>>"\n}\n',
            '$ terraform output -json\n{"admin_password": {"sensitive": true, "type": "string", "value": "<<plain>>"}}\n',
            "Outputs:\n\nadmin_password = <<plain>>\nvpc_id = vpc-0a1b2c\n",
            '  ~ master_password = "<<plain>>" -> "<<plain>>"\n',
        ),
        (
            'variable "db_password" {\n  type      = string\n  sensitive = true\n}\n',
            "password = var.db_password\n",
            "  + password = (sensitive value)\n  + arn = (known after apply)\n",
        ),
    ),
    Carrier(
        "go source",
        False,
        (
            'cfg := &Config{User: "app", Password: "<<password>>", Port: 5432}\n',
            'os.Setenv("STRIPE_SECRET", "<<token>>")\n',
            'const signingKey = "<<hex64>>"\n',
            'smtp.PlainAuth("", "mailer", "<<password>>", "smtp.example.test")\n',
            'req.SetBasicAuth("deploy", "<<password>>")\n',
        ),
        (
            'flag.StringVar(&password, "password", "", "password of the database")\n',
            'return errors.New("password is required")\n',
            'os.Setenv("STRIPE_SECRET", secretFromFile(path))\n',
        ),
    ),
    Carrier(
        "java source",
        False,
        (
            'dataSource.setPassword("<<password>>");\n',
            'Credentials.builder().username("app").password("<<password>>").build();\n',
            'private static final String API_SECRET = "<<token>>";\n',
            'DriverManager.getConnection("jdbc:postgresql://db/app", "app", "<<password>>");\n',
            'new UsernamePasswordCredentials("app", "<<password>>")\n',
        ),
        (
            'private static final String PASSWORD_FIELD = "password-confirmation";\n',
            "dataSource.setPassword(properties.getPassword());\n",
            "public boolean matches(String password, String encodedPassword) {\n",
        ),
    ),
    Carrier(
        "ruby",
        False,
        (
            "production:\n  adapter: mysql2\n  username: app\n  password: <<plain>>\n",
            'config.secret_key_base = "<<hex64>>"\n',
            "ActionMailer::Base.smtp_settings = { :user_name => 'm', :password => '<<plain>>' }\n",
            "Net::FTP.open('ftp.example.test', 'bob', '<<plain>>')\n",
            "ENV['PAYMENT_TOKEN'] = '<<token>>'\n",
        ),
        (
            "password: <%= ENV['DATABASE_PASSWORD'] %>\n",
            "validates :password, length: { minimum: 12 }\n",
            "t.string :password_digest, null: false\n",
        ),
    ),
    Carrier(
        "php",
        False,
        (
            "define('DB_PASSWORD', '<<plain>>');\ndefine('DB_HOST', 'localhost');\n",
            "define('AUTH_KEY', '<<token40>>');\n",
            "return ['username' => 'app', 'password' => '<<plain>>'];\n",
            "$pdo = new PDO('mysql:host=db', 'app', '<<plain>>');\n",
            "mysqli_connect('localhost', 'app', '<<plain>>', 'shop');\n",
        ),
        (
            "define('DB_CHARSET', 'utf8mb4');\n",
            "'password' => env('DB_PASSWORD'),\n",
            "$rules = ['password' => 'required|min:12|confirmed'];\n",
        ),
    ),
    Carrier(
        "rust",
        False,
        (
            'let password = "<<password>>";\n',
            'Client::builder().with_password("<<password>>").connect()?;\n',
            'std::env::set_var("SERVICE_TOKEN", "<<token>>");\n',
            'Config { host: "db".into(), password: "<<plain>>".to_string() }\n',
        ),
        (
            "pub fn password(&self) -> Option<&SecretString> {\n",
            'let token = lexer.next_token().expect("a token");\n',
            "struct Login { user: String, password: String }\n",
        ),
    ),
    Carrier(
        "node source",
        False,
        (
            "nodemailer.createTransport({host: 'h', auth: {user: 'm', pass: '<<plain>>'}})\n",
            "process.env.JWT_SECRET = '<<token>>';\n",
            "const apiKey = '<<hex32>>'; // billing\n",
            'jwt.sign({sub: 1}, "<<token>>", {expiresIn: "1h"})\n',
            "await page.fill('#password', '<<plain>>');\n",
        ),
        (
            "const password = await prompt('Password: ');\n",
            "const { user, password } = req.body;\n",
            "await page.fill('#search', 'blue shoes size 42');\n",
        ),
    ),
    Carrier(
        "csharp",
        False,
        (
            'new NetworkCredential("svc", "<<password>>", "CORP")\n',
            'var options = new Options { ClientSecret = "<<token40>>" };\n',
            'builder.Password = "<<password>>";\n',
            'Environment.SetEnvironmentVariable("SMTP_PASSWORD", "<<password>>");\n',
        ),
        (
            "public string Password { get; set; }\n",
            'var secret = Environment.GetEnvironmentVariable("CLIENT_SECRET");\n',
            "[DataType(DataType.Password)]\n",
        ),
    ),
    Carrier(
        "powershell",
        False,
        (
            '$env:DB_PASSWORD = "<<plain>>"\n',
            'ConvertTo-SecureString "<<plain>>" -AsPlainText -Force\n',
            "New-LocalUser bob -Password <<plain>> -FullName Bob\n",
            "$cred = @{ UserName = 'svc'; Password = '<<plain>>' }\n",
        ),
        (
            "$password = Read-Host -AsSecureString 'Password'\n",
            "Get-Secret -Name DbPassword -Vault Local\n",
            "Set-LocalUser bob -PasswordNeverExpires $true\n",
        ),
    ),
    Carrier(
        "sql accounts",
        False,
        (
            "CREATE USER 'app'@'%' IDENTIFIED BY '<<plain>>';\n",
            "ALTER ROLE reporting WITH LOGIN PASSWORD '<<plain>>';\n",
            "CREATE LOGIN svc WITH PASSWORD = N'<<plain>>';\n",
            "SET PASSWORD FOR 'bob'@'h' = PASSWORD('<<plain>>');\n",
            "INSERT INTO users (id, login, password) VALUES (7, 'ada', '<<plain>>');\n",
            "CREATE SUBSCRIPTION s CONNECTION 'host=h user=r password=<<plain>>' PUBLICATION p;\n",
        ),
        (
            "CREATE TABLE users (id bigint, password text NOT NULL);\n",
            "SELECT id, password_changed_at FROM users WHERE id = 7;\n",
            "ALTER USER app ACCOUNT LOCK PASSWORD EXPIRE;\n",
        ),
    ),
    Carrier(
        "diff",
        False,
        (
            "--- a/app.yml\n+++ b/app.yml\n@@ -1,2 +1,2 @@\n-  password: <<plain>>\n+  password: <<plain>>\n",
            '@@ -4 +4 @@\n-API_TOKEN = "<<token>>"\n+API_TOKEN = os.environ["API_TOKEN"]\n',
            "diff --git a/.env b/.env\n@@ -0,0 +1 @@\n+MAIL_PASS=<<plain>>\n",
            '<<<<<<< HEAD\nsecret: "<<token>>"\n=======\nsecret: "<<token>>"\n>>>>>>> main\n',
        ),
        (
            "--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-password = getpass()\n+password = ask_password()\n",
            "index [[hex32]]..[[hex32]] 100644\n",
            "+# The token is read from the environment.\n",
        ),
    ),
    Carrier(
        "curl",
        False,
        (
            "curl -u deploy:<<plain>> https://api.example.test/v1\n",
            'curl -H "X-Api-Key: <<token>>" https://api.example.test\n',
            "> GET / HTTP/1.1\n> Host: x.test\n> Authorization: Basic <<basic>>\n>\n< HTTP/1.1 200 OK\n",
            "< Set-Cookie: session=<<token40>>; Path=/; HttpOnly\n",
            "http POST x.test/login user=ada password=<<plain>>\n",
            "wget --user=ada --password=<<plain>> https://x.test/a.tgz\n",
        ),
        (
            "curl -H 'Accept: application/json' https://api.example.test/v1/users?page=2\n",
            '< ETag: "[[hex32]]"\n< X-Request-Id: [[uuid]]\n',
            'curl -H "Authorization: Bearer $TOKEN" https://api.example.test\n',
        ),
    ),
    Carrier(
        "chat",
        False,
        (
            "bob: the wifi password is <<plain>>, ask me if it fails\n",
            "[10:02] ana: new root pw for staging: <<plain>>\n",
            "Your temporary password is <<plain>>. Please change it after the first login.\n",
            "I set the admin password to <<plain>> for now\n",
            "creds for the demo: demo / <<plain>>\n",
            "API key for the sandbox → <<token>>\n",
        ),
        (
            "bob: my password does not work any more, can you reset it?\n",
            "The password is stored as a salted hash.\n",
            "Your password must contain at least one number and one symbol.\n",
            "The token expires after 3600 seconds.\n",
        ),
    ),
    Carrier(
        "mail protocols",
        False,
        (
            "C: AUTH PLAIN <<sasl>>\nS: 235 2.7.0 Authentication successful\n",
            'a1 LOGIN "ada" "<<plain>>"\na1 OK LOGIN completed\n',
            "220 ready\nUSER ada\n331 password required\nPASS <<plain>>\n230 logged in\n",
            "smtp_sasl_password_maps: [smtp.x.test]:587 mailer:<<plain>>\n",
        ),
        (
            "S: 250-AUTH PLAIN LOGIN CRAM-MD5\n",
            'a1 LIST "" "*"\n* LIST (\\HasNoChildren) "/" INBOX\n',
            "331 Please specify the password.\n",
        ),
    ),
    Carrier(
        "database shells",
        False,
        (
            "127.0.0.1:6379> AUTH <<plain>>\nOK\n",
            'db.createUser({user: "app", pwd: "<<plain>>", roles: ["readWrite"]})\n',
            "127.0.0.1:6379> CONFIG SET requirepass <<plain>>\nOK\n",
            "$ mysql -uapp -p<<plain>> shop\n",
            "$ PGPASSWORD=<<plain>> psql -h db -U app\n",
            "$ redis-cli -a <<plain>> ping\nPONG\n",
        ),
        (
            "(error) NOAUTH Authentication required.\n",
            "db.getUsers()\n[ { user: 'app', roles: [ 'readWrite' ] } ]\n",
            "$ mysql -uapp -p shop\nEnter password: \n",
        ),
    ),
    Carrier(
        "systemd",
        False,
        (
            '[Service]\nEnvironment="DB_PASSWORD=<<plain>>"\nExecStart=/usr/bin/app\n',
            "[Service]\nEnvironment=API_TOKEN=<<token>> LOG=info\n",
            "# /etc/default/app\nADMIN_PASSWD='<<plain>>'\n",
            "ExecStart=/usr/bin/backup --user app --passphrase <<plain>>\n",
        ),
        (
            "EnvironmentFile=/etc/app/secrets.env\nLoadCredential=db-password:/etc/app/db\n",
            "systemd-ask-password-console.service loaded active\n",
            "ExecStart=/usr/bin/app --password-file /etc/app/password\n",
        ),
    ),
    Carrier(
        "proxies",
        False,
        (
            "listen stats\n  stats auth admin:<<plain>>\n",
            'proxy_set_header Authorization "Bearer <<token40>>";\n',
            "backend app\n  http-request set-header X-Auth-Token <<token>>\n",
            "userlist u\n  user ada insecure-password <<plain>>\n",
            "cache_peer proxy.test parent 3128 0 login=svc:<<plain>>\n",
        ),
        (
            "auth_basic_user_file /etc/nginx/.htpasswd;\n",
            "ssl_password_file /etc/keys/global.pass;\n",
            "proxy_set_header X-Request-Id $request_id;\n",
        ),
    ),
    Carrier(
        "networks",
        False,
        (
            "[Interface]\nAddress = 10.8.0.2/24\nPrivateKey = <<b64>>\n\n[Peer]\nAllowedIPs = 0.0.0.0/0\n",
            "[Peer]\nPresharedKey = <<b64>>\n",
            'network={\n  ssid="home"\n  psk="<<plain>>"\n}\n',
            "wpa_passphrase=<<plain>>\nssid=guests\n",
            "$ nmcli dev wifi connect office password <<plain>>\n",
            "enable secret 0 <<plain>>\nusername admin privilege 15 password 0 <<plain>>\n",
            "snmp-server community <<plain>> RO\n",
            '10.0.0.1 10.0.0.2 : PSK "<<plain>>"\n',
        ),
        (
            "[Peer]\nPublicKey = [[b64]]\nEndpoint = 10.0.0.1:51820\n",
            "wpa_key_mgmt=WPA-PSK\nwpa=2\n",
            "service password-encryption\nip domain-lookup\n",
        ),
    ),
    Carrier(
        "monitoring",
        False,
        (
            "basic_auth:\n  username: prom\n  password: <<plain>>\n",
            "receivers:\n- name: pager\n  pagerduty_configs:\n  - routing_key: <<hex32>>\n",
            "bearer_token: <<token40>>\nscrape_interval: 15s\n",
            '[smtp]\nuser = grafana\npassword = """<<password>>"""\n',
            "DD_API_KEY=<<hex32>> DD_SITE=datadoghq.eu bash -c install\n",
        ),
        (
            "bearer_token_file: /var/run/secrets/token\nscrape_interval: 15s\n",
            'http_requests_total{handler="/login/password",code="200"} 1027\n',
            'llm_tokens_total{kind="prompt"} 15912345\n',
        ),
    ),
    Carrier(
        "kafka",
        False,
        (
            'sasl.jaas.config=PlainLoginModule required username="u" password="<<plain>>";\n',
            "ssl.keystore.password=<<plain>>\nssl.key.password=<<plain>>\n",
            "spring.rabbitmq.password: <<plain>>\n",
            '$ rabbitmqctl add_user ada <<plain>>\nAdding user "ada" ...\n',
        ),
        (
            "ssl.keystore.location=/etc/kafka/keystore.jks\nsasl.mechanism=PLAIN\n",
            "ssl.keystore.type=PKCS12\n",
            "password.encoder.iterations=4096\n",
        ),
    ),
    Carrier(
        "ldap",
        False,
        (
            "$ ldapsearch -x -D cn=admin,dc=x -w <<plain>> -b dc=x\n",
            "bindpw <<plain>>\nuri ldap://x.test\n",
            "ldap_default_authtok = <<plain>>\n",
            "dn: uid=ada,dc=x\nuserPassword: <<plain>>\n",
        ),
        (
            "ldap_default_authtok_type = password\n",
            "dn: cn=passwords,dc=x\nobjectClass: organizationalUnit\n",
            "$ ldapsearch -x -W -D cn=admin,dc=x -b dc=x\n",
        ),
    ),
    Carrier(
        "html",
        False,
        (
            '<input type="password" name="pwd" value="<<plain>>">\n',
            '<wsse:Password Type="PasswordText"><<plain>></wsse:Password>\n',
            "<dt>API key</dt><dd><code><<token>></code></dd>\n",
            "<tr><td>Password</td><td><<plain>></td></tr>\n",
            '<add key="ApiSecret" value="<<token>>" />\n',
            "<credentials><user>ada</user><password><![CDATA[<<password>>]]></password></credentials>\n",
        ),
        (
            '<input type="password" name="pwd" placeholder="At least twelve signs">\n',
            '<label for="password">Password of your account</label>\n',
            '<link rel="stylesheet" integrity="sha384-[[b64]]">\n',
        ),
    ),
    Carrier(
        "form bodies",
        False,
        (
            "grant_type=password&username=ada&password=<<plain>>&scope=all\n",
            '------x\r\nContent-Disposition: form-data; name="password"\r\n\r\n<<plain>>\r\n------x--\r\n',
            "client_id=web&client_secret=<<token40>>&grant_type=client_credentials\n",
            '{"grant_type": "refresh_token", "refresh_token": "<<token40>>"}\n',
            "Request body: username=ada&pass=<<plain>>&remember=on\n",
        ),
        (
            "grant_type=authorization_code&redirect_uri=https%3A%2F%2Fx.test%2Fcb\n",
            '------x\r\nContent-Disposition: form-data; name="title"\r\n\r\nReport 2026\r\n------x--\r\n',
            "sort=password_age&order=desc&page=2\n",
        ),
    ),
    Carrier(
        "graphql",
        False,
        (
            'mutation { login(email: "a@x.test", password: "<<plain>>") { ok } }\n',
            'query=mutation($p: String!) { login(p: $p) }\nvariables={"password": "<<plain>>"}\n',
            '{"query": "mutation L($i: In!) { f(i: $i) }", "variables": {"i": {"newPassword": "<<plain>>"}}}\n',
        ),
        (
            "input LoginInput { email: String!  password: String! }\n",
            "mutation($password: String!) { login(password: $password) { token } }\n",
            "{ viewer { passwordLastChanged tokenCount } }\n",
        ),
    ),
    Carrier(
        "tracebacks",
        False,
        (
            "Config(user='app', password='<<plain>>', port=5432)\n",
            "    password   = '<<plain>>'\n    port       = 5432\n\ndb.py:12: OperationalError\n",
            "E   assert {'token': '<<token>>'} == {'token': None}\n",
            "requests.exceptions.HTTPError: 401 for url: https://x.test/v1?api_key=<<token>>\n",
            "INFO connect(host=db, user=app, passwd=<<plain>>)\n",
            "DEBUG settings: {'SECRET_KEY': '<<token40>>', 'DEBUG': False}\n",
        ),
        (
            "Config(user='app', password=SecretStr('**********'), port=5432)\n",
            "KeyError: 'password'\n",
            "psycopg.OperationalError: fe_sendauth: no password supplied\n",
            "<Token kind=NAME text=parse_item at 0x7f3a2c1d9e80>\n",
        ),
    ),
    Carrier(
        "tables",
        False,
        (
            "| Service | User | Password |\n|---|---|---|\n| wiki | ada | <<plain>> |\n| mail | bob | <<plain>> |\n",
            " id | login | api_token\n----+-------+-----------\n  1 | ada   | <<token>>\n(1 row)\n",
            "+-----+------------+\n| usr | password   |\n+-----+------------+\n| ada | <<plain>> |\n+-----+------------+\n",
            "NAME      SECRET\nstaging   <<token>>\n",
            "key\tvalue\ndb_password\t<<plain>>\nregion\teu-west-1\n",
        ),
        (
            "| Field | Type | Note |\n|---|---|---|\n| password | string | required, twelve signs or more |\n",
            " id | token_count\n----+-------------\n  1 | 15912345678\n(1 row)\n",
            "NAME      AGE   DIGEST\nstaging   4d    [[hex32]]\n",
        ),
    ),
    Carrier(
        "mobile apps",
        False,
        (
            "<key>apiSecret</key>\n<string><<token>></string>\n",
            '<string name="billing_api_secret"><<token>></string>\n',
            'let secretKey: String = "<<token40>>"\n',
            'buildConfigField("String", "API_SECRET", "\\"<<token>>\\"")\n',
        ),
        (
            "<key>CFBundleIdentifier</key>\n<string>test.example.app</string>\n",
            '<string name="password_hint">Enter your password</string>\n',
            "@SecureField var password: String\n",
        ),
    ),
    Carrier(
        "task definitions",
        False,
        (
            '{"environment": [{"name": "DB_PASSWORD", "value": "<<plain>>"}, {"name": "TZ", "value": "UTC"}]}\n',
            'env:\n  - name: API_TOKEN\n    value: <<token>>\n  - name: PORT\n    value: "80"\n',
            '{"kind": "Secret", "stringData": {"license": "<<token>>"}}\n',
            '{"Parameters": [{"ParameterKey": "MasterPassword", "ParameterValue": "<<plain>>"}]}\n',
            '{"key": "smtp.password", "content": "<<plain>>", "secure": true}\n',
        ),
        (
            '{"name": "DB_PASSWORD", "valueFrom": "arn:aws:ssm:eu-west-1:1:parameter/db"}\n',
            "env:\n  - name: API_TOKEN\n    valueFrom:\n      secretKeyRef: {name: api, key: token}\n",
            '{"name": "TOKEN_LIMIT", "value": "4096"}\n',
        ),
    ),
    Carrier(
        "functional languages",
        False,
        (
            'config :app, App.Endpoint, secret_key_base: "<<token40>>"\n',
            '{:user "app" :password "<<plain>>"}\n',
            '(setq smtpmail-smtp-pass "<<plain>>")\n',
            'services.x.password = "<<plain>>";\n',
            'dbPassword :: Text\ndbPassword = "<<plain>>"\n',
        ),
        (
            "(defn check-password [user password] (compare password (:hash user)))\n",
            "config :app, password_hash: Argon2\n",
            "{:keys [user password]}\n",
        ),
    ),
    Carrier(
        "prompts",
        False,
        (
            "Log in to https://x.test with user ada and password <<plain>> and download the invoice.\n",
            "Use this token for the API: <<token>>\n",
            "username: ada\npassphrase: <<phrase>>\n",
            "密码是<<plain>>，登录后请修改。\n",
            "账号 admin，口令 <<plain>>\n",
            "Passwort: <<plain>>\nBenutzer: ada\n",
            "Mot de passe : <<plain>>\n",
            "contraseña: <<plain>>\n",
        ),
        (
            "Write a function that checks whether a password has twelve signs.\n",
            "请帮我写一个重置密码的页面。\n",
            "Das Passwort wird als Hash gespeichert.\n",
        ),
    ),
    Carrier(
        "one-time codes",
        False,
        (
            "Your verification code is <<code6>>. It expires in 10 minutes.\n",
            "【示例】您的验证码是<<code6>>，5分钟内有效。\n",
            "otpauth://totp/x:ada?secret=JBSWY3DPEHPK3PXPJBSWY3DP&issuer=x&digits=6\nOTP code: <<code6>>\n",
        ),
        (
            "The process exited with code 137 after 482913 ms.\n",
            "Error code: 404219 (see the manual)\n",
            "zip code 97403, area code 541\n",
        ),
    ),
    Carrier(
        "support tickets",
        True,
        (
            "Customer called, call back on <<phone.us>> after 5 pm.\n",
            "Contact: <<email>>, mobile <<phone.de>>\n",
            "He paid with card <<card>>, refund please.\n",
            "IBAN for the refund: <<iban>>\n",
            "Her social security number is <<ssn>>.\n",
            "Rappelez-moi au <<phone.fr>> demain matin.\n",
        ),
        (
            "Ticket [[digits8]] was closed; see build [[digits11]].\n",
            "Order 4500-2231 ships in 3 to 5 days, weight 12.450 kg.\n",
            "Ask the team at the usual address.\n",
        ),
    ),
    Carrier(
        "crm records",
        True,
        (
            '{"customer": {"mail": "<<email>>", "mobile": "<<phone.cn>>", "id": [[digits11]]}}\n',
            '{"field": "phone", "text": "<<phone.us>>"}\n',
            "lead: {phone_number: <<phone.cn>>, source: web}\n",
            "<contact><tel><<phone.de>></tel><email><<email>></email></contact>\n",
            '{"taxpayer": {"ssn": "<<ssn>>"}}\n',
            '{"date_of_birth": "<<birthday>>", "gender": "f"}\n',
        ),
        (
            '{"id": [[digits11]], "owner_id": [[digits8]], "score": 0.87}\n',
            '{"released": "2019-04-02", "updated": "2026-01-09"}\n',
            "lead: {source: web, count: 12}\n",
        ),
    ),
    Carrier(
        "shipping",
        True,
        (
            "收件人电话：<<phone.cn>>，请放门口。\n",
            "快递员您好，我的手机 <<phone.cn>>\n",
            "Deliver to the neighbour, phone <<phone.us>>\n",
            "身份证：<<citizen.cn>>（海关需要）\n",
            "Tel.: <<phone.de>>\n",
        ),
        (
            "运单号 [[digits11]] 已签收\n",
            "Tracking [[digits16]] left the depot at 10:02.\n",
            "Parcel 3 of 12, 1200 x 800 x 600 mm\n",
        ),
    ),
    Carrier(
        "calendars and commits",
        True,
        (
            "ATTENDEE;CN=Ada;ROLE=REQ-PARTICIPANT:mailto:<<email>>\n",
            "Author: Ada Byron <<<email>>>\nDate:   Mon Mar 2 10:11:12 2026 +0100\n",
            "LOCATION:Dial-in <<phone.us>>\n",
            "Signed-off-by: Bob Carter <<<email>>>\n",
        ),
        (
            "commit [[hex32]]\nDate:   Mon Mar 2 10:11:12 2026 +0100\n",
            "DTSTART:20260302T101112Z\nSEQUENCE:15912345678\n",
            "Merge branch 'main' of ssh host into feature\n",
        ),
    ),
    Carrier(
        "calls and messages",
        True,
        (
            "INVITE sip:<<email>> SIP/2.0\n",
            "SMS to <<phone.cn>>: your parcel is here\n",
            'tel:<<phone.cn>>" class="call">call</a>\n',
            "wa.me link for <<phone.de>> sent\n",
            "Caller ID: <<phone.us>> duration 00:03:12\n",
        ),
        (
            "Call-ID: [[hex32]]\nCSeq: 102 INVITE\n",
            "call_id=[[digits11]] duration_ms=[[digits8]]\n",
            "workflow run [[digits11]] finished\n",
        ),
    ),
    Carrier(
        "payments",
        True,
        (
            '{"payment_method": {"card": {"number": "<<card>>", "exp_month": 4}}}\n',
            "PAN <<card>> declined\n",
            "Überweisung an <<iban>>, Betrag 12,50 EUR\n",
            "卡号 <<card>> 支付失败\n",
        ),
        (
            '{"amount": 4242, "currency": "eur", "bytes": [[digits16]]}\n',
            "block [[digits16]] has 120 transactions\n",
            "Betrag: 12.450,00 EUR, Rechnung 2026-00417\n",
        ),
    ),
)

_PLANT = re.compile(r"<<([a-z][a-z0-9.]*)>>|\[\[([a-z][a-z0-9.]*)\]\]")


class Document(NamedTuple):
    """A text of a carrier, and the values planted in it; without any, it is a near miss."""

    carrier: str
    personal: bool
    template: int
    text: str
    planted: tuple[tuple[str, str], ...]


def _draw(
    template: str, random: random.Random
) -> tuple[str, tuple[tuple[str, str], ...]]:
    planted: list[tuple[str, str]] = []

    def fill(match: re.Match[str]) -> str:
        kind = match[1] or match[2]
        value = MAKERS[kind](random)
        if match[1]:
            planted.append((kind, value))
        return value

    return _PLANT.sub(fill, template), tuple(planted)


def documents(seed: int = SEED, draws: int = DRAWS) -> Iterator[Document]:
    """The corpus of a seed. Equal seeds give equal documents, on every machine."""
    for carrier in CARRIERS:
        for number, template in enumerate((*carrier.positives, *carrier.near_misses)):
            for draw in range(draws):
                source = random.Random(f"{seed}/{carrier.name}/{number}/{draw}")
                text, planted = _draw(template, source)
                yield Document(carrier.name, carrier.personal, number, text, planted)


class Figures(NamedTuple):
    """Planted and found values by carrier, what was missed, and the near misses that changed."""

    planted: dict[str, int]
    found: dict[str, int]
    missed: list[tuple[Document, str]]
    changed: list[tuple[Document, str]]

    def recall(self, *, personal: bool) -> float:
        names = [carrier.name for carrier in CARRIERS if carrier.personal == personal]
        return sum(self.found[name] for name in names) / sum(
            self.planted[name] for name in names
        )


def measure(redact: Callable[[str], str], seed: int = SEED) -> Figures:
    """Redact every document on its own. A value counts as found when it no longer stands in the text."""
    planted = {carrier.name: 0 for carrier in CARRIERS}
    found = {carrier.name: 0 for carrier in CARRIERS}
    missed: list[tuple[Document, str]] = []
    changed: list[tuple[Document, str]] = []
    for document in documents(seed):
        clean = redact(document.text)
        if not document.planted and clean != document.text:
            changed.append((document, clean))
        for _, value in document.planted:
            planted[document.carrier] += 1
            if value in clean:
                missed.append((document, value))
            else:
                found[document.carrier] += 1
    return Figures(planted, found, missed, changed)


def main() -> None:
    from refold.redaction.redactor import Redactor

    redactor = Redactor()
    figures = measure(
        lambda text: redactor.text(text)[0],
        int(sys.argv[1]) if len(sys.argv) > 1 else SEED,
    )
    for name, total in figures.planted.items():
        print(f"{name:24} {figures.found[name]:4} of {total:4}")
    print(
        f"secrets {figures.recall(personal=False):.3f}, personal data {figures.recall(personal=True):.3f}"
    )
    print(f"near misses changed: {len(figures.changed)}")
    if "-v" in sys.argv[2:]:
        for document, value in figures.missed:
            print(
                "missed",
                document.carrier,
                document.template,
                repr(value),
                repr(document.text),
            )
        for document, clean in figures.changed:
            print(
                "changed",
                document.carrier,
                document.template,
                repr(document.text),
                repr(clean),
            )


if __name__ == "__main__":
    main()

"""Clean text, in which every finding except an e-mail address is a false one.

``python -m benchmarks.redaction.clean`` prints its findings per MB; ``--findings``
prints each with its surroundings.  Sources and documentation are those of the running
Python; diffs and logs of agents are generated from a seed.  Between the lines of the
logs are traps: texts that look most like the secrets of ``adversarial``, and are none.
"""

from __future__ import annotations

import argparse
import base64
import difflib
import hashlib
import json
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.redaction import adversarial, events, prose
from benchmarks.redaction.tools import Span
from benchmarks.redaction.values import BASE64, filled, run


class Text(NamedTuple):
    """A text of the corpus: its part, its name, and its content."""

    part: str
    name: str
    text: str


# Traps by kind; slots as in ``values.filled``, ``⏎`` ends a line.
_TRAPS: Final = r"""
tail        password: str sslmode: str § api_key: required region: optional § token: int = 0, user=bob
tail        password: string minLength=8 § client_secret: ${CLIENT_SECRET} tenant=abc § pwd: /opt/{word}
tail        token: [REDACTED:API_KEY] user=bob § password=**** port={d4} § max_tokens={d4} temperature=0.{d1}
tail        "token_count": {d5}, "region": "us" § secret: false host=db1 § key=depth value={n} offset={d6}
env         DB_PASSWORD= § export API_KEY=$(pass show {word}) § SECRET_KEY_BASE=${SECRET_KEY_BASE}
env         GITHUB_TOKEN: ${{ secrets.GITHUB_TOKEN }} § PASSWORD_FILE=/run/secrets/db_password
env         TOKEN_TTL={d4} § SECRET_NAME={word}-tls § MYSQL_RANDOM_ROOT_PASSWORD=yes § PASSWORD=<your password>
env         API_KEY=your-api-key-here § PASSWORD=changeme § API_TOKEN=xxxxxxxxxxxxxxxx § DB_PASSWORD=$DB_PASSWORD
env         TOKENIZERS_PARALLELISM=false § PASSWORD_HASHERS=argon2 § SECRETS_DIR=/etc/{word} § AUTH_TYPE=password
env         export TOKEN="$(cat /var/run/secrets/{word}/token)" § JWT_SECRET=%JWT_SECRET% § KEYBOARD=us § MONKEY={n}
yaml        password: {{ .Values.db.password }} § password: null § password: "" § password: *db_password
yaml        - name: DB_PASSWORD⏎  valueFrom:⏎    secretKeyRef:⏎      name: {word}-db⏎      key: password
yaml        passwordSecretRef:⏎  name: {word}⏎  key: password § secretName: {word}-tls § existingSecret: {word}-auth
yaml        imagePullSecrets:⏎  - name: regcred § password:⏎  description: The password of the user⏎  type: string
yaml        with:⏎  token: ${{ github.token }}⏎  key: ${{ runner.os }}-pip-${{ hashFiles('**/*.txt') }}
yaml        automountServiceAccountToken: false § password: !Ref DbPassword § secret: "{{resolve:ssm:/db/pw}}"
yaml        passwords:⏎  min_length: {d2}⏎  history: {d1} § cache-key: linux-{h64} § auth:⏎  type: password
json        {"name": "password", "type": "string"} § {"id": "password", "label": "Password", "purpose": "PASSWORD"}
json        {"name": "password", "in": "query", "required": true, "schema": {"type": "string"}}
json        {"password": {"type": "string", "format": "password", "minLength": {d1}}} § {"token": "IDENT", "value": "x"}
json        {"type": "Keyword", "value": "const", "token": "NAME"} § {"prompt_tokens": {d4}, "total_tokens": {d5}}
json        {"password": null, "token": ""} § {"key": "cursor", "value": "{uuid}"} § {"tokens": ["if", "(", "x", ")"]}
json        {"secretArn": "arn:aws:secretsmanager:eu-west-1:{d12}:secret:{word}-AbCdEf"} § {"error": "invalid_token"}
json        {"name": "API_TOKEN", "valueFrom": "arn:aws:ssm:us-east-1:{d12}:parameter/{word}"} § {"token_type": "Bearer"}
json        {"key": "password", "message": "must not be empty"} § {"field": "password", "code": "too_short", "min": 8}
xml         <input type="password" name="password"/> § <password/> § <xs:element name="password" type="xs:string"/>
xml         <string name="password">Password</string> § <label for="password">Password</label> § <token></token>
xml         <add key="PasswordPolicy" value="Strong"/> § <param name="password" type="string" required="true"/>
xml         <property name="password" value="${db.password}"/> § <PublicKeyToken>null</PublicKeyToken>
code        password = getpass.getpass("Password: ") § token: str = Depends(oauth2_scheme) § db.setPassword(password);
code        password = input("New password: ") § const token = req.headers.authorization?.split(" ")[1];
code        if password != confirm_password: § private final String dbPassword; § self.token = token or self._refresh()
code        PASSWORD_FIELD = "password" § #define TOKEN_EOF 1 § token = self.next_token() § case TOKEN_STRING: return "str";
code        public static final String PASSWORD_KEY = "password"; § String password = request.getParameter("password");
code        <li>{{ form.password.label }}</li> § raise ValueError("password must not be empty") § def login(user, password="")
code        $password = $_POST['password']; § define('TOKEN_BARRIER', 3); § password: z.string().min(8), § type Token = string
code        let token = lexer.next(); § secret := os.Getenv("CLIENT_SECRET") § var passwordRegex = /^[a-z]+$/;
code        key=lambda pair: pair[1] § sorted(items, key=itemgetter(1)) § api_key = config["api_key"] § pw = None
code        "password" => ["required", "min:8"], § 'token' => $token, § validates :password, length: { minimum: 8 }
code        function(e,t){var n=e.password,r=t.token||null;return{password:n,token:r,type:"password"}}
code        const{password:a,token:s}=e;return i({user:o,password:a},{token:s}) § e.exports={tokenType:"Bearer",key:"id"}
code        PASSWORD = models.CharField(max_length=128) § secret_key = Column(String(64)) § token = tokens[-1]
code        assert response.json() == {"detail": "Incorrect password"} § log.info("token refreshed for %s", user)
code        pwd = os.getcwd() § cd "$(pwd)" && echo $PWD § print(f"password is {len(password)} characters long")
terraform   variable "db_password" {⏎  type      = string⏎  sensitive = true⏎} § password = var.db_password
terraform   password = random_password.db.result § variable "api_token" {⏎  default = null⏎} § default = ""
terraform   secret_id = aws_secretsmanager_secret.db.id § output "token" {⏎  value = module.{word}.token⏎}
terraform   kms_key_id = "alias/{word}" § key_name = aws_key_pair.{word}.key_name § token = data.{word}.this.token
command     mkdir -p src/{word} § cp -p a.txt b.txt § docker run -p 8080:80 {word} § ssh -p 2222 bob@host § sshpass -e ssh u@h
command     mysql -u root -p {word} § zip -r out.zip {word} § 7z a out.7z {word} § ["mkdir", "-p", "build/{word}"]
command     ["docker", "run", "-p", "8080:80", "{word}"] § nmap -p 80,443 host § redis-cli -p 6379 § tar -xpvf a.tar
command     gh secret set X < {word}.txt § gh secret list § vault login -method=oidc § docker login ghcr.io
command     cat pw.txt | docker login -u me --password-stdin § sshpass -f ~/.pw ssh u@h § passwd bob § sudo -S -v
command     curl -u "$USER:$PASS" http://x § echo "done" | sudo tee {word} § openssl enc -pass env:PW -in f
command     keytool -list -storetype PKCS12 § openssl req -new -key {word}.pem -out {word}.csr § ssh-keygen -t ed25519 -f key
command     kubectl get secret {word} -o yaml § kubectl create secret generic x --from-file={word}.txt § psql -p 5432 -U app
command     pytest -p no:cacheprovider -k token § echo "$PW" | sudo -S apt § python -m {word} --token-file {path} --key name
command     git log -p {path} § ps -p {d5} § rsync -ap src dst § git commit -m "Rotate password" § adduser --disabled-password bob
table       | Token | Meaning |⏎|---|---|⏎| `+` | one or more |⏎| `*` | none or more |⏎| STRING | text in quotes |
table       | Parameter | Type | Description |⏎|---|---|---|⏎| password | string | the password of the user |
table       | Secret | Used by |⏎|---|---|⏎| {word}-credentials | api | § Token      Type⏎ident      name⏎lparen     op
table       user,password_changed_at⏎bob,{stamp} § name,token_count⏎{word},{d5} § id,token_type⏎{n},Bearer
table       NAME           TYPE      DATA   AGE⏎{word}-token   Opaque    3      {d2}d § column   | type⏎password | varchar(255)
table         Field    | Type         | Null⏎  password | varchar(255) | NO⏎  token    | text         | YES
table       key,value⏎theme,dark⏎language,en § option,default⏎password,none⏎token,unset § user;role⏎bob;admin
prose       the password for admin is stored in the vault § Your temporary password is sent by e-mail.
prose       log in with password authentication § the token is expired § the password is too short § pass -p to mkdir
prose       use a password manager § username and password are required § The secret is that there is none.
prose       the password was changed yesterday § the password is case-sensitive § a token is a word of the grammar
prose       Password: at least {d2} characters, with a digit § My password: how I choose it § the api key is missing
prose       Passwords are hashed with argon2id. § Enter your password: § password (required) § Password: ********
prose       The password must be between 8 and 64 characters. § Tokens: {d5} in, {d4} out § key: value pairs
chinese     密码就是用户登录时输入的字符串 § 密码改成了必填 § 密码不能为空 § 请输入密码 § 密码长度为 8 到 20 位
chinese     忘记密码？ § 令牌已过期 § 账号或密码错误 § 密码强度：中 § 密码已重置，请重新登录 § 新密码与旧密码不能相同
chinese     密钥由 KMS 保管 § 密码：不少于八个字符 § 密码输入框的 type 为 password § 口令已失效 § 密码是必填项
chinese     微信支付已开通 § QQ 音乐 § 身份证号不能为空 § 手机号格式不正确 § 地址：请填写 § 密码将在 {d2} 天后过期
language    "password": "Passwort" § "Password": "Mot de passe" § "forgot": "Passwort vergessen?" § "password": "密码"
language    contraseña: obligatoria § Mot de passe oublié ? § パスワードを入力してください § 비밀번호를 입력하세요
language    пароль: обязательное поле § senha: campo obrigatório § Das Passwort ist zu kurz. § パスワード: 必須
language    msgid "Password"⏎msgstr "Passwort" § login.password=Passwort § password_placeholder = "Enter your password"
language    La contraseña es obligatoria § le mot de passe est incorrect § "senha_invalida": "Senha inválida"
url         https://app.example/reset?token={token} § https://h.example/login?redirect=/x&token= § redis://cache:6379/0
url         postgres://$USER:$PASS@db/app § git@github.com:{word}/{word}.git § ssh://git@host:22/{word} § npm i @{word}/{word}@1.2
url         https://docs.example/auth#password-reset § postgresql://localhost:5432/{word} § http://h:8080/@{word}/key
url         https://h.example/o?code_challenge_method=S256&state={word}
after       password=[REDACTED:SECRET]⏎next § password=[REDACTED:SECRET], user=bob § token: [REDACTED:API_KEY] (expired)
after       "password": "[REDACTED:SECRET#abcdefgh]" § pw=[REDACTED:SECRET]&x=1 § (was [REDACTED:SECRET]) {word}
joined      TOKEN_GHP_PREFIX = "ghp_" § sk-learn § task_{word} § risk-{word}-{d4} § AKIAXXXXXXXXXXXXXXXX § prefix glpat-
joined      if value.startswith(("ghp_", "xoxb-", "sk-")): § mask-image-{word} § xoxb-... § ghs_<app>_<JWT> § hf_hub_url({word})
key         if "-----BEGIN PRIVATE KEY-----" in text: § ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQ{b200}= {word}
key         ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{b43} {word} § -----BEGIN PRIVATE KEY-----⏎...⏎-----END PRIVATE KEY-----
key         certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk{b400}= § SHA256:{b43} {word} (ED25519)
digest      sha256:{h64} § "integrity": "sha512-{b86}==" § ETag: "{h32}" § traceparent: 00-{h32}-{h16}-01 § build-id {h40}
digest      commit {h40} § X-Request-Id: {uuid} § idempotency_key={uuid} § "sha": "{h40}", § checksum={h64} § key_id={h16}
digest      cache key: v2-{word}-{h64} § image: {word}@sha256:{h64} § "fingerprint": "{h40}" § primary_key={word}_id
digest      go.sum: {word} v1.{n}.0/go.mod h1:{b43}= § pip --hash=sha256:{h64} § resolved "{word}-{n}.tgz#{h40}"
manual      -p password, --password=password⏎       The password to use when connecting. § mysql [-u user] [-p[password]] [db]
manual      sshpass [-ffilename|-dnum|-ppassword|-e] [command] § usage: x [--token TOKEN] [--user USER] § --password <password>
manual        -a password      Use this password for authentication. § -P, --passphrase=PASS   ask if it is absent
manual      --token string   token of the API (default "") § -k, --key KEYFILE    file of the key § [user[:password]@]host[:port]
grammar     password ::= 1*char § token = 1*tchar § userinfo = user [ ":" password ] § secret: NAME | NUMBER
grammar     token          = 1*<any CHAR except CTLs or tspecials> § password: letter (letter | digit)* § key: atom ('.' atom)*
sql         password VARCHAR(255) NOT NULL § token TEXT PRIMARY KEY § ALTER USER bob WITH PASSWORD :pw § IDENTIFIED BY ?
sql         SELECT id, password_hash FROM users WHERE token = $1 § INSERT INTO keys (name, secret) VALUES (%s, %s)
schema      password:⏎  type: string⏎  format: password⏎  minLength: 8 § name: token⏎in: query⏎schema: {type: string}
schema      securitySchemes:⏎  token:⏎    type: http⏎    scheme: bearer § apiKey:⏎  type: apiKey⏎  name: X-API-Key⏎  in: header
access      - - - [{d2}/Mar/2026:10:{d2}:07] "POST /login?next=/password HTTP/1.1" {status} {d4} "-" "curl/8.5.0" rt=0.{d3}
access      {stamp} GET /users/{n}/password/reset {status} {d3}ms § auth: password login failed for user {word} (attempt {d1})
numbers     version {d2}.0.{d5}.{d4} § lib{word}.so.{d1}.{d2}.{d1} § {milli} {second} § order {d10} § 0.0.0.0:{d4} § 127.0.0.1:{d4}
numbers     phone: string § ssn: str | None § address: 0x{h16} § passport = require("passport") § driver: postgres § wechat: true
numbers     {"id": {d9}, "price": {d3}.{d2}, "ts": {milli}} § rows={d7} bytes={d9} § page {n} of {d4} § MIT license, {d4}
found       are identified as "derived from the {word} Data⏎Security" § 2003 Ada Novak⏎ 2021 Bruno Lane⏎ 2018-2021 Igalia S.L⏎ 2001 Hugo Costa
found       7872 7873 7874 7875 7876 7877 4109 7966 7970⏎7971 7972 7973 7974 § 1999-2000 Farid Court⏎ 2007-2020 Uma Weber⏎ 2008 Liam Drive
found       _{word}_VH_PWD="\${PWD}" § if test "\$PWD" = "\$OLD_PWD" \⏎  -a "(stat {word})" § system(cmd." -u ".s:Escape(name,0)." ".s:Escape(file,0))
found       CHANGING USERID AND PASSWORD		*netrw-chgup* *netrw-userpass* {{{2 § files containing login and password for ftp.  Example: >
found       syn keyword	pfService	kpasswd⏎syn keyword	pfService	krb524⏎syn keyword	pfService	pop3pw § PASSWORD						*netrw-passwd*
found       METHOD can be "trust", "reject", "md5", "password", "scram-sha-256", § kpasswd		464/tcp⏎kpasswd		464/udp
found       <comment xml:lang="es">clave privada PKCS#8 (cifrada)</comment> § postgresql://owner:…@db/agents § qw{ -pass -no_debug -number }
found       {"root.json": "ewogInNpZ25hdHVyZXMiOiBbCiAgewogICAia2V5aWQiOiAi{b64}"} § {h4}: eeb9 ba68 64c5 0805 2d4a 776e a1ee f597  sRstPjn1sb
found       syn keyword sqlOption    Password⏎syn keyword sqlOption    Precision⏎syn keyword sqlOption    Prefetch⏎syn keyword sqlOption    Scale
more        ["user", "password", "host"] § ('token', 'secret', 'key') § fields = ["password", "confirm_password", "email"] § case "password", "secret":
more        HIDDEN = {"password", "token", "authorization"} § ENUM('password','token','none') § password|secret|token § password/token/secret
more        auth_method: password⏎timeout: 30 § grant_type=password&scope=read § "grant_type": "client_credentials" § PasswordAuthentication yes
more        PermitRootLogin prohibit-password § passwd: files systemd § UsePAM yes⏎# password hashing § auth required pam_unix.so nullok
more        password        [success=1 default=ignore]      pam_unix.so obscure yescrypt § @include common-password
more        let password = String::new(); § char password[64]; § std::string password; § password := r.FormValue("password")
more        self.assertEqual(user.password, "") § expect(token).toBeDefined() § password.length >= 8 § token !== undefined && token
more        Token::Ident(name) => name, § enum Token { Number(f64), Plus } § token: Token::Eof, § struct Secret<T>(T); § password: Secret<String>,
more        password = fields.CharField(required=True) § token = serializers.CharField(read_only=True) § secret = env.str("SECRET")
more        @app.post("/token") § router.get('/password/:id', show) § path("reset/<token>/", reset) § GET /v1/secrets/{word}/versions
more        {{ password | b64encode }} § {{- if .Values.auth.password }} § password: "{{ lookup('env', 'PW') }}" § password: ${env:PW}
more        password: {get_input: db_password} § Password: {Ref: DBPassword} § token: !secret api_token § password: !env DB_PASSWORD
more        password: ENC(see vault) § password: <redacted> § token: ***** § password: (hidden) § secret: [hidden] § pw: <unset>
more        api_key: None, § token=None, timeout={d2} § password: undefined § apiKey: process.env.API_KEY, § token: process.env["TOKEN"]
more        error: password authentication failed for user "{word}" § FATAL: no password supplied § password mismatch for {word}
more        remote: Support for password authentication was removed. § fatal: could not read Password for 'https://host' § Password for bob:
more        [sudo] password for bob: § bob@host's password: § Enter passphrase for key '/opt/{word}': § Enter PEM pass phrase: § New password:
more        Token limit: {d5} of {d6} § tokens/s: {d2}.{d1} § 4096-token window § input_tokens: {d4}, cache_read_tokens: {d5} § Token usage: {d5}
more        "max_tokens": {d4}, "stop_token": "</s>" § pad_token = "<pad>" § bos_token: "<s>" § eos_token_id={d5} § "tokenizer_class": "LlamaTokenizer"
more        special_tokens_map.json § mask_token="[MASK]" § "unk_token": "<unk>", § token_embedding.weight § n_tokens = {d6}
more        key: ctrl+shift+p § "key": "ctrl+k ctrl+s" § bindkey "^R" history § <key>CFBundleIdentifier</key>⏎<string>com.example.{word}</string>
more        Key: {word}/{path} § S3Key: builds/{word}.zip § key = "{word}.tfstate" § primary key (id) § foreign key ({word}_id) § api-key-id: {d6}
more        |  `password`  |  yes  |  at least 8 characters  | § Password :: String § -> password:string § @param password the new password
more        @param {string} token - The token to verify § :param password: the password, or None § @return token or null § * token - the lexeme
more        [Passwords](passwords.md) § ## Password reset § - [ ] rotate passwords § 1. Password § **Password:** the one you chose § > password?
more        La contraseña debe tener 8 caracteres § パスワードが違います § 비밀번호가 일치하지 않습니다 § Неверный пароль § mot de passe requis
more        密码：必填 § 密码：见密码管理器 § 密码为 8 位以上 § 密码是加密存储的 § 令牌：由网关签发 § 初始密码请联系管理员 § 密码已修改成功 § 密码输错三次
more        用户名和密码 § 请妥善保管密码 § 密码找回 § 密码由系统随机生成 § 密码就是这样设置的 § 密码改为必填项 § 密码设置为空 § 密码错误次数
more        the password is stored as a hash § the token is valid for {d2} minutes § a password of {d2} characters § password is optional
more        my password manager is locked § password protected § the secret to good code is names § log in as bob, password on request
more        user bob has no password § login: required, password: required § Username: string⏎Password: string § user=bob auth=token
more        export PATH=$PATH:/opt/bin § PASS {path} ({d3} ms) § FAIL {path} § --- PASS: Test{word} (0.{d2}s) § pass={d3} fail={d1} § passed: {d4}
more        PASSED {path}::test_password § test_token_expiry PASSED § ok {d2} - password is checked § 12 passed, 1 skipped in {d1}.{d2}s
more        Signed-off-by: Ada Novak § Merge pull request #{d4} from {word}/password-reset § feat(auth): token rotation § fix: pw field
more        ssh-agent -k § ssh-keyscan host § gpg --list-secret-keys § gpg -k § openssl rand -hex 32 § pwgen 16 1 § mkpasswd -m sha-512
more        aws secretsmanager get-secret-value --secret-id {word} § az keyvault secret show --name {word} § kubectl -n {word} get secrets
more        psql -U app -W § mysql -u app -p § mysqldump --password db > x § redis-cli --askpass § ldapsearch -W § htpasswd -c file bob
more        curl -H "Authorization: Bearer $TOKEN" https://h.example § curl -u bob https://h.example § http -a bob :80 § wget --ask-password u
more        docker run -e MYSQL_PASSWORD mysql § docker run -e PW="$PW" img § --env-file .env § env | grep -i token § unset GITHUB_TOKEN
more        with open("password.txt") as f: § Path("token.json") § "./secrets.yaml" § password_file: /run/pw § tokenPath: "/var/{word}/token"
"""
TRAPS: Final = tuple(
    (row[:12].strip(), form.replace("⏎", "\n"))
    for row in _TRAPS.strip("\n").splitlines()
    for form in row[12:].split(" § ")
)

# Packages for what is searched here, and this one.
_NOT_CLEAN: Final = (
    "crypto",
    "detect_secrets",
    "faker",
    "hypothesis",
    "phonenumbers",
    "presidio",
    "python_stdnum",
    "refold",
    "scrubadub",
    "stdnum",
)
# Passwords in examples of these sources: found rightly, so left out.
_PASSWORDS: Final = ("geheim$parole", "scott:tiger@")
_WANTED: Final = re.compile(
    r"METADATA|.*\.(?:css|html|js|json|md|pyi?|rst|toml|txt|ya?ml)"
)
_PACKAGES_MOST: Final = 6_000_000
_FILE_MOST: Final = 400_000
_DIFFS: Final = 150
_LOGS: Final = 3_000_000


def texts(scale: float = 1.0) -> Iterator[Text]:
    """The corpus, in the same order each time; of each part about ``scale``."""
    for part, texts_of in _PARTS.items():
        yield from (Text(part, name, text) for name, text in texts_of(scale))


def _library(scale: float) -> Iterator[tuple[str, str]]:
    """The standard library but its tests: sources, and the text of ``help``."""
    files = [
        (name, text)
        for name, text in prose.library()
        if not any(part.startswith("test") for part in Path(name).parts)
    ]
    return _some(files, scale)


def _packages(scale: float) -> Iterator[tuple[str, str]]:
    """Sources and pages of installed packages, chosen by the digests of their names."""
    return _some(_installed(), scale)


@cache
def _installed() -> list[tuple[str, str]]:
    root = Path(sysconfig.get_paths()["purelib"])
    names = [
        name
        for path in root.rglob("*")
        if (name := path.relative_to(root)).parts and _wanted(name)
    ]
    names.sort(key=lambda name: hashlib.sha256(name.as_posix().encode()).digest())
    chosen = []
    total = 0
    for name in names:
        if total >= _PACKAGES_MOST:
            break
        text = _decoded(root / name)
        if text:
            chosen.append((name.as_posix(), text))
            total += len(text)
    return chosen


def _wanted(name: Path) -> bool:
    return (
        not name.parts[0].lower().startswith(_NOT_CLEAN)
        and not any(part.startswith(("test", "vector")) for part in name.parts)
        and _WANTED.fullmatch(name.name) is not None
    )


def _decoded(path: Path) -> str:
    if not path.is_file() or path.stat().st_size > _FILE_MOST:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def _some(files: Iterable[tuple[str, str]], scale: float) -> Iterator[tuple[str, str]]:
    chosen = [*files][:: max(1, round(1 / scale))]
    return ((name, _without_passwords(text)) for name, text in chosen)


def _without_passwords(text: str) -> str:
    """Remove the lines with the passwords that the standard library's examples have."""
    if not any(password in text for password in _PASSWORDS):
        return text
    lines = text.splitlines(keepends=True)
    return "".join(
        line for line in lines if not any(password in line for password in _PASSWORDS)
    )


def _diffs(scale: float) -> Iterator[tuple[str, str]]:
    """Return changes of modules: lines removed, indented, and doubled."""
    chance = random.Random("diffs")
    small = [file for file in _library(1.0) if 2_000 < len(file[1]) < 20_000]
    for name, text in small[: round(_DIFFS * scale)]:
        before = text.splitlines(keepends=True)
        after = [line for old in before for line in _changed(old, chance)]
        lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", n=8)
        yield name, f"diff --git a/{name} b/{name}\n" + "".join(lines)


def _changed(line: str, chance: random.Random) -> tuple[str, ...]:
    if chance.random() < 0.9:
        return (line,)
    return chance.choice(((), (f"    {line}",), (line, line)))


def _logs(scale: float) -> Iterator[tuple[str, str]]:
    """Return tool outputs with traps among them, bare, prefixed and as JSON."""
    chance = random.Random("logs of agents")
    lines = [*events.noise(chance, round(_LOGS * scale)).values()]
    blocks = [block for text in lines for block in prose.chunks(text, 600)]
    chance.shuffle(blocks)
    for number, block in enumerate(blocks):
        parts = [block, *(trap(chance) for _ in range(2)), _image(chance)]
        yield f"output {number}", _carried("\n\n".join(parts), number, chance)


def trap(chance: random.Random) -> str:
    """One of the traps, its slots filled."""
    return filled(chance.choice(TRAPS)[1], chance)


def _image(chance: random.Random) -> str:
    body = "iVBORw0KGgoAAAANSUhEUgAA" + run(chance, 200, BASE64)
    if chance.random() < 0.5:
        return f"data:image/png;base64,{body}"
    certificate = base64.b64encode(chance.randbytes(180)).decode()
    lines = [certificate[n : n + 64] for n in range(0, len(certificate), 64)]
    head = "-----BEGIN CERTIFICATE-----"
    end = "-----END CERTIFICATE-----"
    return "\n".join((head, *lines, end))


def _carried(text: str, number: int, chance: random.Random) -> str:
    match number % 3:
        case 0:
            return text
        case 1:
            prefix = chance.choice([*adversarial.PREFIXES["dev"][:8]])
            return "\n".join(prefix(n, s) for n, s in enumerate(text.splitlines(), 1))
        case _:
            result = {"type": "tool_result", "turn": number, "output": text}
            return json.dumps(result, ensure_ascii=False)


_PARTS: Final[Mapping[str, Callable[[float], Iterator[tuple[str, str]]]]] = {
    "library": _library,
    "packages": _packages,
    "diffs": _diffs,
    "logs": _logs,
}


class Found(NamedTuple):
    """The findings in the corpus.

    sizes: bytes by part.    types: findings by part, then by type.
    """

    sizes: Counter[str]
    types: dict[str, Counter[str]]

    def per_megabyte(self) -> dict[str, float]:
        """Findings in a megabyte of it all, by type, most first."""
        total = sum(self.types.values(), Counter[str]())
        size = max(1, self.sizes.total())
        return {kind: n / size * 1e6 for kind, n in total.most_common()}


def found(
    spans: Callable[[str], Iterable[Span]],
    corpus: Iterable[Text],
    tell: Callable[[Text, Span], object] | None = None,
) -> Found:
    """Count what ``spans`` finds; pass each to ``tell``, except e-mail addresses."""
    all_of_it = Found(Counter(), {})
    for text in corpus:
        all_of_it.sizes[text.part] += len(text.text.encode())
        for span in spans(text.text):
            if text.text[span.start : span.end].startswith("[REDACTED:"):
                continue  # it stood there before
            all_of_it.types.setdefault(text.part, Counter())[span.type] += 1
            if tell and span.type != "EMAIL":
                tell(text, span)
    return all_of_it


def _shown(text: Text, span: Span) -> None:
    around = text.text[max(0, span.start - 60) : span.end + 30][:300]
    print(f"{text.part}:{text.name}: {span.type} {around!r}")


def main() -> None:
    """Print the findings of the default policy, a MB, by part and type."""
    from benchmarks.redaction.tools import Refold, redactor

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--findings", action="store_true", help="show each one")
    parser.add_argument("--scale", type=float, default=1.0, help="how much of it")
    given = parser.parse_args()
    tell = _shown if given.findings else None
    figures = found(Refold(redactor()).spans, texts(given.scale), tell)
    for part, size in figures.sizes.items():
        print(f"{part:10} {size / 1e6:6.2f} MB  {dict(figures.types.get(part, {}))}")
    print(f"{'all':10} {figures.sizes.total() / 1e6:6.2f} MB")
    for kind, rate in figures.per_megabyte().items():
        print(f"{kind:20} {rate:8.2f} a MB")


if __name__ == "__main__":
    main()

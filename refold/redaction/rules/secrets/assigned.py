"""Rules for values that somebody named or typed: passwords, tokens, keys."""

from functools import partial

from refold.redaction.checks.secrets import (
    KEY_OWNERS,
    NO_KEY_OF,
    aws_secret,
    chinese_password,
    env_key,
    flag,
    key,
    login,
    login_argument,
    password,
    password_of_key,
    sql,
    token,
    token_of_key,
    told,
    typed,
)
from refold.redaction.rules.rule import QUOTE, InContext, Rule, words

_SEPARATOR = (
    r"(?:[ \t]{0,16}(?:=>|:=|\?=|={1,3}|:{1,2}|[：＝])(?:[ \t]{0,16}|\\{1,7}t)"
    r"|[ \t](?:is|was|to)[ \t]{1,2}|是[:：]?|为[:：]?|[ \t]{1,2}(?=\\{0,7}[\"'])"
    r"|[ \t]{0,16}(?:\||\\{1,7}t|\t)[ \t]{0,16}|,[ \t]{0,4}(?=\\{0,7}[\"'])"
    r"|\([ \t]{0,2}(?=\\{0,7}[\"'])|[ \t]{1,4}value[ \t]?=[ \t]?(?=\\{0,7}[\"'])"
    r"|%(?:25)?3[AaDd](?:%(?:20|22)|\+)?|>(?=[^<>\s]{4,256}</))"
)
IS = (
    rf"(?:{QUOTE})?\]?(?:\*{{1,2}})?"
    r"(?:[ \t]?:[ \t]?(?:&(?:'static )?)?[A-Za-z_][\w.|\[\] ]{0,40}?(?=[ \t]?=))?"
    r"(?:[ \t]for[ \t][^\s:]{1,64}(?=[ \t]?[:=]))?"
    rf"{_SEPARATOR}(?:\*{{1,2}}[ \t]{{1,4}})?"
    r"(?:\|[+\-]?(?:[ \t]|\r?\n|\\{1,7}n){1,16})?"
)
_PLAIN = r"[^\s\"'`<>()\[\]{}|\\.,;:&=\u3000-\u303f\u4e00-\u9fff\uff00-\uff65]"
_JOIN = r"(?:[.:]|[=,;&](?![\w.\-]{1,30}[=:]))"
VALUE = (
    r"(?:[bBrRuUfF@$]{1,2}(?=[\"']))?(?:(?P<escaped>\\{1,7}[\"'])|(?P<quote>[\"'`]))?"
    r"(?P<value>(?(escaped)[^\"'\\\n]{3,1024}"
    r"|(?(quote)(?:(?!(?P=quote))[^\\\n]|\\[^\n]){3,1024}"
    rf"|{_PLAIN}{{1,1024}}+(?:{_JOIN}{{1,2}}{_PLAIN}{{1,1024}}+){{0,16}}(?:={{1,2}}(?!\w))?)))"
)
# What stands after a name before its value, as far as it must: engines look back over
# all that this may match.
THEN = (
    r"[0-9]?(?:\\|[\"'`]?\]?(?:[ \t]{4}|[ \t]{0,3}(?:[=:|>%,(?*\\\t\"'`]|：|＝|是|为"
    r"|is[ \t\\]|was[ \t\\]|to[ \t\\]|for[ \t\\]|value)))"
)
LOGIN_WORDS = (
    r"(?i:passwor[dt]|passwd|passphrase|passcode|pwd)"
    r"|(?<=[_\-])(?i:pass|pw)|(?<=[\"'])pass(?=[\"'])|(?<=[a-z])Pass(?![a-z])"
    r"|(?<=[A-Z])PASS(?![A-Z])|(?i:(?<=db)|(?<=root)|(?<=smtp)|(?<=user)|(?<=ftp))(?i:pass)"
    r"|(?<![A-Za-z.])(?i:pass|pw)(?=[ \t]{0,2}[:=][ \t]{0,2}\\{0,7}[\"'])"
)
KEY_OF = rf"(?i:{'|'.join(KEY_OWNERS)})[\-_ .]?"
_NOT_A_SECRET = "".join(
    rf"(?<!{word})(?<!{word}[\-_ ])"
    for word in ("next", "page", "sync", "eos", "bos", "pad", "unk", "sep", "mask")
)
_NO_KEY = "".join(rf"(?<!{word.upper()})" for word in NO_KEY_OF)
_Secret = partial(Rule, type="SECRET", priority=20)

ASSIGNED = (
    Rule(
        id="key.aws-secret",
        type="API_KEY",
        gate=("secret", "akia", "asia"),
        then=r"(?:[_\-. ]?(?:access)?[_\-. ]?key[\\\"' \t=:,|>t]{1,48}[a-z0-9/+]{8}"
        r"|[a-z0-9]{16}[^a-z0-9])",
        pattern=r"(?:(?i:secret[_\-. ]?(?:access[_\-. ]?)?key)\\{0,7}[\"']?"
        r"[ \t]{0,4}(?:=>|[:=,| ])[ \t]{0,4}\\{0,7}[\"']?"
        r"|(?:AKIA|ASIA)[A-Z0-9]{16}(?:[\s,:;|\"']|\\{1,7}[nt\"]){1,4})"
        r"(?P<value>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        validator=aws_secret,
        priority=80,
        examples=(
            "aws_secret_access_key = «q7Zt0Kx3Vb9Lm2Np5Rs8/d1Yf4Hj6Cg+aUeIoQwE»",
        ),
        counter_examples=("secret_access_key = " + "a" * 40,),
    ),
    _Secret(
        id="secret.password",
        gate=("pass", "pwd", "pw"),
        then=rf"(?:wor[dt]|wd|phrase|code)?{THEN}",
        pattern=rf"(?:{LOGIN_WORDS})[0-9]?{IS}{VALUE}",
        validator=password,
        examples=(
            "DB_PASSWORD=«hunter2»",
            "export PGPASSWORD=«letmein»",
            'password: str = "«s3cr,t!»"',
            '{"user": "ada", "password": "«hunter2»"}',
            r'"{\"password\": \"«hunter2»\"}"',
            "the password is «hunter2x».",
            "Password for 'ada': «hunter2x»",
            "CREATE USER ada PASSWORD '«hunter2»'",
            "<password>«hunter2»</password> password=«bear77!»",
            "password = b'«hunter2»'",
            "passphrase: '«correct horse battery staple»'",
            '<add key="Password" value="«hunter2»"/>',
            '["--password", "«hunter2»"]',
            "user%3Dada%26password%3D«hunter2»",
            "| password | «hunter2» |",
        ),
        counter_examples=(
            "password = get_password(user)",
            "password=os.environ['DB_PASSWORD']",
            'password = "${DB_PASSWORD}"',
            "password: ${{ secrets.DB_PASSWORD }}",
            "def login(password: str, retries: int = 3)",
            "password = self.password2",
            "password=None, passwd=<password>, password=****",
            "PWD=/opt/app/v2",
            "password is required",
            "| password | the user's password |",
        ),
    ),
    _Secret(
        id="secret.token",
        gate=("token", "secret", "credential"),
        then=rf"s?{THEN}",
        pattern=rf"(?i:token|secret|credentials?)[0-9]?{IS}{VALUE}",
        validator=token,
        examples=(
            "CLIENT_SECRET=«a8f5f167f44f4964»",
            "?token=«abc123def456»&n=1",
            "?access_token=«eyJhbGciOiJI»",
        ),
        counter_examples=(
            "MAX_TOKENS=100",
            "token = tokens[i2]",
            "token==4595.72.1",
            "secret = config.secret_2048",
            'next_token: "CAUQAA1234567"',
            "token: Optional[str] = None",
            "secret: arn:aws:secretsmanager:eu-west-1:123456789012",
        ),
    ),
    _Secret(
        id="secret.key",
        gate=("key",),
        lead=r"[a-z\-_ .]",
        then=rf"(?:_base)?(?:_id)?{THEN}",
        pattern=rf"(?i:key)(?:_base)?(?:_id(?=.{{1,6}}AKIA))?[0-9]?{IS}{VALUE}",
        validator=key,
        examples=("X-Api-Key: «a8f5f167f44f4964»", "SECRET_KEY = '«x#1b_7!q-0z»'"),
        counter_examples=(
            "api_key = os.getenv('API_KEY_1')",
            "primary_key=a8f5f167f44f4964",
        ),
    ),
    Rule(
        id="secret.env.key",
        type="SECRET",
        gate=("_key", "_pat"),
        before="[A-Z0-9]",
        reach=1,
        lead="[a-z0-9]",
        then=r"(?:\\|[\"'`]?[ \t]{0,2}[:=])",
        pattern=rf"_(?:KEY|PAT)(?:{QUOTE})?[ \t]{{0,2}}[:=][ \t]{{0,2}}{VALUE}",
        validator=env_key,
        priority=19,
        examples=("WEATHER_KEY=«q7Zt0Kx3Vb9Lm2Np5Rs8Wd»",),
        counter_examples=(
            "CACHE_KEY=q7Zt0Kx3Vb9Lm2Np5Rs8Wd",
            "BUILD_KEY=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
            "SOME_KEY = make_key(1234567890123456)",
        ),
    ),
    Rule(
        id="secret.auth",
        type="SECRET",
        gate=("auth",),
        lead="[^a-z0-9]",
        then=r"(?:\\|[\"'`]?[ \t]{0,2}[:=])",
        pattern=rf"(?<![A-Za-z0-9])(?i:auth)(?:{QUOTE})?[ \t]{{0,2}}[:=]"
        rf"[ \t]{{0,2}}{VALUE}",
        validator=env_key,
        priority=18,
        examples=("REDIS_AUTH='«q7Zt0Kx3Vb9Lm2Np5Rs8»'",),
        counter_examples=("auth: required", "auth = HTTPBasicAuth(user, pw)"),
    ),
    InContext(
        id="secret.auth.key",
        type="SECRET",
        leaf=True,
        gate=("_key", "_pat", "auth"),
        context=rf"(?<=[A-Z0-9]){_NO_KEY}_(?:KEY|PAT)|(?<![A-Za-z0-9])(?i:auth)",
        pattern=r"[^\s\"'`]{16,1024}",
        validator=env_key,
        priority=19,
        examples=(
            ("WEATHER_KEY", "«q7Zt0Kx3Vb9Lm2Np5Rs8Wd»"),
            ("GITHUB_PAT", "«q7Zt0Kx3Vb9Lm2Np5Rs8Wd»"),
            ("REDIS_AUTH", "«q7Zt0Kx3Vb9Lm2Np5Rs8»"),
        ),
        counter_examples=(
            ("CACHE_KEY", "q7Zt0Kx3Vb9Lm2Np5Rs8Wd"),
            ("public_key", "q7Zt0Kx3Vb9Lm2Np5Rs8Wd"),
            ("SORT_KEY", "created_at_2024_01_02"),
            ("auth", "oauth2"),
            ("author", "q7Zt0Kx3Vb9Lm2Np5Rs8Wd"),
        ),
    ),
    _Secret(
        id="secret.chinese",
        gate=("密码", "口令", "密钥", "秘钥", "令牌", "密碼", "暗号"),
        then=r"(?:[ \t:=\"'\\*_`]|是|为|：|＝|“|”|「)(?:[!-~ \t]|是|为|：|＝|“|”|「)",
        pattern=r"(?:密码|口令|密钥|秘钥|令牌|密碼|暗号)"
        r"(?:(?:\*{1,2}|_{1,2})(?=[ \t]?[：:=＝是为]))?"
        r"(?:[是为:：=＝ \t]|\\{0,7}[\"'“”「`]|(?<=[:：])\*\*[ \t]?){1,8}"
        r"(?P<value>[!-~](?:(?![\"'`\\<>,;])[!-~]|[,;](?=[!-~])){2,255}(?<![.,;:]))",
        validator=chinese_password,
        examples=(
            "登录密码：«hunter2x»，请保密",
            "密码是 «abc,123»",
            "初始密码：«admin»。",
            "**密码**：«hunter2x9»",
            "**密码:** «hunter2x9»",
            "`密码`：`«hunter2x9»`",
        ),
        counter_examples=(
            "密码不能为空",
            "密码：$DB_PASSWORD",
            "密码: string 类型",
            "**密码**：string 类型",
            "密码：********",
        ),
    ),
    InContext(
        id="secret.password.key",
        type="SECRET",
        leaf=True,
        gate=("pass", "pwd", "pw", "密码", "口令"),
        context=rf"(?:{LOGIN_WORDS}|(?<![A-Za-z])(?i:pass|pw))"
        r"(?:[\-_ ]?(?i:hash|digest|confirm(?:ation)?|again|value|plain(?:text)?))?"
        r"|密码|口令",
        pattern=r"[^\n]{4,256}(?:\r?\n){0,2}",
        validator=password_of_key,
        priority=20,
        examples=(
            ("password", "«correct horse battery»"),
            ("登录密码", "«hunter2»"),
            ("What is your password?", "«hunter2?»"),
            ("Password:", "«hunter2.»"),
        ),
        counter_examples=(
            ("password", "Must have eight characters."),
            ("Password:", "Required."),
            ("password", "string"),
            ("password_policy", "hunter2"),
        ),
    ),
    InContext(
        id="secret.token.key",
        type="SECRET",
        leaf=True,
        gate=("token", "secret", "credential", "key", "authorization", "密钥", "令牌"),
        context=rf"{_NOT_A_SECRET}(?i:token|secret|credentials?|authorization)"
        rf"|(?:{KEY_OF})(?i:key)|密钥|秘钥|令牌",
        pattern=r"[^\n]{8,4096}(?:\r?\n){0,2}",
        validator=token_of_key,
        priority=20,
        examples=(("apiKey", "«a8f5f167f44f»"), ("access_token", "«1/f8k2_0qz»")),
        counter_examples=(
            ("next_token", "a8f5f167f44f"),
            ("token", " hello"),
            ("key", "a8f5f167f44f"),
            ("secret", "kubernetes-managed-secret"),
        ),
    ),
)


_FLAG = r"(?<![^\s\"'`(=\[,])--?(?:[a-z0-9]{1,15}[\-_]){0,3}"
_AFTER = (
    r"(?:[ \t]{1,4}|=|\\{0,7}[\"'],[ \t]{0,4}(?:\\{1,7}n[ ]{0,16})?(?=\\{0,7}[\"']))"
)
_ARGUMENT = r"(?:\\{0,7}[\"'])?(?P<value>[^\s\"'`\\]{3,256})"
_WHITE = r"(?:[ \t\n\r]|\\{1,7}[nrt]){1,8}"

COMMANDS = (
    _Secret(
        id="secret.flag.password",
        gate=("pass", "pwd"),
        before=_FLAG,
        reach=50,
        lead=r"[\-_]",
        then=r"(?:word|wd|phrase)?(?:[ \t=\\]|[\"'],)",
        pattern=rf"(?i:password|passwd|passphrase|pass|pwd){_AFTER}{VALUE}",
        validator=flag,
        examples=(
            "mysql --password «hunter2» -u ada",
            '["--password", "«hunter2»"]',
            "redis-cli --pass «letmein7»",
        ),
        counter_examples=(
            "run --password-file a1b2c3d4",
            "run --password --verbose2",
            "give --password options",
        ),
    ),
    _Secret(
        id="secret.flag.token",
        gate=("token", "secret", "key"),
        before=_FLAG,
        reach=50,
        lead=r"[\-_]",
        then=r"(?:[ \t=\\]|[\"'],)",
        pattern=rf"(?i:token|secret|key){_AFTER}{VALUE}",
        validator=token,
        examples=("cli --api-key '«a8f5f167f44f»'", '["--token", "«a8f5f167f44f»"]'),
        counter_examples=("cli --token $TOKEN", "sort --key 2"),
    ),
    _Secret(
        id="secret.login",
        gate=("-u", "--user", "--proxy-user", "--auth"),
        lead=r"[^0-9a-z]",
        then=r"(?:[ \t=\"'\\]|[a-z])",
        pattern=r"(?<![^\s\"'`\[,(])(?:-u|--user|--proxy-user|--auth)"
        r"(?:[ =]{0,2}|\\{0,7}[\"'],[ ]?)\\{0,7}[\"']?"
        r"[\w.@+%\-]{1,64}:(?P<value>[^\s\"'\\:]{3,128})(?![\w:])",
        validator=login,
        examples=(
            "curl -u ada:«hunter2» https://example.com",
            "curl -u 'ada:«bear-77»' https://example.com",
        ),
        counter_examples=("docker run -u 1000:100 x", "curl -u ada:$PASSWORD x"),
    ),
    InContext(
        id="secret.login.key",
        type="SECRET",
        leaf=True,
        gate=("-u", "--auth"),
        context=r"(?<!\S)(?:-u|--user|--proxy-user|--auth)",
        pattern=r"[\w.@+%\-]{1,64}:(?P<value>[^\s\"'\\:]{3,128})",
        validator=login_argument,
        priority=20,
        examples=(("-u", "ada:«s3cretpw»"), ("--user", "ada:«bear-77»")),
        counter_examples=(
            ("-u", "1000:1000"),
            ("-u", "www-data:www-data"),
            ("-u", "origin:main"),
            ("--user", "$USER:$PASSWORD"),
            ("user", "ada:s3cretpw"),
        ),
    ),
    _Secret(
        id="secret.mysql",
        gate=("mysql", "mariadb"),
        then=r"(?:dump|admin|import|show|check)?[ \t\"']",
        pattern=r"(?:mysql|mariadb)[a-z]{0,8}[ \t][^\n|;&]{0,100}?(?<![^\s\"'])-p"
        r"(?P<value>[^\s\"'`\\\-][^\s\"'`\\]{2,64})",
        validator=typed,
        examples=("mysql -h db -uroot -p«hunter2» app",),
        counter_examples=("mysql -u root -p app", "mysql -p$PASSWORD"),
    ),
    _Secret(
        id="secret.typed",
        gate=(
            *("sshpass", "redis-cli", "docker login", "podman login"),
            *("helm registry", "htpasswd", "ldapsearch", "sqlcmd", "mongo"),
            *("smbclient", "az login", "-passin", "-passout", "wandb login"),
        ),
        then=r"[a-z]{0,7}[ \t]",
        pattern=r"(?:sshpass(?: -[ev])?[ \t]{1,4}-p ?"
        r"|redis-cli[ \t][^\n|;&]{0,80}?-a[ \t]{1,4}"
        r"|(?:docker|podman) login[ \t][^\n|;&]{0,80}?-p[ \t]{1,4}"
        r"|htpasswd[ \t]{1,4}-[a-zB]{0,6}b[a-zB]{0,6}[ \t]{1,4}\S{1,64}"
        r"[ \t]{1,4}\S{1,64}[ \t]{1,4}"
        r"|ldapsearch[ \t][^\n|;&]{0,100}?-w[ \t]{1,4}"
        r"|sqlcmd[ \t][^\n|;&]{0,80}?-P[ \t]{0,4}"
        r"|mongo(?:sh|dump|restore|export|import)?[ \t][^\n|;&]{0,80}?-p[ \t]{1,4}"
        r"|smbclient[ \t][^\n|;&]{0,80}?-U[ \t]{1,4}[^\s%]{1,32}%"
        r"|-pass(?:in|out)[ \t]{1,4}pass:|wandb login[ \t]{1,4}"
        rf"|az login[ \t][^\n|;&]{{0,80}}?-p[ \t]{{1,4}}){_ARGUMENT}",
        validator=typed,
        examples=(
            "sshpass -p «hunter2» ssh ada@host",
            "redis-cli -h cache -a «hunter2» ping",
            "docker login -u ada -p «bear-77» r.example.com",
            "htpasswd -bc users ada «bear-77»",
        ),
        counter_examples=(
            "sshpass -e ssh x",
            "redis-cli -h cache ping",
            "docker login -p $P",
        ),
    ),
    _Secret(
        id="secret.netrc",
        gate=("login",),
        then=r"(?:[ \t\n\r]|\\[nrt])",
        pattern=rf"(?<![A-Za-z])login{_WHITE}[^\s\\]{{1,64}}{_WHITE}password{_WHITE}"
        r"(?P<value>(?!\[)[^\s\"'\\]{3,256})",
        validator=login,
        examples=("machine api.example.com\n  login ada\n  password «bear-77»\n",),
        counter_examples=("login form password $X", "login and password"),
    ),
    _Secret(
        id="secret.pgpass",
        gate=(":5432:", ":3306:", ":6432:"),
        then=r"[\w*\-]{1,32}",
        pattern=r":(?:5432|3306|6432):[\w*\-]{1,64}:[\w.@\-]{1,64}:(?P<value>[^\s:\"'\\]{3,128})",
        validator=login,
        examples=("db.example.com:5432:app:ada:«hunter2»",),
        counter_examples=("host:5432:app:ada:*",),
    ),
    _Secret(
        id="secret.sql",
        gate=("identified",),
        then=r"[ \t]",
        pattern=r"(?i:identified)[ \t]{1,2}(?:(?i:with)[ \t]{1,2}\S{1,40}[ \t]{1,2})?"
        rf"(?i:by|as)[ \t]{{1,2}}(?i:password[ \t]{{1,2}})?(?:{QUOTE})(?P<value>"
        rf"[^\"'`\\\n]{{3,256}})",
        validator=sql,
        examples=("CREATE USER ada IDENTIFIED BY '«letmein»'",),
        counter_examples=("identified by 'name'", "IDENTIFIED BY '<password>'"),
    ),
    Rule(
        id="secret.declared",
        type="SECRET",
        gate=(
            *("env ", "arg ", "setenv ", "setx ", "set -gx ", "set -x "),
            *("config set ", "secret set "),
        ),
        lead="[^0-9ac-eg-mo-qsu-z]",
        then=r" {0,2}[\"'\\]{0,8}[a-z][a-z0-9_.\-:/]{0,60}"
        r"(?:password|passwd|token|secret|key)",
        pattern=r"(?<![^\s\"'`;(|&])(?:ENV|ARG|setenv|setx|set -gx|set -x|(?:config"
        r"|secret) set) {1,3}[\"']?[A-Za-z][A-Za-z0-9_.\-:/]{0,60}?"
        r"(?P<name>(?i:password|passwd|token|secret|key))"
        rf"[\"']?[ \t]{{1,4}}{VALUE}",
        validator=token,
        priority=18,
        examples=(
            "ENV API_KEY «a8f5f167f44f4964»",
            "config set db.password «bear-77-q1»",
        ),
        counter_examples=("set the password now", "ENV API_KEY $KEY"),
    ),
    Rule(
        id="secret.named",
        type="SECRET",
        gate=words("password passwd _pass token secret _key -key apikey"),
        then=r"[ \t\n\r\\\"'`,nrt]{1,96}value",
        pattern=r"(?i:password|passwd|_pass|token|secret|[_\-]key|apikey)"
        rf"(?=[ \t\n\r\\\"'`,nrt]{{1,32}}(?i:value))(?:{QUOTE})?,?"
        r"(?:[ \t\n\r]|\\{1,7}[nrt]){1,24}"
        rf"(?:{QUOTE})?(?i:value)(?:{QUOTE})?[ \t]{{0,4}}[:=][ \t]{{0,4}}{VALUE}",
        validator=password,
        priority=19,
        examples=(
            "- name: DB_PASSWORD\n  value: «hunter2»\n",
            '{"name": "API_TOKEN", "value": "«a8f5f167f44f»"}',
        ),
        counter_examples=("- name: DB_PASSWORD\n  valueFrom: x1y2z3",),
    ),
    Rule(
        id="secret.told",
        type="SECRET",
        gate=("use ", "using ", "enter ", "paste "),
        lead=r"[^0-9ac-eg-mo-qsu-z_]",
        then=r"[\"'`\\]{0,8}(?:[a-z+/=_.:\-]{4,15}[0-9]"
        r"|[a-z+/=_.:\-]{0,3}[0-9][a-z0-9+/=_.:\-]{4})",
        pattern=rf"(?<![A-Za-z])(?i:use|using|enter|paste) (?:{QUOTE})?"
        r"(?P<value>(?=[A-Za-z+/=_.:\-]{0,15}[0-9])[A-Za-z0-9+/=_.:\-]{8,256})"
        rf"(?:{QUOTE})? (?:as|for) (?i:the|your|my|our|an?)"
        r" [\w\- ]{0,32}?(?i:password|passphrase|secret|token|key|credentials?)(?!"
        r"[a-z])",
        validator=told,
        priority=17,
        examples=("For now use «q7Zt0Kx3Vb9Lm2» as the staging API key.",),
        counter_examples=("use base64-encoding as the key", "use sha256 for the token"),
    ),
)

"""Rules for values that somebody gave a name: passwords, tokens, secrets and keys."""

from refold.redaction.checks.secrets import (
    KEY_OWNERS,
    NO_KEY_OF,
    aws_secret,
    chinese_password,
    env_key,
    key,
    password,
    password_of_key,
    token,
    token_of_key,
)
from refold.redaction.rules.rule import QUOTE, Rule

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
        group="value",
        validator=aws_secret,
        priority=80,
        examples=(
            "aws_secret_access_key = «q7Zt0Kx3Vb9Lm2Np5Rs8/d1Yf4Hj6Cg+aUeIoQwE»",
        ),
        counter_examples=("secret_access_key = " + "a" * 40,),
    ),
    Rule(
        id="secret.password",
        type="SECRET",
        gate=("pass", "pwd", "pw"),
        then=rf"(?:wor[dt]|wd|phrase|code)?{THEN}",
        pattern=rf"(?:{LOGIN_WORDS})[0-9]?{IS}{VALUE}",
        group="value",
        validator=password,
        priority=20,
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
    Rule(
        id="secret.token",
        type="SECRET",
        gate=("token", "secret", "credential"),
        then=rf"s?{THEN}",
        pattern=rf"(?i:token|secret|credentials?)[0-9]?{IS}{VALUE}",
        group="value",
        validator=token,
        priority=20,
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
    Rule(
        id="secret.key",
        type="SECRET",
        gate=("key",),
        lead=r"[a-z\-_ .]",
        then=rf"(?:_base)?(?:_id)?{THEN}",
        pattern=rf"(?i:key)(?:_base)?(?:_id(?=.{{1,6}}AKIA))?[0-9]?{IS}{VALUE}",
        group="value",
        validator=key,
        priority=20,
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
        group="value",
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
        group="value",
        validator=env_key,
        priority=18,
        examples=("REDIS_AUTH='«q7Zt0Kx3Vb9Lm2Np5Rs8»'",),
        counter_examples=("auth: required", "auth = HTTPBasicAuth(user, pw)"),
    ),
    Rule(
        id="secret.auth.key",
        type="SECRET",
        at="leaf",
        gate=("_key", "_pat", "auth"),
        score=0.45,
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
    Rule(
        id="secret.chinese",
        type="SECRET",
        gate=("密码", "口令", "密钥", "秘钥", "令牌", "密碼", "暗号"),
        then=r"(?:[ \t:=\"'\\*_`]|是|为|：|＝|“|”|「)(?:[!-~ \t]|是|为|：|＝|“|”|「)",
        pattern=r"(?:密码|口令|密钥|秘钥|令牌|密碼|暗号)"
        r"(?:(?:\*{1,2}|_{1,2})(?=[ \t]?[：:=＝是为]))?"
        r"(?:[是为:：=＝ \t]|\\{0,7}[\"'“”「`]|(?<=[:：])\*\*[ \t]?){1,8}"
        r"(?P<value>[!-~](?:(?![\"'`\\<>,;])[!-~]|[,;](?=[!-~])){2,255}(?<![.,;:]))",
        group="value",
        validator=chinese_password,
        priority=20,
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
    Rule(
        id="secret.password.key",
        type="SECRET",
        at="leaf",
        gate=("pass", "pwd", "pw", "密码", "口令"),
        score=0.45,
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
    Rule(
        id="secret.token.key",
        type="SECRET",
        at="leaf",
        gate=("token", "secret", "credential", "key", "authorization", "密钥", "令牌"),
        score=0.45,
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

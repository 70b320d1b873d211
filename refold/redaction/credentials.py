"""Rules for what opens a door: keys, tokens and passwords."""

from refold.redaction.rule import Rule
from refold.redaction.secret import (
    aws_secret,
    basic,
    bearer,
    chinese_password,
    jwt,
    password,
    password_of_key,
    token,
    token_of_key,
    url_password,
)

# A word may start after an escape of JSON, as in ``\neyJ``.
WORD = r"(?:(?<![A-Za-z0-9_\-])|(?<=\\[nrtbf]))"

_QUOTE = r"\\{0,7}[\"'`]"
_IS = (
    rf"(?:{_QUOTE})?\]?"
    r"(?:[ \t]?:[ \t]?[A-Za-z_][\w.|\[\] ]{0,40}?(?=[ \t]?=))?"
    r"(?:[ \t]{0,4}(?:=>|:=|={1,3}|[:：＝])[ \t]{0,4}"
    r"|[ \t](?:is|was)[ \t]{1,2}|是[:：]?|为[:：]?|[ \t]{1,2}(?=[\"'])"
    r"|>(?=[^<>\s]{4,256}</))"
)
_PLAIN = r"[^\s\"'`<>()\[\]{}|\\.,;:&=\u3000-\u303f\u4e00-\u9fff\uff00-\uff65]"
_JOIN = r"(?:[.:=]|[,;&](?![\w.\-]{1,30}[=:]))"
_VALUE = (
    r"(?:[bBrRuUfF]{1,2}(?=[\"']))?(?:(?P<escaped>\\{1,7}[\"'])|(?P<quote>[\"'`]))?"
    r"(?P<value>(?(escaped)[^\"'\\\n]{3,1024}"
    r"|(?(quote)(?:(?!(?P=quote))[^\\\n]|\\[^\n]){3,1024}"
    rf"|{_PLAIN}{{1,1024}}+(?:{_JOIN}{{1,2}}{_PLAIN}{{1,1024}}+){{0,16}}={{0,2}})))"
)
_LOGIN_WORDS = (
    r"(?i:pass(?:word|wd|phrase|code)|pwd)"
    r"|(?<=[_\-])(?i:pass)|(?<=[\"'])pass(?=[\"'])"
)
_KEY_OF = (
    r"(?i:api|app|access|secret|private|auth|encryption|signing|account|license|client"
    r"|consumer|master|shared|session|service|storage|subscription)[\-_ ]?"
)
_NOT_A_SECRET = "".join(
    rf"(?<!{word})(?<!{word}[\-_ ])"
    for word in ("next", "page", "sync", "eos", "bos", "pad", "unk", "sep", "mask")
)
_FLAG = r"(?<![^\s\"'`(=\[])--(?:[a-z0-9]{1,15}[\-_]){0,3}"

CREDENTIALS = (
    Rule(
        id="private-key",
        type="PRIVATE_KEY",
        gate=("-----begin",),
        pattern=r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
        r"(?=(?:[\s\"'+,;|>]|\\{1,7}[nrt\"]|\\){0,40}"
        r"(?:(?:Proc-Type|DEK-Info|Version|Comment)[^\n\\]{0,120}(?:\s|\\{1,7}[nr]){1,8}){0,4}"
        r"[A-Za-z0-9+/=]{8})"
        r"(?:(?:[^\-]|-(?!----(?:BEGIN|END))){0,32768}+-----END[A-Z0-9 ]{0,40}-----"
        r"|(?:(?:[\s\"'+,;|>]|\\{1,7}[nrt\"]|\\){0,40}+"
        r"(?:(?:Proc-Type|DEK-Info|Version|Comment)[^\n\\]{0,120}+"
        r"|[A-Za-z0-9+/=]{8,8192}+)){0,1024}+)",
        priority=100,
        examples=(
            "key:\n«-----BEGIN RSA PRIVATE KEY-----\nMIIEow3fTq9\n"
            "-----END RSA PRIVATE KEY-----»\n",
            r'"«-----BEGIN PRIVATE KEY-----\nMIIEow3fTq\n-----END PRIVATE KEY-----»\n"',
            "«-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjE»",
            "«-----BEGIN RSA PRIVATE KEY-----\nMIIEow3fTq9wZx81\nq9wZx81MIIEow3f»\n"
            "$ make test\nbuild ok",
        ),
        counter_examples=(
            "-----BEGIN PUBLIC KEY-----\nMIIEow3fTq9\n-----END PUBLIC KEY-----",
            'if "-----BEGIN RSA PRIVATE KEY-----" in text: return True',
        ),
    ),
    Rule(
        id="jwt",
        type="JWT",
        gate=("eyj",),
        pattern=rf"{WORD}eyJ[A-Za-z0-9_\-]{{10,2048}}+\.[A-Za-z0-9_\-]{{4,8192}}+"
        r"(?:\.[A-Za-z0-9_\-]{0,8192}+){0,3}",
        validator=jwt,
        priority=90,
        examples=(
            "token «eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI3In0.Zk3fTq9-wB_7xQ»",
            r"a\n«eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI3In0»",
        ),
        counter_examples=("eyJub3QiOiJhIGhlYWRlciJ9.eyJzdWIiOiI3In0.Zk3fTq9",),
    ),
    Rule(
        id="key.aws-secret",
        type="API_KEY",
        gate=("secret",),
        pattern=r"(?i:secret[_\-. ]?(?:access[_\-. ]?)?key)\\{0,7}[\"']?"
        r"[ \t]{0,4}(?:=>|[:=,])[ \t]{0,4}\\{0,7}[\"']?"
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
        id="url",
        type="URL_CREDENTIAL",
        gate=("://", ":\\/\\/"),
        pattern=r":(?:\\?/){2}[^\s/:@?#\"'`<>\\]{0,128}:(?P<value>[^\s/?\"'`<>\\]{1,256})@"
        r"(?=[\w\[$<{%])",
        group="value",
        validator=url_password,
        priority=70,
        examples=(
            "postgres://ada:«hunter2»@db:5432/app",
            "redis://:«p@ss:word»@cache",
            r'"https:\/\/ada:«hunter2»@example.com"',
        ),
        counter_examples=(
            "postgres://ada:$PASSWORD@db/app and postgres://ada:${PASSWORD}@db/app",
            "postgres://ada:<password>@db/app",
            "http://localhost:8080/@scope",
            "redis://:***@cache",
        ),
    ),
    Rule(
        id="auth.bearer",
        type="AUTH_TOKEN",
        gate=("bearer",),
        pattern=r"(?i:bearer)(?:\s|%20|\\{1,7}[nt\"]|[\"':=]){1,4}"
        r"(?P<value>[A-Za-z0-9._~+/\-]{16,4096}+={0,2})",
        group="value",
        validator=bearer,
        priority=30,
        examples=("Authorization: Bearer «f3a9K2lq8Zt0Vb7Np5Rs»",),
        counter_examples=("bearer authentication-is-required", "Bearer $TOKEN"),
    ),
    Rule(
        id="auth.header",
        type="AUTH_TOKEN",
        gate=("authorization",),
        pattern=r"(?i:authorization)(?:\\{0,7}[\"'])?[ \t]{0,2}[:=][ \t]{0,2}"
        r"(?:\\{0,7}[\"'])?(?:(?i:token|api-?key|key)[ \t]{1,2})?"
        r"(?P<value>[A-Za-z0-9._~+/\-]{16,4096}+={0,2})",
        group="value",
        validator=bearer,
        priority=30,
        examples=("Authorization: Token «9944b09199c62bcf9418ad846dd0e4bb»",),
        counter_examples=(
            "authorization: required-by-the-server",
            "Authorization: AWS4-HMAC-SHA256 Signature=x",
        ),
    ),
    Rule(
        id="auth.basic",
        type="AUTH_TOKEN",
        gate=("basic",),
        pattern=r"(?i:basic)(?:\s|%20|\\{1,7}[nt\"]|[\"':=]){1,4}"
        r"(?P<value>[A-Za-z0-9+/]{8,1024}+={0,2})",
        group="value",
        validator=basic,
        priority=30,
        examples=("Authorization: Basic «YWRhOmh1bnRlcjI=»",),
        counter_examples=("Basic understanding of things",),
    ),
    Rule(
        id="secret.password",
        type="SECRET",
        gate=("pass", "pwd"),
        pattern=rf"(?:{_LOGIN_WORDS})[0-9]?{_IS}{_VALUE}",
        group="value",
        validator=password,
        priority=20,
        examples=(
            "DB_PASSWORD=«hunter2»",
            'password: str = "«s3cr,t!»"',
            '{"user": "ada", "password": "«hunter2»"}',
            r'"{\"password\": \"«hunter2»\"}"',
            "the password is «hunter2x».",
            "CREATE USER ada PASSWORD '«hunter2»'",
            "<password>«hunter2»</password> password=«bear77!»",
            "password = b'«hunter2»'",
            "passphrase: '«correct horse battery staple»'",
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
        ),
    ),
    Rule(
        id="secret.token",
        type="SECRET",
        gate=("token", "secret", "credential"),
        pattern=rf"(?i:token|secret|credentials?)[0-9]?{_IS}{_VALUE}",
        group="value",
        validator=token,
        priority=20,
        examples=("CLIENT_SECRET=«a8f5f167f44f4964»", "?token=«abc123def456»&n=1"),
        counter_examples=(
            "MAX_TOKENS=100",
            "token = tokens[i2]",
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
        before=_KEY_OF,
        reach=16,
        pattern=rf"(?i:key)(?:_base)?[0-9]?{_IS}{_VALUE}",
        group="value",
        validator=token,
        priority=20,
        examples=("X-Api-Key: «a8f5f167f44f4964»", "SECRET_KEY = '«x#1b_7!q-0z»'"),
        counter_examples=(
            "api_key = os.getenv('API_KEY_1')",
            "primary_key=a8f5f167f44f4964",
        ),
    ),
    Rule(
        id="secret.flag.password",
        type="SECRET",
        gate=("pass", "pwd"),
        before=_FLAG,
        reach=50,
        pattern=rf"(?i:password|passwd|passphrase|pass|pwd)[ \t]{{1,2}}{_VALUE}",
        group="value",
        validator=password,
        priority=20,
        examples=("mysql --password «hunter2» -u ada",),
        counter_examples=("run --password-file a1b2c3d4", "run --password --verbose2"),
    ),
    Rule(
        id="secret.flag.token",
        type="SECRET",
        gate=("token", "secret", "key"),
        before=_FLAG,
        reach=50,
        pattern=rf"(?i:token|secret|key)[ \t]{{1,2}}{_VALUE}",
        group="value",
        validator=token,
        priority=20,
        examples=("cli --api-key '«a8f5f167f44f»'",),
        counter_examples=("cli --token $TOKEN", "sort --key 2"),
    ),
    Rule(
        id="secret.login",
        type="SECRET",
        gate=("-u ", "--user "),
        pattern=r"(?:-u|--user) {1,2}[\"']?[\w.@\-]{1,64}:(?P<value>[^\s\"':]{4,128})",
        group="value",
        validator=password,
        priority=20,
        examples=("curl -u ada:«hunter2» https://example.com",),
        counter_examples=("docker run -u 1000:100 x", "curl -u ada:$PASSWORD x"),
    ),
    Rule(
        id="secret.chinese",
        type="SECRET",
        gate=("密码", "口令", "密钥", "秘钥", "令牌"),
        pattern=r"(?:密码|口令|密钥|秘钥|令牌)(?:[是为:：=＝ \t]|\\{0,7}[\"'“”「]){1,8}"
        r"(?P<value>[!-~](?:(?![\"'`\\<>,;])[!-~]|[,;](?=[!-~])){2,255}(?<![.,;:]))",
        group="value",
        validator=chinese_password,
        priority=20,
        examples=(
            "登录密码：«hunter2x»，请保密",
            "密码是 «abc,123»",
            "初始密码：«admin»。",
        ),
        counter_examples=("密码不能为空", "密码：$DB_PASSWORD", "密码: string 类型"),
    ),
    Rule(
        id="secret.password.key",
        type="SECRET",
        at="leaf",
        gate=("pass", "pwd", "密码", "口令"),
        context=rf"(?:{_LOGIN_WORDS}|(?<![A-Za-z])(?i:pass))"
        r"(?:[\-_ ]?(?i:hash|digest|confirm(?:ation)?|again|value|plain(?:text)?))?"
        r"|密码|口令",
        pattern=r"[^\n]{4,256}",
        validator=password_of_key,
        priority=20,
        examples=(("password", "«correct horse battery»"), ("登录密码", "«hunter2»")),
        counter_examples=(
            ("password", "Must have eight characters."),
            ("password", "string"),
            ("password_policy", "hunter2"),
        ),
    ),
    Rule(
        id="secret.token.key",
        type="SECRET",
        at="leaf",
        gate=("token", "secret", "credential", "key", "authorization", "密钥", "令牌"),
        context=rf"{_NOT_A_SECRET}(?i:token|secret|credentials?|authorization)"
        rf"|(?:{_KEY_OF})(?i:key)|密钥|秘钥|令牌",
        pattern=r"[^\n]{8,4096}",
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

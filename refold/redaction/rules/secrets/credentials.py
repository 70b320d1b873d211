"""Rules for credentials that carry their own form: keys in PEM, JWT, URLs, hashes."""

from __future__ import annotations

from refold.redaction.checks.secrets import (
    authorization,
    basic,
    bearer,
    cookie,
    docker_auth,
    encoded_key,
    jwt,
    session,
    signature,
    url_password,
    url_token,
)
from refold.redaction.rules.rule import QUOTE, WORD, Rule

_GAP = r"(?:[\s\"'+,;|>]|\\{1,7}[nrt\"]|\\){0,40}"
_FIELD = r"(?:Proc-Type|DEK-Info|Version|Comment)[^\n\\]{0,120}"
# JSON may escape them, and JSON in JSON escapes what escapes them.
_SLASHES = ("://", ":\\/\\/", ":\\\\/\\\\/", ":\\\\\\\\/\\\\\\\\/")

CREDENTIALS = (
    Rule(
        id="private-key",
        type="PRIVATE_KEY",
        gate=("-----begin",),
        then=" [a-z0-9 ]{0,40}private key",
        pattern=r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
        rf"(?={_GAP}(?:{_FIELD}(?:\s|\\{{1,7}}[nr]){{1,8}}){{0,4}}"
        r"[A-Za-z0-9+/=]{8}(?! [a-z]))"
        r"(?:(?:[^\-]|-(?!----(?:BEGIN|END))){0,32768}+-----END[A-Z0-9 ]{0,40}-----"
        rf"|(?:{_GAP}+(?:{_FIELD}+|[A-Za-z0-9+/=]{{8,8192}}+)){{0,1024}}+)",
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
            "-----BEGIN RSA PRIVATE KEY-----\nFAKEDATA and no more",
        ),
    ),
    Rule(
        id="private-key.encoded",
        type="PRIVATE_KEY",
        gate=("ls0tls1crudjt",),
        then=r"[a-z0-9+/\\]{20}",
        pattern=r"(?<![A-Za-z0-9+/])LS0tLS1CRUdJT(?:[A-Za-z0-9+/]|\\{1,7}n){30,16384}={0,2}",
        validator=encoded_key,
        priority=99,
        examples=(
            "tls.key: «LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQpNSUlFb3czZlRxOQo=»",
        ),
        counter_examples=(
            "tls.crt: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSURkekNDQWwr",
        ),
    ),
    Rule(
        id="private-key.putty",
        type="PRIVATE_KEY",
        gate=("private-lines:",),
        then=" ?[0-9]",
        pattern=r"Private-Lines: ?[0-9]{1,3}(?:\r?\n|(?:\\{1,7}r)?\\{1,7}n)"
        r"(?P<value>(?:[A-Za-z0-9+/=]{4,64}(?:\r?\n|(?:\\{1,7}r)?\\{1,7}n)?){1,100})",
        group="value",
        priority=99,
        examples=("Private-Lines: 1\n«AAAAgQCq7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6Cg==»",),
        counter_examples=("Private-Lines: 14 and more",),
    ),
    Rule(
        id="jwt",
        type="JWT",
        gate=("eyj",),
        then=r"[a-z0-9_\-]{10}",
        pattern=rf"{WORD}eyJ[A-Za-z0-9_\-]{{10,2048}}+\.[A-Za-z0-9_\-]{{4,8192}}+"
        r"(?:\.[A-Za-z0-9_\-]{0,8192}+){0,3}",
        validator=jwt,
        priority=90,
        examples=(
            "token «eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI3In0.Zk3fTq9-wB_7xQ»",
            r"a\n«eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI3In0»",
            "?to=%3Ft%3D«eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI3In0»",
        ),
        counter_examples=("eyJub3QiOiJhIGhlYWRlciJ9.eyJzdWIiOiI3In0.Zk3fTq9",),
    ),
    Rule(
        id="url",
        type="URL_CREDENTIAL",
        gate=_SLASHES,
        then=r"[^\s/:@?#\"'`<>\\]{0,40}:[^\s/?\"'`<>\\]",
        pattern=r":(?:\\{0,4}/){2}[^\s/:@?#\"'`<>\\]{0,40}:(?P<value>[^\s/?\"'`<>\\]{1,256})@"
        r"(?=[\w\[$<{%*])",
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
            "https://user:pass@hostname/path",
            "redis://:***@cache",
        ),
    ),
    Rule(
        id="url.token",
        type="URL_CREDENTIAL",
        gate=_SLASHES,
        then=r"[a-z0-9_\-]{16}",
        pattern=r":(?:\\{0,4}/){2}(?P<value>[A-Za-z0-9_\-]{16,128})(?::(?:x-oauth-basic)?)?@"
        r"(?=[\w\[])",
        group="value",
        validator=url_token,
        priority=70,
        examples=(
            "dsn https://«7f3a9c1e5b8d2046ace8137f95bd0462»@o1.ingest.example.io/2",
        ),
        counter_examples=("ssh://continuous-integration@example.com/x",),
    ),
    Rule(
        id="url.signature",
        type="SECRET",
        gate=("sig=", "signature="),
        lead="[^a-z0-9]",
        then=r"[a-z0-9%+/\-_]{20}",
        pattern=r"(?<=[?&;\-])(?i:sig|signature)=(?P<value>[A-Za-z0-9%+/\-_]{32,512}={0,2})",
        group="value",
        validator=signature,
        priority=60,
        examples=(
            "?sv=2022-11-02&sig=«q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6CgTuEaXoIi%3D»&se=2",
            "&X-Amz-Signature=«" + "7f3a9c1e5b8d2046ace8137f95bd0462" * 2 + "»",
        ),
        counter_examples=(
            "?sig=short",
            "f(signature=7f3a9c1e5b8d2046ace8137f95bd0462)",
        ),
    ),
    Rule(
        id="docker.auth",
        type="AUTH_TOKEN",
        gate=("auth", "_auth"),
        then=r"(?:\\|[\"'`]?[ \t]{0,2}[:=])",
        pattern=rf"(?:(?<=[\"'_])|(?<=\b_))auth(?:{QUOTE})?[ \t]{{0,2}}[:=][ \t]{{0,2}}"
        rf"(?:{QUOTE})?(?P<value>[A-Za-z0-9+/]{{8,1024}}={{0,2}})(?![A-Za-z0-9+/=])",
        group="value",
        validator=docker_auth,
        priority=35,
        examples=('{"auths": {"r.io": {"auth": "«YWRhOmh1bnRlcjI=»"}}}',),
        counter_examples=('{"auth": "required"}', "auth=YWRhOmh1bnRlcjI="),
    ),
    Rule(
        id="docker.auth.key",
        type="AUTH_TOKEN",
        at="leaf",
        gate=("auth",),
        score=0.45,
        context=r"(?<![A-Za-z0-9])auth",
        pattern=r"[A-Za-z0-9+/]{8,1024}={0,2}",
        validator=docker_auth,
        priority=35,
        examples=(("auth", "«YWRhOmh1bnRlcjI=»"), ("_auth", "«YWRhOmh1bnRlcjI=»")),
        counter_examples=(("auth", "required"), ("author", "YWRhOmh1bnRlcjI=")),
    ),
    Rule(
        id="hash.password",
        type="PASSWORD_HASH",
        gate=(
            *("$2a$", "$2b$", "$2x$", "$2y$", "$apr1$", "$1$", "$5$", "$6$", "$y$"),
            *("$argon2", "$pbkdf2", "$scrypt$"),
        ),
        then=r"[a-z0-9.\-/$=]{8}",
        pattern=r"(?:\$2[abxy]\$[0-9]{2}\$[A-Za-z0-9./]{53}"
        r"|\$(?:apr1|1)\$[A-Za-z0-9./]{1,8}\$[A-Za-z0-9./]{22}"
        r"|\$[56]\$(?:rounds=[0-9]{1,9}\$)?[A-Za-z0-9./]{1,16}\$[A-Za-z0-9./]{43,86}"
        r"|\$y\$[A-Za-z0-9./]{1,8}\$[A-Za-z0-9./]{1,86}\$[A-Za-z0-9./]{43}"
        r"|\$(?:argon2(?:id?|d)|pbkdf2(?:-sha[0-9]{1,3})?|scrypt)\$[A-Za-z0-9$,=./+\-]{20,400})"
        r"(?![A-Za-z0-9])",
        priority=60,
        examples=(
            "ada:«$2b$12$q7Zt0Kx3Vb9Lm2Np5Rs8WdJ1Yf4Hj6CgTuEaXoIiGkMzPnQvSyBwD»",
            "root:«$6$q7Zt0Kx3$q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6CgTuEaXoIiGkMzPnQvSyBwDc»:19000",
        ),
        counter_examples=("$1$ and $2b$12$short", "s/$6$x/y/"),
    ),
)


_COOKIES = (
    r"[A-Za-z_][\w.\-]{0,64}=[^\s\"'`\\;]{1,4096}+"
    r"(?:;[ \t]?[\w.\-]{1,64}(?:=[^\s\"'`\\;]{0,4096}+)?){0,40}"
)

HEADERS = (
    Rule(
        id="auth.bearer",
        type="AUTH_TOKEN",
        gate=("bearer",),
        then=r"(?:[ \t:=\"'\\]|%20)",
        pattern=r"(?i:bearer)(?:\s|%20|\\{1,7}[nt\"]|[\"':=]){1,4}"
        r"(?P<value>[A-Za-z0-9._~+/\-][A-Za-z0-9._~+/:\-]{11,4096}+={0,2})",
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
        then=r"(?:\\|[\"'`]?[ \t]{0,2}[:=,])",
        pattern=r"(?i:authorization)(?:\\{0,7}[\"'])?[ \t]{0,2}[:=,][ \t]{0,2}"
        r"(?:\\{0,7}[\"'])?(?:(?!(?i:basic|digest|negotiate|aws4))[A-Za-z][\w\-]{1,24}"
        r"(?:[ \t]{1,2}|=)(?:(?i:token|key)[=:] ?)?(?:\\{0,7}[\"'])?)?"
        r"(?P<value>[A-Za-z0-9._~+/\-]{8,4096}+={0,2})",
        group="value",
        validator=authorization,
        priority=30,
        examples=(
            "Authorization: Token «9944b09199c62bcf9418ad846dd0e4bb»",
            "'Authorization': 'SSWS «00q7Zt0Kx3Vb9Lm2Np5Rs»'",
            "-H authorization:«9944b09199c62bcf9418»",
        ),
        counter_examples=(
            "authorization: required-by-the-server",
            "Authorization: AWS4-HMAC-SHA256 Signature=x",
            "authorization = request.headers2",
        ),
    ),
    Rule(
        id="auth.basic",
        type="AUTH_TOKEN",
        gate=("basic",),
        then=r"(?:[ \t:=\"'\\]|%20)",
        pattern=r"(?i:basic)(?:\s|%20|\\{1,7}[nt\"]|[\"':=]){1,4}"
        r"(?P<value>[A-Za-z0-9+/]{8,1024}+={0,2})",
        group="value",
        validator=basic,
        priority=30,
        examples=("Authorization: Basic «YWRhOmh1bnRlcjI=»",),
        counter_examples=("Basic understanding of things",),
    ),
    Rule(
        id="auth.digest",
        type="AUTH_TOKEN",
        gate=("response=",),
        then=r"\\{0,7}[\"']?[0-9a-f]{32}",
        pattern=r"(?i:response)=\\{0,7}[\"']?(?P<value>[0-9a-f]{32})(?![0-9A-Za-z])",
        group="value",
        priority=30,
        examples=('nonce="x", response="«6629fae49393a05397450978507c4ef1»"',),
        counter_examples=("response=ok",),
    ),
    Rule(
        id="cookie",
        type="AUTH_TOKEN",
        gate=("cookie",),
        then=r"(?:\\|[\"'`]?[ \t]{0,2}[:=])",
        pattern=rf"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?i:(?:set-)?cookie)"
        rf"(?:{QUOTE})?[ \t]{{0,2}}[:=]"
        rf"[ \t]{{0,2}}"
        rf"(?:{QUOTE})?(?P<value>{_COOKIES})",
        group="value",
        validator=cookie,
        priority=30,
        examples=(
            "Cookie: «theme=dark; sid=f3a9K2lq8Zt0Vb7Np5Rs»",
            "Set-Cookie: «session=f3a9K2lq8Zt0Vb7Np5Rs; Path=/; HttpOnly»",
            "-H 'cookie: «_ga=GA1.2; auth=q7Zt0Kx3Vb9Lm2Np5Rs8»'",
        ),
        counter_examples=(
            "Cookie: theme=dark; lang=en",
            "cookie = response.cookies[1]",
            "cookie: string",
        ),
    ),
    Rule(
        id="cookie.key",
        type="AUTH_TOKEN",
        at="leaf",
        gate=("cookie",),
        score=0.45,
        context=r"(?<![A-Za-z0-9])(?i:(?:set-)?cookie)",
        pattern=_COOKIES,
        validator=cookie,
        priority=30,
        examples=(("Cookie", "«theme=dark; sid=f3a9K2lq8Zt0Vb7Np5Rs»"),),
        counter_examples=(("Cookie", "theme=dark; lang=en"), ("cookie", "string")),
    ),
    Rule(
        id="session",
        type="AUTH_TOKEN",
        gate=("sessid=", "sessionid=", "_session=", "connect.sid=", "session_token="),
        then=r"[a-z0-9%._~+/\-]{16}",
        pattern=r"(?i:sessid|sessionid|_session|connect\.sid|session_token)="
        r"(?P<value>[A-Za-z0-9%._~+/\-]{16,1024})",
        group="value",
        validator=session,
        priority=29,
        examples=("PHPSESSID=«f3a9k2lq8zt0vb7np5rs1x», x",),
        counter_examples=(
            "JSESSIONID=7",
            "sessionid=7f3a9c1e-5b8d-4046-ace8-137f95bd0462",
        ),
    ),
)

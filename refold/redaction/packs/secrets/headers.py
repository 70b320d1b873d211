"""Rules for what HTTP carries: authorization headers and the cookies of a session."""

from refold.redaction.keys import authorization, basic, bearer, cookie, session
from refold.redaction.packs.parts import QUOTE
from refold.redaction.rule import Rule

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

"""Rules for what carries its own form: keys in PEM, JWT, URLs, hashes, headers."""

from __future__ import annotations

from functools import partial

from refold.redaction.checks.extents import (
    encoded_key,
    key_lines,
    key_lines_before,
)
from refold.redaction.checks.names import words as known
from refold.redaction.checks.secrets import (
    authorization,
    azure_secret,
    basic,
    bearer,
    cookie,
    docker_auth,
    docker_config,
    escaped,
    issued,
    jwt,
    mixed,
    near_vendor,
    session,
    signature,
    url_password,
    url_token,
    varied,
    wif,
)
from refold.redaction.rules.rule import LEAD, QUOTE, WORD, InContext, Rule, words
from refold.redaction.rules.secrets.issuers import LOWER, MIXED

# Up to where a key may go on: lines, with dashes here and there, of no other key.
_BODY = r"(?:[^\-]{0,16384}+(?:-(?!----(?:BEGIN|END))[^\-]{0,160}+){0,128}+){0,2}+"
_GAP = r"(?:[\s\"'+,;|>]|\\{1,7}[nrt\"]|\\){0,40}"
_FIELD = r"(?:Proc-Type|DEK-Info|Version|Comment)[^\n\\]{0,120}"
# JSON may escape them, and JSON in JSON escapes what escapes them.
_SLASHES = ("://", ":\\/\\/", ":\\\\/\\\\/", ":\\\\\\\\/\\\\\\\\/")

_Header = partial(Rule, type="AUTH_TOKEN", priority=30)
_Key = partial(Rule, type="API_KEY", priority=80)

CREDENTIALS = (
    Rule(
        id="private-key",
        type="PRIVATE_KEY",
        gate=("-----begin",),
        then=" [a-z0-9 ]{0,40}private key",
        pattern=r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
        rf"{_BODY}(?:-----END [A-Z0-9 ]{{0,40}}-----)?",
        parts=key_lines,
        priority=100,
    ),
    Rule(
        id="private-key.end",
        type="PRIVATE_KEY",
        gate=("-----end",),
        then=" [a-z0-9 ]{0,40}private key",
        pattern=r"-----END (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----",
        parts=key_lines_before,
        priority=99,
    ),
    Rule(
        id="private-key.body",
        type="PRIVATE_KEY",
        # How keys begin, of RSA, EC and Ed25519, and those of OpenSSH.
        gate=words(
            "b3blbnnzac1rzxktdj ibaakca ibadanbgkqhkig9w0baqefaas mhccaqee "
            "mighageambmgbyqgsm49 mc4caqawbqydk2v mhqcaqee mig2ageambagbyqgsm49"
        ),
        lead=r"[^\-]",
        pattern=r"(?i:b3BlbnNzaC1rZXktdj|IBAAKCA|IBADANBgkqhkiG9w0BAQEFAAS|MHcCAQEE"
        r"|MIGHAgEAMBMGByqGSM49|MC4CAQAwBQYDK2V|MHQCAQEE|MIG2AgEAMBAGByqGSM49)"
        rf"[A-Za-z0-9+/]{{24}}{_BODY}",
        parts=key_lines,
        priority=98,
    ),
    Rule(
        id="private-key.encoded",
        type="PRIVATE_KEY",
        # Base64 of five dashes and BEGIN, wherever in a group of three they begin.
        gate=("ls0tls1crudjt", "ls0tqkvhsu4g", "ls0tlujfr0lo"),
        then=r"[a-z0-9+/\\]{20}",
        pattern=r"LS0t(?:LS1CRUdJT|QkVHSU4g|LUJFR0lO)[A-Za-z0-9+/]{20}" + _BODY,
        parts=encoded_key,
        priority=99,
    ),
    Rule(
        id="private-key.putty",
        type="PRIVATE_KEY",
        gate=("private-lines:",),
        then=" ?[0-9]",
        pattern=r"Private-Lines: ?[0-9]{1,3}(?:\r?\n|(?:\\{1,7}r)?\\{1,7}n)"
        r"(?P<value>(?:[A-Za-z0-9+/=]{4,64}(?:\r?\n|(?:\\{1,7}r)?\\{1,7}n)?){1,100})",
        priority=99,
    ),
    Rule(
        id="jwt",
        type="JWT",
        gate=("eyj",),
        then=r"[a-z0-9_\-]{10}",
        pattern=r"eyJ[A-Za-z0-9_\-]{10,2048}+\.[A-Za-z0-9_\-]{4,8192}+"
        r"(?:\.[A-Za-z0-9_\-]{0,8192}+){0,3}",
        validator=jwt,
        priority=90,
    ),
    Rule(
        id="url",
        type="URL_CREDENTIAL",
        gate=_SLASHES,
        then=r"[^\s/:@?#\"'`<>\\]{0,40}:[^\s/?\"'`<>\\]",
        pattern=r":(?:\\{0,4}/){2}[^\s/:@?#\"'`<>\\]{0,40}:(?P<value>[^\s/?\"'`<>\\]{1,256})@"
        r"(?=[\w\[$<{%*])",
        validator=url_password,
        priority=70,
    ),
    Rule(
        id="url.token",
        type="URL_CREDENTIAL",
        gate=_SLASHES,
        then=r"[a-z0-9_\-]{16}",
        pattern=r":(?:\\{0,4}/){2}(?P<value>[A-Za-z0-9_\-]{16,128})(?::(?:x-oauth-basic)?)?@"
        r"(?=[\w\[])",
        validator=url_token,
        priority=70,
    ),
    Rule(
        id="url.signature",
        type="SECRET",
        gate=("sig=", "signature="),
        lead="[^a-z0-9]",
        then=r"[a-z0-9%+/\-_]{20}",
        pattern=r"(?<=[?&;\-])(?i:sig|signature)=(?P<value>[A-Za-z0-9%+/\-_]{32,512}={0,2})",
        validator=signature,
        priority=60,
        examples=(
            "?sv=2022-11-02&sig=«q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6CgTuEaXoIi%3D»&se=2",
            "&X-Amz-Signature=«" + "7f3a9c1e5b8d2046ace8137f95bd0462" * 2 + "»",
        ),
    ),
    Rule(
        id="docker.config",
        type="AUTH_TOKEN",
        # Base64 of {"auths":, however it is set, and what Kubernetes keeps it under.
        gate=("eyjhdxrocyi6", "ewoj", "ewogi", "dockerconfigjson", "dockercfg"),
        then=r"[a-z0-9+/\\\"':= \t]{8}",
        pattern=r"(?i:(?:dockerconfigjson|dockercfg)\\{0,7}[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\{0,7}[\"']?)?"
        r"(?P<value>(?:eyJhdXRocyI6|ewoJ|ewogI|e[A-Za-z0-9+/]{3})[A-Za-z0-9+/\n]{20,65536}={0,2})",
        validator=docker_config,
        priority=36,
    ),
    Rule(
        id="key.wif",
        type="PRIVATE_KEY",
        gate=words("5h 5j 5k kw kx ky kz l1 l2 l3 l4 l5"),
        lead=LEAD,
        then="[1-9a-z]{20}",
        pattern=rf"{WORD}(?:5[HJK][1-9A-HJ-NP-Za-km-z]{{49}}|(?:K[w-z]|L[1-5])[1-9A-HJ-NP-Za-km-z]{{50}})(?![A-Za-z0-9])",
        validator=wif,
        priority=80,
    ),
    Rule(
        id="docker.auth",
        type="AUTH_TOKEN",
        gate=("auth", "_auth"),
        then=r"(?:\\|[\"'`]?[ \t]{0,2}[:=])",
        pattern=rf"(?:(?<=[\"'_])|(?<=\b_))auth(?:{QUOTE})?[ \t]{{0,2}}[:=][ \t]{{0,2}}"
        rf"(?:{QUOTE})?(?P<value>[A-Za-z0-9+/]{{8,1024}}={{0,2}})(?![A-Za-z0-9+/=])",
        validator=docker_auth,
        priority=35,
    ),
    InContext(
        id="docker.auth.key",
        type="AUTH_TOKEN",
        leaf=True,
        gate=("auth",),
        context=r"(?<![A-Za-z0-9])auth",
        pattern=r"[A-Za-z0-9+/]{8,1024}={0,2}",
        validator=docker_auth,
        priority=35,
    ),
    Rule(
        id="hash.password",
        type="PASSWORD_HASH",
        gate=words(
            "$2a$ $2b$ $2x$ $2y$ $apr1$ $1$ $5$ $6$ $y$ $argon2 $pbkdf2 $scrypt$"
        ),
        then=r"[a-z0-9.\-/$=]{8}",
        pattern=r"(?:\$2[abxy]\$[0-9]{2}\$[A-Za-z0-9./]{53}"
        r"|\$(?:apr1|1)\$[A-Za-z0-9./]{1,8}\$[A-Za-z0-9./]{22}"
        r"|\$[56]\$(?:rounds=[0-9]{1,9}\$)?[A-Za-z0-9./]{1,16}\$[A-Za-z0-9./]{43,86}"
        r"|\$y\$[A-Za-z0-9./]{1,8}\$[A-Za-z0-9./]{1,86}\$[A-Za-z0-9./]{43}"
        r"|\$(?:argon2(?:id?|d)|pbkdf2(?:-sha[0-9]{1,3})?|scrypt)\$[A-Za-z0-9$,=./+\-]{20,400})"
        r"(?![A-Za-z0-9])",
        priority=60,
    ),
)


_COOKIES = (
    r"[A-Za-z_][\w.\-]{0,64}=[^\s\"'`\\;]{1,4096}+"
    r"(?:;[ \t]?[\w.\-]{1,64}(?:=[^\s\"'`\\;]{0,4096}+)?){0,40}"
)

HEADERS = (
    _Header(
        id="auth.bearer",
        gate=("bearer",),
        then=r"(?:[ \t:=\"'\\]|%20)",
        pattern=r"(?i:bearer)(?:\s|%20|\\{1,7}[nt\"]|[\"':=]){1,4}"
        r"(?P<value>[A-Za-z0-9._~+/\-][A-Za-z0-9._~+/:\-]{11,4096}+={0,2})",
        validator=bearer,
    ),
    _Header(
        id="auth.header",
        gate=("authorization",),
        then=r"(?:\\|[\"'`]?[ \t]{0,2}[:=,])",
        pattern=r"(?i:authorization)(?:\\{0,7}[\"'])?[ \t]{0,2}[:=,][ \t]{0,2}"
        r"(?:\\{0,7}[\"'])?(?:(?!(?i:basic|digest|negotiate|aws4))[A-Za-z][\w\-]{1,24}"
        r"(?:[ \t]{1,2}|=)(?:(?i:token|key)[=:] ?)?(?:\\{0,7}[\"'])?)?"
        r"(?P<value>[A-Za-z0-9._~+/\-]{8,4096}+={0,2})",
        validator=authorization,
    ),
    _Header(
        id="auth.basic",
        gate=("basic",),
        then=r"(?:[ \t:=\"'\\]|%20)",
        pattern=r"(?i:basic)(?:\s|%20|\\{1,7}[nt\"]|[\"':=]){1,4}"
        r"(?P<value>[A-Za-z0-9+/]{8,1024}+={0,2})",
        validator=basic,
    ),
    _Header(
        id="auth.digest",
        gate=("response=",),
        then=r"\\{0,7}[\"']?[0-9a-f]{32}",
        pattern=r"(?i:response)=\\{0,7}[\"']?(?P<value>[0-9a-f]{32})(?![0-9A-Za-z])",
    ),
    _Header(
        id="cookie",
        gate=("cookie",),
        then=r"(?:\\|[\"'`]?[ \t]{0,2}[:=])",
        pattern=rf"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?i:(?:set-)?cookie)"
        rf"(?:{QUOTE})?[ \t]{{0,2}}[:=]"
        rf"[ \t]{{0,2}}"
        rf"(?:{QUOTE})?(?P<value>{_COOKIES})",
        validator=cookie,
    ),
    InContext(
        id="cookie.key",
        type="AUTH_TOKEN",
        leaf=True,
        gate=("cookie",),
        context=r"(?<![A-Za-z0-9])(?i:(?:set-)?cookie)",
        pattern=_COOKIES,
        validator=cookie,
        priority=30,
    ),
    Rule(
        id="session",
        type="AUTH_TOKEN",
        gate=("sessid=", "sessionid=", "_session=", "connect.sid=", "session_token="),
        then=r"[a-z0-9%._~+/\-]{16}",
        pattern=r"(?i:sessid|sessionid|_session|connect\.sid|session_token)="
        r"(?P<value>[A-Za-z0-9%._~+/\-]{16,1024})",
        validator=session,
        priority=29,
    ),
)


FORMS = (
    _Key(
        id="key.slack.webhook",
        gate=("hooks.slack.com/",),
        then="(?:services|workflows|triggers)",
        pattern=r"hooks\.slack\.com/(?:services|workflows|triggers)/"
        r"(?P<value>[A-Za-z0-9+/]{20,128})",
        validator=varied,
    ),
    _Key(
        id="key.webhook",
        gate=words(
            "/api/webhooks/ webhook.office.com/webhookb2/ "
            "oapi.dingtalk.com/robot/send qyapi.weixin.qq.com/cgi-bin/webhook "
            "open-apis/bot/v2/hook/ hooks.zapier.com/"
        ),
        then=r"[/0-9a-z?]",
        pattern=r"(?:/api/webhooks/[0-9]{15,22}/(?P<discord>[A-Za-z0-9_\-]{50,80})"
        r"|webhook\.office\.com/webhookb2/(?P<teams>[A-Za-z0-9@/\-]{60,240})"
        r"|dingtalk\.com/robot/send\?access_token=(?P<ding>[0-9a-f]{40,80})"
        r"|weixin\.qq\.com/cgi-bin/webhook/send\?key=(?P<wechat>[0-9a-f\-]{30,40})"
        r"|/hook/(?P<lark>[0-9a-f\-]{30,40})|zapier\.com/hooks/catch/(?P<zap>[0-9a-z/]{10,40}))",
        validator=issued,
        examples=(
            "https://discord.com«/api/webhooks/123456789012345678/" + MIXED[:60] + "»",
        ),
    ),
    _Key(
        id="key.telegram",
        gate=(":aa",),
        before="(?<![0-9A-Za-z])(?:bot)?[0-9]{8,12}",
        reach=15,
        lead="[0-9]",
        then=r"[a-z0-9_\-]{20}",
        pattern=r":AA[A-Za-z0-9_\-]{32,34}(?![A-Za-z0-9_\-])",
        validator=mixed,
        examples=(
            "«123456789:AA" + MIXED[:33] + "»",
            "/«bot123456789:AA" + MIXED[:33] + "»/",
        ),
        counter_examples=("12:AA" + MIXED[:33],),
    ),
    _Key(
        id="key.twilio",
        gate=tuple(f"sk{digit}" for digit in "0123456789abcdef"),
        lead=LEAD,
        then="[0-9a-f]{20}",
        pattern=rf"{WORD}SK[0-9a-f]{{32}}(?![A-Za-z0-9])",
        validator=varied,
        examples=(f"«SK{LOWER[:32]}»", f"?u=%3Fs%3D«SK{LOWER[:32]}»"),
        counter_examples=(f"TASK{LOWER[:32]}",),
    ),
    _Key(
        id="key.mailchimp",
        gate=("-us",),
        before="(?<![0-9A-Za-z])[0-9a-f]{32}",
        reach=32,
        lead="[0-9a-f]",
        then="[0-9]{1,2}",
        pattern="-us[0-9]{1,2}(?![0-9A-Za-z])",
        validator=varied,
        examples=(f"«{LOWER[:32]}-us12»",),
        counter_examples=(f"{LOWER[:31]}-us12", f"{LOWER[:32]}-usage"),
    ),
    _Key(
        id="key.azure.storage",
        gate=("accountkey=", "sharedaccesskey="),
        then="[a-z0-9+/]{20}",
        pattern=r"(?i:AccountKey|SharedAccessKey)=(?P<value>[A-Za-z0-9+/]{40,100}={0,2})",
        validator=varied,
        examples=(f"AccountName=a;AccountKey=«{MIXED[:86]}==»;EndpointSuffix=x",),
    ),
    _Key(
        id="key.azure.client",
        gate=("q~",),
        before=r"(?<![A-Za-z0-9_~.\-])[A-Za-z0-9_~.]{3}[0-9]",
        reach=4,
        lead="[0-9]",
        then=r"[a-z0-9_~.\-]{20}",
        pattern=r"Q~[A-Za-z0-9_~.\-]{31,34}(?![A-Za-z0-9_~.\-])",
        validator=azure_secret,
        examples=(f"secret «abc8Q~{MIXED[:34]}»",),
        counter_examples=(f"abcdQ~{MIXED[:34]}",),
    ),
    _Key(
        id="key.azure.generated",
        gate=words("jqqj99 azcs azse azfu azdo acdb +asta aiot +acr"),
        pattern=r"(?:JQQJ99[A-Za-z0-9]{60,90}|AzSe[A-Za-z0-9+/]{6,10}|AzFu[A-Za-z0-9+/_\-]{6,10}={0,2})"
        r"(?![A-Za-z0-9+/])",
        then="[a-z0-9+/=]{6}",
        before=r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/_\-]{6,64}",
        reach=64,
        validator=mixed,
        examples=(f"«{MIXED[:30]}JQQJ99{MIXED[:66]}»",),
        counter_examples=(f"JQQJ99{MIXED[:20]}",),
    ),
    _Key(
        id="key.terraform",
        gate=(".atlasv1.",),
        before="(?<![A-Za-z0-9])[A-Za-z0-9]{14}",
        reach=14,
        lead="[a-z0-9]",
        then=r"[a-z0-9_=\-]{20}",
        pattern=r"\.atlasv1\.[A-Za-z0-9_=\-]{50,80}",
        validator=issued,
        examples=(f"«{MIXED[:14]}.atlasv1.{MIXED[:67]}»",),
        counter_examples=(f"x.atlasv1.{MIXED[:67]}",),
    ),
    _Key(
        id="key.twitter",
        gate=("aaaaaaaaaaaaaaaaaaaaa",),
        lead=LEAD,
        # Of a run of one letter only the end: one of a megabyte is soon looked at.
        then="a{0,4}[b-z0-9%][a-z0-9%]{19}",
        pattern=rf"{WORD}A{{21}}[Aa]{{0,4}}[B-Zb-z0-9%][A-Za-z0-9%]{{39,139}}"
        r"(?![A-Za-z0-9%])",
        validator=escaped,
        examples=("«" + "A" * 22 + MIXED[:44] + "%3D" + MIXED[:40] + "»",),
        counter_examples=("A" * 22 + MIXED[:80],),
    ),
    _Key(
        id="key.1password",
        gate=("a3-",),
        lead=LEAD,
        then="[a-z0-9]{6}-",
        pattern=rf"{WORD}A3-[A-Z0-9]{{6}}-(?:[A-Z0-9]{{11}}|[A-Z0-9]{{6}}-[A-Z0-9]{{5}})"
        r"(?:-[A-Z0-9]{5}){3}(?![A-Za-z0-9\-])",
        validator=varied,
    ),
    _Key(
        id="key.maxmind",
        gate=("_mmk",),
        before="(?<![A-Za-z0-9])[A-Za-z0-9]{6}_[A-Za-z0-9]{29}",
        reach=36,
        lead="[a-z0-9]",
        pattern="_mmk(?![A-Za-z0-9])",
        validator=mixed,
        examples=(f"«{MIXED[:6]}_{MIXED[:29]}_mmk»",),
    ),
    _Key(
        id="key.grafana.old",
        gate=("eyjrijoi",),
        lead=LEAD,
        then="[a-z0-9]{20}",
        pattern=rf"{WORD}eyJrIjoi[A-Za-z0-9]{{60,400}}={{0,3}}",
        validator=mixed,
        examples=(f"«eyJrIjoi{MIXED[:90]}»",),
    ),
    _Key(
        id="key.discord",
        gate=("discord", "bot ", "login(", "run("),
        then=r"[\w \-]{0,16}(?:[:=(\"'\\ ]|[mno][a-z0-9])",
        pattern=r"(?i:discord|bot |login\(|run\()[\w \-]{0,24}(?:[ \t:=(,\"'`]"
        r"|\\{1,7}[\"']){0,6}"
        r"(?P<value>[MNO][A-Za-z0-9_\-]{23,27}\.[A-Za-z0-9_\-]{6}\.[A-Za-z0-9_\-]{27,40})"
        r"(?![A-Za-z0-9_\-])",
        validator=mixed,
        examples=(f'client.login("«M{MIXED[:23]}.{MIXED[:6]}.{MIXED[:38]}»")',),
    ),
    Rule(
        id="key.cloudinary",
        type="URL_CREDENTIAL",
        gate=("cloudinary://",),
        then="[0-9]{6}",
        pattern=r"cloudinary://[0-9]{6,20}:(?P<value>[A-Za-z0-9_\-]{20,40})@",
        priority=81,
        examples=(f"cloudinary://123456789012345:«{MIXED[:27]}»@demo",),
    ),
    Rule(
        id="key.npm.auth",
        type="API_KEY",
        gate=("_auth=",),
        then=r"[a-z0-9+/]{8}",
        pattern=r"(?<![A-Za-z0-9])_auth=(?P<value>[A-Za-z0-9+/]{8,512}={0,2})",
        validator=varied,
        priority=60,
        examples=(f"//r.example.com/:_auth=«{MIXED[:24]}==»",),
    ),
)


# Vendors whose keys have no mark of their own.
_VENDORS = known("vendors")

NAMED = (
    Rule(
        id="key.vendor.near",
        type="API_KEY",
        gate=_VENDORS,
        then=r"[\w.\- \t]{0,28}[=:|>,(\"'`\\]",
        pattern=rf"(?i:{'|'.join(_VENDORS)})[\w.\- ]{{0,24}}(?:{QUOTE})?[ \t]{{0,4}}"
        rf"(?:=>|:=|:{{1,3}}=?|={{1,3}}|\|{{1,2}}|,|\(|>)(?:[ \t=]|{QUOTE}){{0,6}}"
        r"(?P<value>[A-Za-z0-9_=+/\-.]{12,160})(?![A-Za-z0-9_+/])",
        validator=near_vendor,
        priority=25,
    ),
)

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
        counter_examples=("secret_access_key = " + "a" * 40,),
    ),
    _Secret(
        id="secret.password",
        gate=("pass", "pwd", "pw"),
        then=rf"(?:wor[dt]|wd|phrase|code)?{THEN}",
        pattern=rf"(?:{LOGIN_WORDS})[0-9]?{IS}{VALUE}",
        validator=password,
    ),
    _Secret(
        id="secret.token",
        gate=("token", "secret", "credential"),
        then=rf"s?{THEN}",
        pattern=rf"(?i:token|secret|credentials?)[0-9]?{IS}{VALUE}",
        validator=token,
    ),
    _Secret(
        id="secret.key",
        gate=("key",),
        lead=r"[a-z\-_ .]",
        then=rf"(?:_base)?(?:_id)?{THEN}",
        pattern=rf"(?i:key)(?:_base)?(?:_id(?=.{{1,6}}AKIA))?[0-9]?{IS}{VALUE}",
        validator=key,
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
    ),
    _Secret(
        id="secret.mysql",
        gate=("mysql", "mariadb"),
        then=r"(?:dump|admin|import|show|check)?[ \t\"']",
        pattern=r"(?:mysql|mariadb)[a-z]{0,8}[ \t][^\n|;&]{0,100}?(?<![^\s\"'])-p"
        r"(?P<value>[^\s\"'`\\\-][^\s\"'`\\]{2,64})",
        validator=typed,
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
    ),
    _Secret(
        id="secret.netrc",
        gate=("login",),
        then=r"(?:[ \t\n\r]|\\[nrt])",
        pattern=rf"(?<![A-Za-z])login{_WHITE}[^\s\\]{{1,64}}{_WHITE}password{_WHITE}"
        r"(?P<value>(?!\[)[^\s\"'\\]{3,256})",
        validator=login,
    ),
    _Secret(
        id="secret.pgpass",
        gate=(":5432:", ":3306:", ":6432:"),
        then=r"[\w*\-]{1,32}",
        pattern=r":(?:5432|3306|6432):[\w*\-]{1,64}:[\w.@\-]{1,64}:(?P<value>[^\s:\"'\\]{3,128})",
        validator=login,
    ),
    _Secret(
        id="secret.sql",
        gate=("identified",),
        then=r"[ \t]",
        pattern=r"(?i:identified)[ \t]{1,2}(?:(?i:with)[ \t]{1,2}\S{1,40}[ \t]{1,2})?"
        rf"(?i:by|as)[ \t]{{1,2}}(?i:password[ \t]{{1,2}})?(?:{QUOTE})(?P<value>"
        rf"[^\"'`\\\n]{{3,256}})",
        validator=sql,
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
    ),
)

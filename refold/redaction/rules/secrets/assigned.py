"""Rules for values that somebody named: each joins names, a relation and a judge."""

from functools import partial

from refold.redaction.checks.extents import cells
from refold.redaction.checks.names import (
    CHINESE,
    JOINED,
    KEY_OF,
    LOGIN_WORDS,
    NO_KEY_OF,
    PASSWORDS,
    TOKENS,
)
from refold.redaction.checks.secrets import (
    aws_secret,
    beside,
    chinese_password,
    env_key,
    key,
    mnemonic,
    named,
    password,
    password_of_key,
    said,
    token,
    token_of_key,
    told,
)
from refold.redaction.rules.rule import QUOTE, InContext, Rule, words
from refold.redaction.rules.secrets.relations import (
    IS,
    THEN,
    VALUE,
    WHITE,
)

_NOT_A_SECRET = "".join(
    rf"(?<!{word})(?<!{word}[\-_ ])"
    for word in ("next", "page", "sync", "eos", "bos", "pad", "unk", "sep", "mask")
)
_NO_KEY = "".join(rf"(?<!{word.upper()})" for word in NO_KEY_OF)
_CHOSEN = r"pass(?:wor[dt]|wrd|wd|phrase|code)|pwd"
_MADE = "token|secret(?:string)?|credentials?|apikey"
_HAN = "|".join(CHINESE)
_ANY_NAME = words("pass pwd pw token secret credential key") + PASSWORDS.gate
_MANY = rf"(?i:{_CHOSEN}|{_MADE}|{PASSWORDS.pattern}|{TOKENS.pattern})"
_ONE_WORD = tuple(gate for gate in PASSWORDS.gate if " " not in gate)
_JOINED_THEN = r"[a-z0-9_\-.]{0,24}"
# What says in a pair that the other half is the value.
_VALUE_OF = (
    rf"(?:</?[a-z]{{1,16}}>|(?:{QUOTE})?(?i:[a-z_]{{0,16}}value|val|default)(?:{QUOTE})?"
    r"[ \t]{0,16}[:=>][ \t]{0,4})"
)
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
        r"|(?:AKIA|ASIA)[A-Z0-9]{16}(?:(?:[\s,:;|\"']|\\{1,7}[nt\"]){1,4}"
        r"(?:[0-9][0-9T:.+Z\-]{9,31})?){1,2})"
        r"(?P<value>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        validator=aws_secret,
        priority=80,
        counter_examples=("secret_access_key = " + "a" * 40,),
    ),
    _Secret(
        id="secret.password",
        gate=("pass", "pwd", "pw"),
        then=rf"(?:wor[dt]|wrd|wd|phrase|code)?{_JOINED_THEN}{THEN}",
        pattern=rf"(?:{LOGIN_WORDS}){JOINED}{IS}{VALUE}",
        validator=password,
    ),
    _Secret(
        id="secret.password.foreign",
        gate=PASSWORDS.gate,
        pattern=rf"(?i:{PASSWORDS.pattern}){JOINED}{IS}{VALUE}",
        validator=password,
    ),
    _Secret(
        id="secret.token",
        gate=("token", "secret", "credential"),
        then=rf"s?{_JOINED_THEN}{THEN}",
        pattern=rf"(?i:{_MADE}){JOINED}{IS}{VALUE}",
        validator=token,
    ),
    _Secret(
        id="secret.token.foreign",
        gate=TOKENS.gate,
        pattern=rf"(?i:{TOKENS.pattern}){JOINED}{IS}{VALUE}",
        validator=token,
    ),
    _Secret(
        id="secret.key",
        gate=("key",),
        lead=r"[a-z\-_ .]",
        then=rf"(?:[_\-.]?(?:base|id|data|[0-9]|prod|live|test|dev)){{0,2}}{THEN}",
        pattern=r"(?i:key)(?P<joined>(?:[_\-.]?(?i:base|data|prod|live|test|dev|[0-9])){0,2})"
        rf"(?:_id(?=.{{1,6}}AKIA))?{IS}{VALUE}",
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
        gate=CHINESE,
        then=r"(?:[!-~ \t]|是|为|就|改|换|设|重|已|：|＝|“|”|「)"
        r"(?:[!-~ \t]|是|为|成|改|换|设|重|置|经|：|＝|“|”|「)",
        pattern=rf"(?:{_HAN})(?:(?:\*{{1,2}}|_{{1,2}})(?=[ \t]?[：:=＝是为]))?"
        r"(?:(?:已经|[就已])?(?:改|换|设置?|重置)[成为]了?[:： ]{0,2}"
        r"|(?:[就是为:：=＝ \t]|\\{0,7}[\"'“”「`]|(?<=[:：])\*\*[ \t]?){1,8}|(?=[!-~]{0,63}[0-9]))"
        r"(?P<value>[!-~](?:(?![\"'`\\<>,;])[!-~]|[,;](?=[!-~])){2,255}(?<![.,;:]))",
        validator=chinese_password,
    ),
    _Secret(
        id="secret.said",
        gate=(
            "passw",
            "passphrase",
            "secret is",
            "secret key",
            "client secret",
            "api key",
            "access key",
            "access token",
            "creds ",
            "credentials",
            "login ",
            *PASSWORDS.gate,
        ),
        then=r"[^\n=(\"]{4,96}[0-9]",
        pattern=rf"(?:(?i:passwor[dt]|passphrase|(?:client )?secret(?: key)?|api key|access (?:key|token)"
        rf"|{PASSWORDS.pattern})(?:[ ,] ?[\w@.\-/]{{1,32}}){{0,8}}?[ ,]"
        r"(?P<tie> ?(?i:is|was|are|to|as|now|es|est|ist|lautet|é|=|:))?"
        r"|(?i:creds?|credentials|login)(?: (?:is|are|details|for))?:? [\w.@\-]{1,64}(?: ?[/|] ?|, ?pass(?:word)?))"
        r"[ ]?(?:now |still |just )?(?:[\"'`*]{1,2})?(?=[^\s]{0,64}[0-9!@#$%^&*])"
        r"(?P<value>[^\s\"'`<>()\[\]{}|\\,;*]{5,128}?)(?=[.!?]?(?:[\s\"'`,;)*]|\\{1,7}[nrt\"]|\Z))",
        validator=said,
        priority=16,
    ),
    _Secret(
        id="secret.cells",
        gate=_ANY_NAME,
        then=r"[a-z0-9_\- ]{0,16}[\"']?[ \t]{0,24}(?:[,;|\t]|\\{1,7}[tn]|[\r\n])",
        pattern=rf"(?:{_MANY}|(?<![a-z])(?i:pass|pw)|(?i:key))[\w\- ]{{0,16}}[\"'`*]{{0,3}}[ \t]{{0,32}}"
        r"(?:(?:[,;|\t│]|[ ]{2})[\w\-. \"'`*]{0,64}){0,32}[ \t]{0,8}\r?\n"
        r"(?:[^\n]{1,1024}(?:\n|\Z)){1,32}+",
        parts=cells,
        validator=beside,
        priority=17,
    ),
    _Secret(
        id="secret.mnemonic",
        gate=(
            "mnemonic",
            "seed",
            "recovery",
            "backup phrase",
            "secret phrase",
            "助记词",
        ),
        then=r"[^\n]{0,40}[a-z]{3}",
        pattern=r"(?:(?i:mnemonic|(?:seed|recovery|backup|secret)[ _\-]?(?:phrase|words?|key)?)"
        r"|助记词)[^a-z\n]{0,24}(?:is|are|was)?[^a-z\n]{1,8}"
        r"(?P<value>(?:[0-9]{1,2}[.)] ?)?[a-z]{3,8}(?:[ ,\n]{1,3}(?:[0-9]{1,2}[.)] ?)?[a-z]{3,8}){11,23})(?![a-z])",
        validator=mnemonic,
    ),
    InContext(
        id="secret.mnemonic.key",
        type="SECRET",
        leaf=True,
        gate=words(
            "mnemonic 助记词 seedphrase seed_phrase recovery_phrase recoveryphrase"
        ),
        context=r"(?i:mnemonic|(?:seed|recovery|backup|secret)[ _\-]?(?:phrase|words?))|助记词",
        pattern=r"[a-z]{3,8}(?:[ ,\n]{1,3}[a-z]{3,8}){11,23}",
        validator=mnemonic,
        priority=20,
    ),
    InContext(
        id="secret.password.key",
        type="SECRET",
        leaf=True,
        gate=(*words("pass pwd pw"), "密码", "口令", *_ONE_WORD),
        context=rf"(?:{LOGIN_WORDS}|(?<![A-Za-z])(?i:pass|pw)|(?i:{PASSWORDS.pattern}))"
        r"(?:[\-_ ]?(?i:hash|digest|confirm(?:ation)?|again|value|plain(?:text)?"
        r"|prod|dev|staging|test|new|old|[0-9]))?"
        r"|密码|口令",
        pattern=r"[^\n]{4,256}(?:\r?\n){0,2}",
        validator=password_of_key,
        priority=20,
    ),
    InContext(
        id="secret.token.key",
        type="SECRET",
        leaf=True,
        gate=(
            *words("token secret credential key authorization 密钥 令牌"),
            *TOKENS.gate,
        ),
        context=rf"{_NOT_A_SECRET}(?i:{_MADE}|authorization|{TOKENS.pattern})"
        r"(?:[\-_ ]?(?i:base|value|prod|dev|staging|live|test|[0-9]))?"
        rf"|(?:{KEY_OF})(?i:key)(?:[\-_ ]?(?i:base|data|value|[0-9]))?|密钥|秘钥|令牌",
        pattern=r"[^\n]{8,4096}(?:\r?\n){0,2}",
        validator=token_of_key,
        priority=20,
    ),
    Rule(
        id="secret.named",
        type="SECRET",
        gate=words("password passwd _pass token secret _key -key apikey"),
        then=r"[^=]{1,48}(?:val|default|<)",
        pattern=rf"(?i:password|passwd|_pass|token|secret|[_\-]key|apikey){JOINED}"
        rf"(?:{QUOTE})?(?:</[a-z]{{1,16}}>|,)?(?:{WHITE})?{_VALUE_OF}{VALUE}",
        validator=named,
        priority=19,
    ),
    Rule(
        id="secret.block",
        type="SECRET",
        gate=("variable ", "output "),
        then=r"[\\\"']{1,8}[\w\-]{0,48}(?:pass|pwd|token|secret|key|cred)",
        pattern=rf"(?i:variable|output)[ ]{QUOTE}[\w\-]{{0,48}}?(?i:{_CHOSEN}|{_MADE}|(?<=[_\-])key)"
        rf"(?P<joined>[\w\-]{{0,24}}){QUOTE}[ \t]{{0,4}}\{{[^{{}}]{{0,600}}?(?<!\w)(?:default|value)"
        rf"[ \t]{{0,16}}=[ \t]{{0,4}}{VALUE}",
        validator=named,
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
        r"(?P<value>(?=[A-Za-z+/=_.:\-]{0,15}[0-9])[A-Za-z0-9+/=_.:!@#$%^&*?\-]{8,256})"
        rf"(?:{QUOTE})? (?:as|for) (?i:the|your|my|our|an?)"
        r" [\w\- ]{0,32}?(?i:password|passphrase|secret|token|key|credentials?)(?!"
        r"[a-z])",
        validator=told,
        priority=17,
    ),
)

"""Rules for values that somebody named: each joins names, a relation and a judge."""

from refold.redaction.checks import names
from refold.redaction.checks.names import CHINESE, NO_KEY_OF, PASSWORDS, TOKENS
from refold.redaction.rules.rule import load, words

_NOT_A_SECRET = "".join(
    rf"(?<!{word})(?<!{word}[\-_ ])"
    for word in ("next", "page", "sync", "eos", "bos", "pad", "unk", "sep", "mask")
)
_NO_KEY = "".join(rf"(?<!{word.upper()})" for word in NO_KEY_OF)
_PASSWORDS, _TOKENS = PASSWORDS.pattern, TOKENS.pattern
_HAN = "|".join(CHINESE)
_PASSWORD_GATES, _TOKEN_GATES = PASSWORDS.gate, TOKENS.gate
_ANY_NAME = words("pass pwd pw token secret credential key") + PASSWORDS.gate
_ONE_WORD = tuple(gate for gate in PASSWORDS.gate if " " not in gate)
_PASSWORD_KEYS = (*words("pass pwd pw 密码 口令"), *_ONE_WORD)
_TOKEN_KEYS = (
    *words("token secret credential key authorization 密钥 令牌"),
    *TOKENS.gate,
)
_SAID = (
    *words("passw passphrase credentials"),
    *("secret is", "secret key", "client secret", "api key", "access key"),
    *("access token", "creds ", "login ", *PASSWORDS.gate),
)

ASSIGNED = load(globals(), "assigned", "relations", names)

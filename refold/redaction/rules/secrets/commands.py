"""Rules for secrets on command lines: each product is an entry of the lexicon."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from refold.redaction.checks.names import LEXICON
from refold.redaction.checks.secrets import (
    declared,
    flag,
    login,
    login_argument,
    piped,
    sql,
    token,
    typed,
    typed_alone,
)
from refold.redaction.rules.rule import QUOTE, InContext, Rule
from refold.redaction.rules.secrets.relations import VALUE, WHITE

_FLAG = r"(?<![^\s\"'`(=\[,])--?(?:[A-Za-z0-9]{1,15}[\-_]){0,3}"
_AFTER = (
    r"(?:[ \t]{1,4}|=|\\{0,7}[\"'],[ \t]{0,4}(?:\\{1,7}n[ ]{0,16})?(?=\\{0,7}[\"']))"
)
_Secret = partial(Rule, type="SECRET", priority=20)

_BETWEEN: Final = (
    r"(?:[ \t]{1,4}|\\{0,7}[\"'],?[ \t\n]{1,16}\\{0,7}[\"']|\\{0,7}[\"'],\\{0,7}[\"'])"
)
_SIGNS: Final = {
    "~": _BETWEEN,
    "@": r"[^\s\"'`\\,=:%/@]{1,64}",
    "*": r"[^\s\"'`\\]{1,128}",
    "#": r"[\w/.:\-]{0,96}(?:(?i:pass(?:word)?|secret|token|key)|_auth)[\w\-]{0,16}",
    "^": "(?=@)",
}
_ARGUMENT: Final = r"(?:\\{0,7}[\"'])?(?P<value>[^\s\"'`\\\-][^\s\"'`\\]{2,255})"
_SOME: Final = r"[^\n|;&]{0,120}?"


# The first words of their names: an array of strings that begins with one is a command.
PROGRAMS: Final = frozenset(
    program.split()[0] for row in LEXICON["commands"] for program in row.split(",")
)


def _commands() -> Iterator[Rule]:
    for row, forms in LEXICON["commands"].items():
        programs = row.split(",")
        for number, form in enumerate(forms.split()):
            yield _command(f"{programs[0]}.{number}", programs, form)


def _command(name: str, programs: list[str], form: str) -> Rule:
    follows = form.startswith("~")
    head, _, tail = "".join(_SIGNS.get(sign, sign) for sign in form).rpartition("_")
    names = "|".join(map(re.escape, programs))
    some = "" if follows else rf"{_SOME}(?<![^\s\"'])"
    gates = tuple(programs)
    return _Secret(
        id=f"secret.command.{name.replace(' ', '-')}",
        gate=gates,
        then=r"[ \t\"'\\]",
        pattern=rf"(?:{names})(?=[ \t\"'\\]){some}{head}{_ARGUMENT}{tail}",
        of_list=True,
        validator=typed_alone if follows else typed,
        examples=tuple(_sample(program, form, "«bear-77Q»") for program in programs),
        counter_examples=(
            _sample(programs[0], form, "$PASSWORD"),
            f"{programs[0]} --help",
        ),
    )


def _sample(program: str, form: str, value: str) -> str:
    """A command of that form."""
    for sign, plain in zip(
        "~@*#_^", (" ", "name", "arg", "db/password", value, "@h"), strict=True
    ):
        form = form.replace(sign, plain)
    return f"{program}{form}" if form.startswith(" ") else f"{program} x {form}"


COMMANDS = (
    _Secret(
        id="secret.flag.password",
        gate=("pass", "pwd", "pw"),
        before=_FLAG,
        reach=50,
        lead=r"[\-_]",
        then=r"(?:word|wd|phrase)?(?:[ \t=\\]|[\"'],)",
        pattern=rf"(?i:password|passwd|passphrase|pass|pwd|pw){_AFTER}{VALUE}",
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
    *_commands(),
    _Secret(
        id="secret.piped",
        gate=(
            "sudo ",
            "chpasswd",
            "docker login",
            "podman login",
            "helm registry login",
            "gh auth login",
            "cryptsetup",
            "passwd --stdin",
            "kinit",
            "smbpasswd",
        ),
        before=r"(?:echo|printf|cat)(?:[ \t]{1,4}-[neE]{1,3})?(?:[ \t]{1,4}['\"]%s(?:\\{1,2}n)?['\"])?"
        r"[ \t]{1,4}\\{0,7}[\"']?(?:[\w.\-]{1,32}:)?"
        r"(?P<value>[^\s\"'`|\\<>]{3,128})(?:\\{1,2}n)?\\{0,7}[\"']?[ \t]{0,4}\|[ \t]{0,4}(?:sudo )?",
        reach=240,
        lead=r"[^0-9a-z]",
        pattern=r"(?:sudo (?:[^\n|;&]{0,60}? )?(?:-S|--stdin)|chpasswd"
        r"|(?:docker|podman|helm registry) login[^\n|;&]{0,160}--password-stdin"
        r"|gh auth login[^\n|;&]{0,60}--with-token|cryptsetup|passwd --stdin|kinit|smbpasswd)(?![\w\-])",
        validator=piped,
    ),
    _Secret(
        id="secret.here",
        gate=("<<<",),
        # A run of the sign itself is no such thing, and each place in it would be tried.
        then=r"[ \t\"'\\$a-z0-9!-;=-~]",
        before=r"(?:sudo -S|--password-stdin|chpasswd|secret put [\w\-]{1,64}|--with-token)[^\n|;&]{0,40}",
        reach=110,
        pattern=r"<<<(?!<)[ \t]{0,4}\\{0,7}[\"']?(?:[\w.\-]{1,32}:)?(?P<value>[^\s\"'`\\]{3,128})",
        validator=typed,
    ),
    _Secret(
        id="secret.expect",
        gate=("assword:",),
        then=r"[^\n]{0,8}",
        pattern=r"(?i:assword:)[^\n]{0,8}(?:\n|\\{1,7}n)[^\n]{0,4}send(?: --)? \\{0,7}\""
        r"(?P<value>[^\s\"'`\\]{3,128})",
        validator=typed,
    ),
    _Secret(
        id="secret.directive",
        gate=(
            "requirepass ",
            "masterauth ",
            "authtoken ",
            "auth ",
            "default_pass",
            "bindpw ",
        ),
        pattern=r"(?:(?i:requirepass|masterauth|authtoken|default_pass|bindpw)|AUTH)[ \t=]{1,8}\\{0,7}[\"']?"
        r"(?P<value>[^\s\"'`\\=]{3,256})",
        validator=typed_alone,
    ),
    _Secret(
        id="secret.netrc",
        gate=("login",),
        then=r"(?:[ \t\n\r]|\\[nrt])",
        pattern=rf"(?<![A-Za-z])login{WHITE}[^\s\\/]{{1,64}}{WHITE}password{WHITE}"
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
        validator=declared,
        priority=18,
    ),
)

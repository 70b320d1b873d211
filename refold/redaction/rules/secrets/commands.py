"""Rules for secrets on command lines: each product is an entry of the lexicon."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from refold.redaction.checks.names import LEXICON
from refold.redaction.checks.secrets import typed, typed_alone
from refold.redaction.rules.rule import START, Rule, load

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
        lead="[^0-9ac-eg-mo-qsu-z]",
        then=r"[ \t\"'\\]",
        pattern=rf"{START}(?:{names})(?=[ \t\"'\\]){some}{head}{_ARGUMENT}{tail}",
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


COMMANDS = (*load(globals(), "commands", "relations"), *_commands())

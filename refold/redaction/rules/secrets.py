"""Packs ``secrets`` and ``secrets-extended``: what opens a door."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from refold.redaction.checks import names
from refold.redaction.checks.names import LEXICON, NO_KEY_OF, PASSWORDS, TOKENS
from refold.redaction.rules.rule import Rule, load, parts_of

_PARTS: Final = parts_of("relations")
_START, _WORD, _LEAD = _PARTS["START"], _PARTS["WORD"], _PARTS["LEAD"]

_GATES: Final = LEXICON["gates"]
# Vendors whose keys have no mark of their own.
_VENDORS: Final = names.words("vendors")
# What the files of packs name in braces: patterns and gates made of the lexicon.
_FOR_ASSIGNED: Final = {
    "CHINESE": names.CHINESE,
    "KEY_OF": names.KEY_OF,
    "_ANY_NAME": (*_GATES["any_name"], *PASSWORDS.gate),
    "_HAN": "|".join(names.CHINESE),
    "_NOT_A_SECRET": "".join(
        rf"(?<!{word})(?<!{word}[\-_ ])" for word in names.words("no_secret_token")
    ),
    "_NO_KEY": "".join(rf"(?<!{word.upper()})" for word in NO_KEY_OF),
    "_PASSWORDS": PASSWORDS.pattern,
    "_PASSWORD_GATES": PASSWORDS.gate,
    "_PASSWORD_KEYS": (
        *_GATES["password_keys"],
        *(gate for gate in PASSWORDS.gate if " " not in gate),
    ),
    "_SAID": (*_GATES["said"], *PASSWORDS.gate),
    "_TOKENS": TOKENS.pattern,
    "_TOKEN_GATES": TOKENS.gate,
    "_TOKEN_KEYS": (*_GATES["token_keys"], *TOKENS.gate),
}
_FOR_NAMED: Final = {
    "_NEAR_VENDORS": "|".join(_VENDORS),
    "_VENDORS": _VENDORS,
}

# What may stand for each sign in the form of a command, and a sample of that.
_SIGNS: Final = LEXICON["signs"]
_ARGUMENT: Final = r"(?:\\{0,7}[\"'])?(?P<value>[^\s\"'`\\\-][^\s\"'`\\]{2,255})"
_SOME: Final = r"[^\n|;&]{0,120}?"
# The first words of the names of programs that take secrets: an array of strings that
# begins with one is a command.
PROGRAMS: Final = frozenset(
    program.split()[0] for row in LEXICON["commands"] for program in row.split(",")
)


def _commands() -> Iterator[Rule]:
    for row, forms in LEXICON["commands"].items():
        for number, form in enumerate(forms.split()):
            yield _command(row.split(","), form, number)


def _command(programs: list[str], form: str, number: int) -> Rule:
    follows = form.startswith("~")
    whole = "".join(_SIGNS.get(sign, (sign,))[0] for sign in form)
    head, _, tail = whole.rpartition("_")
    names = "|".join(map(re.escape, programs))
    some = "" if follows else rf"{_SOME}(?<![^\s\"'])"
    return Rule(
        type="SECRET",
        priority=20,
        id=f"secret.command.{programs[0].replace(' ', '-')}.{number}",
        gate=tuple(programs),
        lead="[^0-9ac-eg-mo-qsu-z]",
        then=r"[ \t\"'\\]",
        pattern=rf"{_START}(?:{names})(?=[ \t\"'\\]){some}{head}{_ARGUMENT}{tail}",
        of_list=True,
        validator=_PARTS["typed_alone" if follows else "typed"],
        examples=tuple(_sample(program, form, "«bear-77Q»") for program in programs),
        counter_examples=(
            _sample(programs[0], form, "$PASSWORD"),
            f"{programs[0]} --help",
        ),
    )


def _sample(program: str, form: str, value: str) -> str:
    """A command of that form."""
    for sign, (_, plain) in _SIGNS.items():
        form = form.replace(sign, plain)
    form = form.replace("_", value)
    return f"{program}{form}" if form.startswith(" ") else f"{program} x {form}"


# Keys that say by their first characters who issued them: samples of them are made of
# these, so that none is anybody's.
_MIXED = "q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6CgTuEaXoIiGkMzPnQvSyBwDcFrJhLeUt5A8" * 5

_CLASS = re.compile(r"(\[[^\]]+\])\{([0-9]+)(?:,([0-9]+))?\}")
# Prefixes that may be the end of another name.
_WORDS: Final = frozenset(names.words("in_prefixes"))
# Longer ones would cost an automaton more than they spare it.
_ENOUGH: Final = 20


def _rules(table: str) -> tuple[Rule, ...]:
    return tuple(_rule(name, *entry) for name, entry in LEXICON[table].items())


def _rule(name: str, judge: str, tail: str, marks: str) -> Rule:
    prefixes = marks.split()
    for short, members in LEXICON["classes"].items():
        tail = tail.replace(f"{short}{{", f"{members}{{")
    loose = [p for p in prefixes if judge == "issued" and _tells(p)]
    strict = [p for p in prefixes if p not in loose]
    ways = [rf"{_WORD}(?:{'|'.join(map(re.escape, strict))})"] if strict else []
    if loose:
        # Behind another word, names of files may look like one, without a digit.
        some = r"(?=[A-Za-z0-9_+/.%$\-]{0,64}[0-9])"
        anywhere = "|".join(map(re.escape, loose))
        ways.append(rf"(?:{anywhere}){some}")
        ways.append(rf"{_WORD}(?:{anywhere})")
    # As many characters of the tail as every tail begins with.
    head = _CLASS.match(tail)
    then = f"{head[1]}{{{min(int(head[2]), _ENOUGH)}}}" if head else ""
    sample = _sample_of(tail)
    return Rule(
        id=f"key.{name}",
        type="API_KEY",
        gate=tuple(prefix.lower() for prefix in prefixes),
        lead="" if loose else _LEAD,
        then=then,
        pattern=rf"(?:{'|'.join(ways)}){tail}(?<!\.)(?![A-Za-z0-9])",
        validator=_PARTS[judge],
        priority=80,
        examples=tuple(f"is «{prefix}{sample}»." for prefix in prefixes),
        counter_examples=(
            *([] if loose else [f"x{prefixes[0]}{sample}"]),
            prefixes[0] + "x" * len(sample),
        ),
    )


def _tells(prefix: str) -> bool:
    """Whether it tells by itself: a key may stand right behind another word."""
    return (
        len(prefix) > 3
        and bool(re.search("[^A-Za-z]", prefix[-1]) or len(prefix) > 7)
        and prefix.rstrip("_-") not in _WORDS
    )


def _sample_of(tail: str) -> str:
    """What matches ``tail``: each class as often as it must be, or 24 times."""
    needed = re.sub(r"\(\?:.*\)\?|=\{0,[0-9]\}", "", tail)
    return _CLASS.sub(_members, needed).replace("\\", "")


def _members(found: re.Match[str]) -> str:
    members, least, most = found.groups()
    often = min(max(int(least), 24), int(most or least))
    return "".join(re.findall(members, _MIXED * 2))[:often]


_ASSIGNED = load("assigned", "assigned", _FOR_ASSIGNED)
_COMMANDS = (*load("commands", "commands"), *_commands())
_CREDENTIALS, _HEADERS, _FORMS = (
    load("forms", group) for group in ("credentials", "headers", "forms")
)
_ANY_ISSUER = (*_CREDENTIALS, *_HEADERS, *_ASSIGNED, *_COMMANDS, *_FORMS)
SECRETS = (*_ANY_ISSUER, *_rules("issuers"))
SECRETS_EXTENDED = (*load("forms", "named", _FOR_NAMED), *_rules("others"))

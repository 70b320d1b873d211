"""Packs ``secrets`` and ``secrets-extended``: credentials and keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from refold.redaction.checks import Check, names
from refold.redaction.checks.names import LEXICON, NO_KEY_OF, PASSWORDS, TOKENS
from refold.redaction.rules.rule import Rule, load, parts_of

_PARTS: Final = parts_of("relations")
_START = _PARTS["START"]
_WORD = _PARTS["WORD"]
_LEAD = _PARTS["LEAD"]

_GATES: Final = LEXICON["gates"]
# Vendors whose keys have no mark of their own.
_VENDORS: Final = names.words("vendors")
# The last words of commands that print a secret and nothing else.
_PRINTERS: Final = tuple(
    name.strip()
    for written in LEXICON["printers"].values()
    for name in written.strip().splitlines()
)
# Patterns and gates made of the lexicon, which the files of packs name in braces.
_FOR_ASSIGNED: Final = {
    "CHINESE": names.CHINESE,
    "KEY_OF": names.KEY_OF,
    "_ANY_NAME": (*_GATES["any_name"], *PASSWORDS.gate),
    "_HAN": "|".join(names.CHINESE),
    "_NAME_GATES": (*_GATES["names"], *PASSWORDS.gate),
    "_PAIR_GATES": (*_GATES["pairs"], *PASSWORDS.gate),
    "_PRINTERS": tuple(name.lower() for name in _PRINTERS),
    "_PRINTING": "|".join(f"(?i:{re.escape(name)})" for name in _PRINTERS),
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

# By sign in the form of a command: its pattern, and a sample.
_SIGNS: Final = LEXICON["signs"]
_ARGUMENT: Final = r"(?:\\{0,7}[\"'])?(?P<value>[^\s\"'`\\\-][^\s\"'`\\]{2,255})"
# Other arguments, which may stand before.
_OTHERS: Final = r"(?:[^\n|;&]|(?<=[\"'],)\n){0,120}?"
# Between the words of a program's name, where each is a string of a list.
_BETWEEN_STRINGS: Final = ('","', '", "', "','", "', '", '",\n  "', '",\n    "')


def _commands() -> Iterator[Rule]:
    """A rule for each form of arguments of each row of programs."""
    for row, forms in LEXICON["commands"].items():
        for number, form in enumerate(forms.split()):
            yield _command(row.split(","), form, number)


def _command(programs: list[str], form: str, number: int) -> Rule:
    # In a form with ~, the secret follows the name of the program.
    follows = form.startswith("~")
    whole = "".join(_SIGNS.get(sign, (sign,))[0] for sign in form)
    head, _, tail = whole.rpartition("_")
    spellings = [*programs]
    for program in programs:
        if " " in program:
            spellings += [program.replace(" ", gap) for gap in _BETWEEN_STRINGS]
    names = "|".join(map(re.escape, spellings))
    between = "" if follows else rf"{_OTHERS}(?<![^\s\"'])"
    samples = [_sample(program, form, "«bear-77Q»") for program in programs]
    return Rule(
        type="SECRET",
        priority=20,
        id=f"secret.command.{programs[0].replace(' ', '-')}.{number}",
        gate=tuple(spellings),
        lead="[^0-9ac-eg-mo-qsu-z]",
        then=r"[ \t\"'\\]",
        pattern=rf"{_START}(?:{names})(?=[ \t\"'\\]){between}{head}{_ARGUMENT}{tail}",
        of_list=True,
        validator=Check("typed_alone" if follows else "typed", "secrets"),
        examples=tuple(samples),
        counter_examples=(
            _sample(programs[0], form, "$PASSWORD"),
            f"{programs[0]} --help",
        ),
    )


def _sample(program: str, form: str, value: str) -> str:
    """A command of that form with this secret."""
    for sign, (_, plain) in _SIGNS.items():
        form = form.replace(sign, plain)
    form = form.replace("_", value)
    return f"{program}{form}" if form.startswith(" ") else f"{program} x {form}"


# Samples of keys consist of these characters, so that no sample is anybody's key.
_MIXED = "q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6CgTuEaXoIiGkMzPnQvSyBwDcFrJhLeUt5A8" * 5

# A class of characters with its repeat.
_CLASS = re.compile(r"(\[[^\]]+\])\{([0-9]+)(?:,([0-9]+))?\}")
# The parts of a tail that a sample does not need.
_OPTIONAL = re.compile(r"\(\?:.*\)\?|=\{0,[0-9]\}")
# Prefixes that may be the end of another name.
_WORDS: Final = frozenset(names.words("in_prefixes"))
# More characters would cost an automaton more time than they save.
_ENOUGH: Final = 20


def _rules(table: str) -> tuple[Rule, ...]:
    return tuple(_issuer(name, *entry) for name, entry in LEXICON[table].items())


def _issuer(name: str, check: str, tail: str, marks: str) -> Rule:
    """The rule for the keys of an issuer, whose first characters name the issuer.

    check: the name of a check of secrets.
    tail:  the pattern of the rest of a key.
    marks: the prefixes.
    """
    prefixes = marks.split()
    for short, members in LEXICON["classes"].items():
        tail = tail.replace(f"{short}{{", f"{members}{{")
    # Prefixes after which a key may begin right behind another word.
    loose: list[str] = []
    strict: list[str] = []
    for prefix in prefixes:
        if check == "issued" and _tells(prefix):
            loose.append(prefix)
        else:
            strict.append(prefix)
    ways: list[str] = []
    if strict:
        ways.append(rf"{_WORD}(?:{'|'.join(map(re.escape, strict))})")
    if loose:
        anywhere = "|".join(map(re.escape, loose))
        # Names of files may look like a key behind another word, but without a digit.
        has_digit = r"(?=[A-Za-z0-9_+/.%$\-]{0,64}[0-9])"
        ways.append(rf"(?:{anywhere}){has_digit}")
        ways.append(rf"{_WORD}(?:{anywhere})")
    # As many characters as every tail has at its start.
    start = _CLASS.match(tail)
    then = f"{start[1]}{{{min(int(start[2]), _ENOUGH)}}}" if start else ""
    sample = _sample_of(tail)
    counter_examples = [prefixes[0] + "x" * len(sample)]
    if not loose:
        counter_examples.insert(0, f"x{prefixes[0]}{sample}")
    return Rule(
        id=f"key.{name}",
        type="API_KEY",
        gate=tuple(prefix.lower() for prefix in prefixes),
        lead="" if loose else _LEAD,
        then=then,
        pattern=rf"(?:{'|'.join(ways)}){tail}(?<!\.)(?![A-Za-z0-9])",
        validator=Check(check, "secrets"),
        priority=80,
        examples=tuple(f"is «{prefix}{sample}»." for prefix in prefixes),
        counter_examples=tuple(counter_examples),
    )


def _tells(prefix: str) -> bool:
    """Whether a prefix is clear enough that a key may stand right behind a word."""
    return (
        len(prefix) > 3
        and bool(re.search("[^A-Za-z]", prefix[-1]) or len(prefix) > 7)
        and prefix.rstrip("_-") not in _WORDS
    )


def _sample_of(tail: str) -> str:
    """A text that matches ``tail``: each class as often as needed, at most 24 times."""
    needed = _OPTIONAL.sub("", tail)
    return _CLASS.sub(_members, needed).replace("\\", "")


def _members(repeat: re.Match[str]) -> str:
    """Characters of a class, as many as its repeat needs."""
    members, least, most = repeat.groups()
    count = min(max(int(least), 24), int(most or least))
    return "".join(re.findall(members, _MIXED * 2))[:count]


@cache
def carriers() -> tuple[Rule, ...]:
    """Rules for secrets in other syntax than an assignment, one syntax a rule."""
    return load("carriers", "carriers", _FOR_ASSIGNED)


def secrets() -> tuple[Rule, ...]:
    """The rules of the pack ``secrets``."""
    return (
        *load("forms", "credentials"),
        *load("forms", "headers"),
        *load("assigned", "assigned", _FOR_ASSIGNED),
        *carriers(),
        *load("commands", "commands"),
        *_commands(),
        *load("forms", "forms"),
        *_rules("issuers"),
    )


def secrets_extended() -> tuple[Rule, ...]:
    """The rules of the pack ``secrets-extended``."""
    return (*load("forms", "named", _FOR_NAMED), *_rules("others"))

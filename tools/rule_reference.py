"""Write docs/reference/rules.md from the rules.

``python -m tools.rule_reference`` writes the page; with ``--check`` it writes nothing,
and exits 1 if the page is out of date.
"""

import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from refold.redaction import Plan, Redactor, Rule
from refold.redaction.rules import DEFAULT_PACKS, PACKS
from refold.redaction.rules.rule import Example
from refold.redaction.types import TYPES, labels

PAGE = Path("docs/reference/rules.md")
MIN_SCORE = Plan().min_score
_QUOTES = re.compile("[\"']")

_INTRO = """\
# Rules

<!-- Written by `python -m tools.rule_reference`: change the rules, not this page. -->

This page lists the rules by which Refold [redacts](../glossary.md#redaction), in
[packs](../glossary.md#pack). A [policy](policy.md) chooses the packs. In the examples,
the text between « and » is redacted, `⏎` ends a line, and long secrets are cut (`…`). A
rule that needs context finds a value only after a word for it, or under a key with such
a word. If several rules find the same value, the most specific one determines the type.
"""
_PACK_INTROS = {
    "pii-common": "Personal data in English, or common everywhere.",
    "pii-cn": "Personal data of people in China.",
    "pii-us": "Numbers that the United States and its banks give to people.",
    "secrets": "Passwords, tokens and keys.",
    "pii-eu": "Numbers that European states give to people.",
    "network": "Addresses of machines.",
    "secrets-extended": "Keys with less distinctive forms: expect more false findings.",
    "person": "Names of people, if something says that they are names.",
}
_VENDORS_INTRO = """\
### Keys with a prefix of their issuer

All have the type `API_KEY` and need no context. A longer word that contains such a key
is not a key. A placeholder, such as a prefix with a row of `x`, is not a key either.

| rule | begins with |
|---|---|
"""
_COMMANDS_INTRO = """\
### Arguments of commands

The rules `secret.command.*` find the secrets in arguments of these programs, in a line
of a shell and in an array of strings:
"""
_CHECKS_INTRO = """\
## Checks

A value must pass its check in addition to having the right form. Checks compute
checksums and look nothing up.

| check | passes |
|---|---|
"""
_TYPES_INTRO = """\
## Types

The types in [placeholders](../glossary.md#placeholder), and their labels in the locale
`zh`. A [policy](policy.md#types) accepts other names for them.

| type | label |
|---|---|
"""
_MARKS = re.compile("[«»]")
# A part of an example that looks like a complete secret: long, and with a digit, unlike
# names and words.
_LONG_PART = re.compile(r"(?=[A-Za-z_\-+%]*[0-9])[A-Za-z0-9_\-+%]{16,}=*")
_SECRET_TYPES = {
    "API_KEY",
    "AUTH_TOKEN",
    "JWT",
    "PASSWORD_HASH",
    "PRIVATE_KEY",
    "SECRET",
    "URL_CREDENTIAL",
}


def page() -> str:
    """Return the whole page."""
    parts = [_INTRO]
    for name, pack in PACKS.items():
        parts += _pack(name, pack)
    rules = [rule for pack in PACKS.values() for rule in pack]
    parts.append(_CHECKS_INTRO + _table_rows(_checks(rules)))
    parts.append(_TYPES_INTRO + _table_rows(_types(rules)))
    return "\n".join(parts)


def _pack(name: str, rules: tuple[Rule, ...]) -> Iterator[str]:
    """The section of a pack: a table of its rules, its commands, and its vendors."""
    status = "on by default" if name in DEFAULT_PACKS else "opt-in"
    yield f"## `{name}` ({status})\n\n{_PACK_INTROS[name]}\n"
    vendors: list[Rule] = []
    commands: list[Rule] = []
    others: list[Rule] = []
    for rule in rules:
        if rule.of_list:  # it finds arguments in an array of strings
            commands.append(rule)
        if _is_vendor(rule):
            vendors.append(rule)
        elif not rule.of_list:
            others.append(rule)
    if others:
        head = (
            "| rule | type | example | needs context | check | leaves alone |\n"
            "|---|---|---|---|---|---|\n"
        )
        redactor = Redactor(Plan(rules=rules, engine="stdlib"))
        yield head + _table_rows(_rule_cells(rule, redactor) for rule in others)
    if commands:
        programs: set[str] = set()
        for rule in commands:
            for literal in rule.gate:
                # The other literals spell the same program as an array of strings.
                if not _QUOTES.search(literal):
                    programs.add(literal)
        # A program with arguments stays on one line.
        unbroken = [f"`{program}`".replace(" ", "\0") for program in sorted(programs)]
        lines = textwrap.fill(f"{', '.join(unbroken)}.", 100, break_on_hyphens=False)
        yield f"{_COMMANDS_INTRO}\n{lines}\n".replace("\0", " ")
    if vendors:
        yield _VENDORS_INTRO + _table_rows(map(_vendor_cells, vendors))


def _is_vendor(rule: Rule) -> bool:
    """Whether a rule finds keys of one issuer by their prefix.

    It needs no context, and has an example for each literal of its gate, whose value
    begins with that literal.
    """
    if rule.type != "API_KEY" or rule.context:
        return False
    if len(rule.gate) != len(rule.examples):
        return False
    return all(value.lower().startswith(gate) for value, gate in _values(rule))


def _values(rule: Rule) -> Iterator[tuple[str, str]]:
    """Each example from its marked value on, with the literal at the same index."""
    for example, gate in zip(rule.examples, rule.gate, strict=True):
        text = example if isinstance(example, str) else example[1]
        _, _, value_and_rest = text.partition("«")
        yield value_and_rest, gate


def _rule_cells(rule: Rule, redactor: Redactor) -> list[str]:
    """The cells of a rule, in the columns of ``_pack``."""
    needs_context = rule.score < MIN_SCORE
    left_alone = ""
    if rule.counter_examples:
        left_alone = _code(_one_line(rule.counter_examples[0]), rule.type)
    return [
        f"`{rule.id}`",
        f"`{rule.type}`",
        _example(rule, redactor),
        "yes" if needs_context else "",
        f"`{rule.check.name}`" if rule.check else "",
        left_alone,
    ]


def _vendor_cells(rule: Rule) -> list[str]:
    """Return the cells of a vendor's rule: its name, and the prefix of its keys."""
    prefixes = [value[: len(gate)] for value, gate in _values(rule)]
    return [f"`{rule.id}`", ", ".join(f"`{prefix}`" for prefix in prefixes)]


def _example(rule: Rule, redactor: Redactor) -> str:
    """Return the first example, with ``redactor``'s replacement marked."""
    example = rule.examples[0]
    key, marked = example if isinstance(example, tuple) else (None, example)
    if "«" not in marked:
        text = _MARKS.sub("", marked)
        redacted, _ = redactor.text(text, key=key)
        marked = _marked(text, redacted)
    marked_example: Example = marked if key is None else (key, marked)
    return _code(_one_line(marked_example), rule.type)


def _marked(before: str, after: str) -> str:
    """The text before redaction, with marks around the part that was replaced."""
    start = _count_shared(before, after)
    reversed_before = before[start:][::-1]
    reversed_after = after[start:][::-1]
    stop = len(before) - _count_shared(reversed_before, reversed_after)
    return f"{before[:start]}«{before[start:stop]}»{before[stop:]}"


def _count_shared(first: str, second: str) -> int:
    """The number of characters with which both texts begin."""
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return count


def _one_line(example: Example) -> str:
    """Return an example in one line; a key comes before its value."""
    text = example if isinstance(example, str) else f"{example[0]}: {example[1]}"
    return text.strip("\n").replace("\n", "⏎")


def _code(text: str, kind: str) -> str:
    """``text`` as code in a table; a secret is cut, so that no scanner finds it."""
    if kind in _SECRET_TYPES:
        text = _LONG_PART.sub(lambda match: f"{match[0][:12]}…", text)
    text = text.replace("|", r"\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _checks(rules: Iterable[Rule]) -> Iterator[list[str]]:
    """The cells of each check: its name, and the first line of its docstring."""
    checks = {rule.check.name: rule.check for rule in rules if rule.check}
    for name, check in sorted(checks.items()):
        first_line = (check.function.__doc__ or "").partition("\n")[0]
        meaning = first_line.removesuffix(".")
        if meaning:
            yield [f"`{name}`", re.sub("``", "`", meaning)]


def _types(rules: Iterable[Rule]) -> Iterator[list[str]]:
    """The cells of each type that a rule has: its name, and its Chinese label."""
    used = {rule.type for rule in rules}
    chinese = labels("zh", used)
    for kind in TYPES:
        if kind in used:
            yield [f"`{kind}`", f"`[{chinese[kind]}]`"]


def _table_rows(rows: Iterable[Sequence[str]]) -> str:
    """The rows of a table in Markdown, from their cells."""
    lines: list[str] = []
    for cells in rows:
        padded = [f" {cell} " if cell else " " for cell in cells]
        lines.append("|" + "|".join(padded) + "|\n")
    return "".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Write the page, or check it; return 1 if it is out of date."""
    new = page()
    if arguments != ["--check"]:
        PAGE.write_text(new, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != new:
        print(f"{PAGE}: out of date: `make fix` writes it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

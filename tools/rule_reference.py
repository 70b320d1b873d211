"""Write docs/reference/rules.md from the rules.

``python -m tools.rule_reference`` writes the page; with ``--check`` it writes nothing,
and exits 1 if the page is out of date.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from refold.redaction import Plan, Redactor, Rule
from refold.redaction.rules import DEFAULT_PACKS, PACKS
from refold.redaction.rules.rule import Example
from refold.redaction.types import TYPES, labels

PAGE = Path("docs/reference/rules.md")
MIN_SCORE = Plan().min_score

_INTRO = """\
# Rules

<!-- Written by `python -m tools.rule_reference`: change the rules, not this page. -->

What Refold [redacts](../glossary.md#redaction), rule by rule, in
[packs](../glossary.md#pack) from which a [policy](policy.md) chooses. The text between
« and » is redacted; `⏎` ends a line; long secrets are cut (`…`) on this page. A rule
that needs context finds a value only after a word for it, or under such a key. If
several rules find the same, the most specific one names the type.
"""
_WHAT = {
    "pii-common": "Personal data in English, or common everywhere.",
    "pii-cn": "Personal data of people in China.",
    "pii-us": "Numbers that the United States and its banks give to people.",
    "secrets": "Passwords, tokens and keys.",
    "pii-eu": "Numbers that European states give to people.",
    "network": "Addresses of machines.",
    "secrets-extended": "Keys with less telling forms: expect more false findings.",
    "person": "Names of people, if something says that they are names.",
}
_VENDORS = """\
### Keys that say who issued them

All are `API_KEY` and need no context. A longer word that contains one is not a key,
nor is a made-up one, such as a prefix with a row of `x`.

| rule | begins with |
|---|---|
"""
_COMMANDS = """\
### Arguments of commands

The rules `secret.command.*` find what these programs take as a secret, in a line of a
shell and in an array of strings:
"""
_CHECKS = """\
## Checks

What a value must pass besides its form. Checksums are computed; nothing is looked up.

| check | passes |
|---|---|
"""
_TYPES = """\
## Types

The types in [placeholders](../glossary.md#placeholder), and their labels in the locale
`zh`. A [policy](policy.md#types) accepts other names for them.

| type | label |
|---|---|
"""
_MARK = re.compile("[«»]")
# Long, with a digit: no name and no word.
_LONG = re.compile(r"(?=[A-Za-z_\-+%]*[0-9])[A-Za-z0-9_\-+%]{16,}=*")
_SECRET = {
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
    packs = PACKS
    for name, pack in packs.items():
        parts += _pack(name, pack)
    rules = [rule for pack in packs.values() for rule in pack]
    parts.append(_CHECKS + "".join(_rows(_checks(rules))))
    parts.append(_TYPES + "".join(_rows(_types(rules))))
    return "\n".join(parts)


def _pack(name: str, rules: tuple[Rule, ...]) -> Iterator[str]:
    on = "on by default" if name in DEFAULT_PACKS else "opt-in"
    yield f"## `{name}` ({on})\n\n{_WHAT[name]}\n"
    redactor = Redactor(Plan(rules=rules, engine="stdlib"))
    vendors = [rule for rule in rules if _is_vendor(rule)]
    commands = [rule for rule in rules if rule.of_list]
    others = [rule for rule in rules if rule not in vendors and not rule.of_list]
    if others:
        head = (
            "| rule | type | example | needs context | check | leaves alone |\n"
            "|---|---|---|---|---|---|\n"
        )
        yield head + "".join(_rows(_row(rule, redactor) for rule in others))
    if commands:
        programs = sorted(
            {f"`{program}`" for rule in commands for program in rule.gate}
        )
        yield f"{_COMMANDS}{', '.join(programs)}.\n"
    if vendors:
        yield _VENDORS + "".join(_rows(map(_vendor, vendors)))


def _is_vendor(rule: Rule) -> bool:
    """Whether each example begins with a literal of the gate."""
    return (
        rule.type == "API_KEY"
        and len(rule.gate) == len(rule.examples)
        and not rule.context
        and all(value.lower().startswith(gate) for value, gate in _values(rule))
    )


def _values(rule: Rule) -> Iterator[tuple[str, str]]:
    """The marked value of each example, and the literal of the gate in its place."""
    for example, gate in zip(rule.examples, rule.gate, strict=True):
        text = example if isinstance(example, str) else example[1]
        yield text.partition("«")[2], gate


def _row(rule: Rule, redactor: Redactor) -> list[str]:
    counter_examples = rule.counter_examples
    return [
        f"`{rule.id}`",
        f"`{rule.type}`",
        _example(rule, redactor),
        "yes" if rule.score < MIN_SCORE else "",
        _check(rule),
        _code(_one_line(counter_examples[0]), rule.type) if counter_examples else "",
    ]


def _vendor(rule: Rule) -> list[str]:
    prefixes = [value[: len(gate)] for value, gate in _values(rule)]
    return [f"`{rule.id}`", ", ".join(f"`{prefix}`" for prefix in prefixes)]


def _example(rule: Rule, redactor: Redactor) -> str:
    """The first example, marked where ``redactor`` replaces it."""
    example = rule.examples[0]
    key, marked = example if isinstance(example, tuple) else (None, example)
    text = _MARK.sub("", marked)
    if "«" not in marked:
        marked = _marked(text, redactor.text(text, key=key)[0])
    return _code(_one_line(marked if key is None else (key, marked)), rule.type)


def _marked(before: str, after: str) -> str:
    """The text before redaction, with marks around the part that was replaced."""
    start = _count_shared(before, after)
    stop = len(before) - _count_shared(before[start:][::-1], after[start:][::-1])
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
    """An example in one line; a key stands before its value."""
    text = example if isinstance(example, str) else f"{example[0]}: {example[1]}"
    return text.strip("\n").replace("\n", "⏎")


def _code(text: str, kind: str) -> str:
    """``text`` as code in a table; a secret is cut, so that no scanner finds it."""
    if kind in _SECRET:
        text = _LONG.sub(lambda match: f"{match[0][:12]}…", text)
    text = text.replace("|", r"\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _check(rule: Rule) -> str:
    return f"`{rule.check.name}`" if rule.check else ""


def _checks(rules: Iterable[Rule]) -> Iterator[list[str]]:
    checks = {rule.check.name: rule.check for rule in rules if rule.check}
    for name, check in sorted(checks.items()):
        first_line = (check.function.__doc__ or "").partition("\n")[0]
        meaning = first_line.removesuffix(".")
        if meaning:
            yield [f"`{name}`", re.sub("``", "`", meaning)]


def _types(rules: Iterable[Rule]) -> Iterator[list[str]]:
    used = {rule.type for rule in rules}
    chinese = labels("zh", used)
    for kind in TYPES:
        if kind in used:
            yield [f"`{kind}`", f"`[{chinese[kind]}]`"]


def _rows(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for cells in rows:
        yield "".join(f"| {cell} " if cell else "| " for cell in cells) + "|\n"


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

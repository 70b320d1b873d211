"""The time of every regular expression grows at most in proportion to its text."""

from __future__ import annotations

import re

import pytest

from tests.redaction.expressions import (
    Expression,
    _patterns_in,
    expressions,
    growth,
)

# Expressions that would take more than that, and the most characters that they get.
_IDENTIFIER = 200  # ``identifiers._LONGEST``
_SENTENCE = 600  # ``constraints._LONGEST_SENTENCE``
_CELL = 64  # as ``COLUMN`` in judges.toml limits it
_BEGINNING = 400  # ``sessions._BEGINNING``
_EXAMPLE = 2_000  # of a policy, whose author writes it
_LINK = 128  # between a name and its value
_PATTERN = 512  # the source of a trigger or a class of the package's own rules
_BEFORE_NUMBER = 128  # ``json_numbers._BEFORE``
_NEAR = 48  # ``numbers._NEAR``
_ANSWER = 80  # ``limits.LONGEST_ANSWER``
_INLINE_OPTION = 200  # ``choices._LONGEST_INLINE``
_HAN_ADDRESS = 160  # the value of the rules for Chinese addresses
BOUNDED = {
    "secrets.BLOCK in judges.toml": _LINK,
    "extents.NAME in judges.toml": _CELL,
    "extents.BIRTH_COLUMN in judges.toml": _CELL,
    "extents.PERSON_COLUMN in judges.toml": _CELL,
    "numbers.MOBILES_BEFORE in judges.toml": _NEAR,
    "people.PLACE in judges.toml": _HAN_ADDRESS,
    "refold.projections.context.choices:_AGREES": _ANSWER,
    "refold.projections.context.choices:_JOINING_WORD": _INLINE_OPTION,
    "refold.projections.context.constraints:_CHINESE_CONSTRAINTS[3]": _SENTENCE,
    "refold.projections.context.constraints:_QUOTATION": _SENTENCE,
    "refold.projections.context.constraints:_POLITE_END": _SENTENCE,
    "refold.projections.context.constraints:_CLAUSE_BREAK": _SENTENCE,
    "refold.projections.context.constraints:_CONCLUSION": _SENTENCE,
    "refold.projections.context.constraints:_CHINESE_STATEMENT": _SENTENCE,
    "refold.projections.context.identifiers:_HASH": _IDENTIFIER,
    "refold.projections.context.identifiers:_ISSUE": _IDENTIFIER,
    "refold.projections.context.identifiers:_HOST": _IDENTIFIER,
    "refold.projections.memory.sessions:_FAILED": _BEGINNING,
    "refold.redaction.policy:_MARKED": _EXAMPLE,
    "refold.redaction.engines:_TAIL": _PATTERN,
    "refold.redaction.engines.vectorscan:_PART": _PATTERN,
    "refold.redaction.engines.vectorscan:_CLASS_OR_WAY": _PATTERN,
    "refold.redaction.json_numbers:_OWNER": _BEFORE_NUMBER,
    "refold.redaction.rules.secrets:_CLASS": _PATTERN,
    "refold.redaction.rules.secrets:_OPTIONAL": _PATTERN,
    "refold.redaction.scanner:_NO_LETTER": _PATTERN,
}
# These read summaries that Refold wrote: tags in recorded text are escaped there, so
# that each that is opened is closed.
OF_SUMMARIES = {
    "refold.projections.context.abridged:_LEDGER",
    "refold.projections.context.abridged:_LEDGER_PART",
    "refold.projections.context.abridged:_FAILURES",
    "refold.projections.context.abridged:_LIST_OF_TURN",
    "refold.projections.context.text:_TURN",
}
# Fewer would mean that the search for expressions misses some.
LEAST = 900


def _searched(source: str) -> Expression:
    pattern = re.compile(source)
    return Expression(
        "one of a test", source, lambda text: list(pattern.finditer(text))
    )


def test_time_grows_with_the_text_for_every_expression() -> None:
    faster: list[str] = []
    for expression in expressions():
        if expression.name in OF_SUMMARIES:
            continue
        longest = BOUNDED.get(expression.name, expression.longest)
        shown = growth(expression._replace(longest=longest))
        if shown:
            faster.append(f"{expression.name}: {shown}")

    names = {expression.name for expression in expressions()}
    assert len(names) >= LEAST
    assert names >= BOUNDED.keys() | OF_SUMMARIES
    assert faster == []


@pytest.mark.parametrize(
    "source",
    [
        r"\w+=",  # tried again at each character of a long word
        r"^[A-H]\**(?:\([^()\n]{1,40}\))?\**[.)]\S",  # two repeats divide the stars
        r"<a>.*?</a>",  # looks to the end from each beginning
        r"(?:a|aa)+b",  # many ways to divide a text
        r"(?:\s*-?\s*)*x",  # a repeat of a part that may be empty
        r"[aA]{0,20000}[bB]",  # a bound that is no bound
        r"data:(?:(?:\n|<br>) k:[^\n]{0,1024}){1,64}\nkind",  # a line end is in it
        r"v[0-9](?:[-x][0-9a-z]{1,8})*\Z",  # a separator is a letter, too
        r"(?:go(?: -[qQ])* )(?:\S+ )*\S*\.[qQ]",  # a class of rare letters
        r"\bgit(?: -[cC] \S+)* checkout (?:\S+ )*\S*\.x",  # a long part is repeated
    ],
)
def test_growth_faster_than_the_text_is_shown(source: str) -> None:
    assert growth(_searched(source))


@pytest.mark.parametrize(
    "source", [r"(?<!\w)\w++=", r"[0-9a-f]{7,64}", r"a{0,64}b", r"\s+|x"]
)
def test_growth_with_the_text_is_not_shown(source: str) -> None:
    assert not growth(_searched(source))


def test_expressions_in_containers_are_measured() -> None:
    pattern = re.compile(r"\w+=")

    assert list(_patterns_in({"a": (pattern, [pattern]), "b": "no pattern"})) == [
        pattern,
        pattern,
    ]
    names = {expression.name for expression in expressions()}
    assert "refold.projections.files.shell:_OPTIONS[0]" in names
    assert "refold.redaction.checks.extents:_cell(',')" in names


def test_expressions_that_are_texts_of_a_module_are_measured() -> None:
    names = {expression.name for expression in expressions()}

    assert "refold.projections.context.text:_TURN_TAG" in names

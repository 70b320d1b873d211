"""The reader of regular expressions agrees with ``re``, and writes back its input."""

from __future__ import annotations

import ast
import re
from itertools import chain
from pathlib import Path

import pytest

import refold
from refold.redaction.engines.syntax import BadSyntax, Op, parse, source_of
from refold.redaction.rules import PACKS
from refold.redaction.rules.rule import Rule
from tests.redaction.expressions import expressions

RULES = list(chain.from_iterable(PACKS.values()))


def test_every_expression_of_the_package_is_read() -> None:
    for expression in expressions():
        parsed = parse(expression.source)

        re.compile(source_of(parsed.items, parsed.flags))


@pytest.mark.parametrize("rule", RULES, ids=[rule.id for rule in RULES])
def test_a_written_expression_matches_the_same(rule: Rule) -> None:
    parsed = parse(rule.pattern)
    written = re.compile(source_of(parsed.items, parsed.flags))
    original = re.compile(rule.pattern)

    for example in (*rule.examples, *rule.counter_examples):
        text = example if isinstance(example, str) else example[1]
        text = re.sub("[«»]", "", text)
        matches = [match.regs for match in written.finditer(text)]

        assert matches == [match.regs for match in original.finditer(text)]


@pytest.mark.parametrize(
    ("source", "items"),
    [
        ("a", [(Op.LITERAL, 97)]),
        (r"\x41\u0042\103", [(Op.LITERAL, 65), (Op.LITERAL, 66), (Op.LITERAL, 67)]),
        ("[^a]", [(Op.NOT_LITERAL, 97)]),
        (
            "[]a-c-]",
            [(Op.IN, [(Op.LITERAL, 93), (Op.RANGE, (97, 99)), (Op.LITERAL, 45)])],
        ),
        ("a|b", [(Op.IN, [(Op.LITERAL, 97), (Op.LITERAL, 98)])]),
        ("ab|ac", [(Op.LITERAL, 97), (Op.IN, [(Op.LITERAL, 98), (Op.LITERAL, 99)])]),
        ("(?:a)", [(Op.LITERAL, 97)]),
        ("a{,3}", [(Op.GREEDY, (0, 3, [(Op.LITERAL, 97)]))]),
        ("a{2,}?", [(Op.LAZY, (2, 2**32 - 1, [(Op.LITERAL, 97)]))]),
        ("a++", [(Op.POSSESSIVE, (1, 2**32 - 1, [(Op.LITERAL, 97)]))]),
        ("a{", [(Op.LITERAL, 97), (Op.LITERAL, 123)]),
        ("(?x: a # b\n c)", [(Op.GROUP, (None, "x", "", parse("ac").items))]),
        (r"(?i)^\bx$", [(Op.AT, "^"), (Op.AT, r"\b"), (Op.LITERAL, 120), (Op.AT, "$")]),
        (
            "(?P<q>a)(?P=q)",
            [(Op.GROUP, (1, "", "", parse("a").items)), (Op.REFERENCE, 1)],
        ),
    ],
)
def test_items_show_what_an_expression_is_made_of(
    source: str, items: list[object]
) -> None:
    assert parse(source).items == items


@pytest.mark.parametrize(
    "source",
    [
        "(",
        ")",
        "a)",
        "[a",
        "a**",
        "*a",
        "^*",
        "a|*",
        "a{3,2}",
        "x{2}{3}",
        "(?P<n>a)(?P<n>b)",
        "(?P<1a>b)",
        "(?P=x)",
        r"\1",
        r"(a\1)",
        r"\q",
        r"\x4",
        "\\",
        "[z-a]",
        r"[\d-x]",
        "(?z)",
        "(?",
        "(?<=a",
        "a(?i)",
        r"\400",
        r"[\777]",
        "a{4294967295}",
        "a{2,4294967295}",
        "(?<=|a)",
        "(?<!a+)",
        r"(a*)(?<=\1)",
        "(?L:a)",
        "(?au:a)",
        "(?s-s:a)",
        "(?-:a)",
        "(?-a:b)",
    ],
)
def test_what_is_no_expression_for_python_is_none_here(source: str) -> None:
    with pytest.raises((re.error, OverflowError)):
        re.compile(source)
    with pytest.raises(BadSyntax):
        parse(source)


@pytest.mark.parametrize(
    "source",
    ["(?#c)(?x)a b", r"\377", "a{4294967294}", r"(ab)(?<=\1)", "(?<=a|b)c", "(?s-i:a)"],
)
def test_an_expression_for_python_is_one_here(source: str) -> None:
    re.compile(source)
    parse(source)


def test_references_refer_to_the_last_group_on_their_way() -> None:
    group = parse("(a|b)").items
    reference = (Op.REFERENCE, 1)
    twice = [(Op.BRANCH, [[*group, reference], [(Op.LITERAL, 99), *group, reference]])]

    written = re.compile(source_of(twice))

    assert written.fullmatch("aa")
    assert written.fullmatch("cbb")
    assert not written.fullmatch("cba")


def test_no_private_module_of_the_standard_library_is_used() -> None:
    private = re.compile(r"(?:re|asyncio|json|sre|email)\._\w+|sre_\w+|_[a-z]\w+")
    root = Path(refold.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str | None] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                "import_module"
            ):
                names = [ast.literal_eval(node.args[0])] if _is_text(node) else []

            for name in names:
                assert not private.fullmatch(name or ""), f"{path}: {name}"


def _is_text(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Constant)

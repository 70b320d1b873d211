"""For any rule pattern it is known which matches more text could change."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings, strategies as st

from refold.redaction.engines.patterns import (
    holds_space,
    reach,
    unfinished,
)
from refold.redaction.engines.syntax import UNBOUNDED
from refold.redaction.rules import PACKS
from refold.redaction.rules.rule import Rule

RULES = [rule for rules in PACKS.values() for rule in rules if rule.at == "gate"]
TEXTS = [
    (example if isinstance(example, str) else example[1]).translate(
        {ord("«"): None, ord("»"): None}
    )
    for rule in RULES
    for example in (*rule.examples, *rule.counter_examples)
]
BITS = [" ", "\n", "\\n", '"', "'", "=", ": ", "abcd1234", "\\", "%3D", "-----END"]
texts = st.lists(st.sampled_from([*TEXTS, *BITS]), min_size=1, max_size=3).map("".join)


@given(texts, texts, st.integers(0, 120), st.sampled_from(RULES))
@settings(deadline=None, max_examples=300)
def test_more_text_does_not_change_finished_matches(
    text: str, more: str, cut: int, rule: Rule
) -> None:
    text = text[: len(text) - cut] or text
    pattern = re.compile(rule.pattern)
    lower = text.lower()

    for literal in rule.gate:
        for place in (m.start() for m in re.finditer(re.escape(literal), lower)):
            if unfinished(rule.pattern).match(text, place):
                continue
            now = pattern.match(text, place)
            then = pattern.match(text + more, place)
            assert (now and now.regs) == (then and then.regs)


@pytest.mark.parametrize(
    ("pattern", "unsettled", "settled"),
    [
        ("ab{2,4}c", ["a", "ab", "abbb", "abbc"], ["ax", "ab ", "abbc ", "abbbbb."]),
        ("a(?!bc)", ["a", "ab", "abc"], ["ax", "abx"]),
        ("a(?=b{3})", ["a", "abb"], ["ax", "abbbx", "abx"]),
        (r"(['\"])x{1,3}\1", ["'", "'xx", "'x'"], ["'x' ", "'xxxxx", "x"]),
        ("(?P<q>')?a(?(q)'|;)", ["'a", "a"], ["'a;x", "a'x", "b"]),
        ("a(?>b|bc)d", ["ab", "abc"], ["abx", "abce", "abdx"]),
        ("a(?:b|c){0,9}+d", ["abcb", "a"], ["abcx", "abdx"]),
        ("a(?<=a)b", ["a"], ["ac", "abx"]),
        ("(?ai:secret)=", ["SEC", "sec", "SeCret"], ["SECx", "seq"]),
        ("(?i:a(?-i:bc)d)", ["A", "Ab", "Abc"], ["AB", "AbcDx"]),
        ("(?s:a.b)c", ["a\n", "a\nb"], ["a\nc"]),
        ("(?x:a b c)d", ["ab", "abc"], ["a b"]),
        ("abc$", ["ab", "abc", "abc\n"], ["abcd", "abc\n\n", "ab\n"]),
    ],
)
def test_a_match_that_reaches_the_end_is_unfinished(
    pattern: str, unsettled: list[str], settled: list[str]
) -> None:
    reaching = unfinished(pattern)

    assert [text for text in unsettled if not reaching.match(text)] == []
    assert [text for text in settled if reaching.match(text)] == []


@pytest.mark.parametrize(
    ("pattern", "characters"),
    [
        ("abc", 3),
        ("a{2,5}[xy]", 6),
        ("a(?=b{7})", 8),
        ("a(?!b{7})(?<=c{9})", 8),
        ("(?:ab|c{4})?(?>d)e{1,2}+", 7),
        (r"(a{3})\1(?(1)b|cc)", 8),
        (r"^\bx+?$", UNBOUNDED),
    ],
)
def test_reach_is_how_far_a_pattern_looks(pattern: str, characters: int) -> None:
    assert reach(pattern) == characters


@pytest.mark.parametrize(
    ("pattern", "may"),
    [
        ("[A-Za-z]{2}", False),
        (r"(?<= )a(?! )", False),
        (r"(?a:\w{1,8}|[.\-]+)", False),
        ("(?:a|b c)", True),
        ("a[^b]?", True),
        (r"(?:a\s{0,2}){1,4}", True),
        (r"(?>a.)", True),
        (r"(\W)\1", True),
    ],
)
def test_whether_a_match_may_hold_a_space_is_known(pattern: str, may: bool) -> None:
    assert holds_space(pattern) is may

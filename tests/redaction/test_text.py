"""Redaction of text: one pass is enough, placeholders stay, look-alikes do not hide."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from refold.domain.placeholders import PLACEHOLDER
from refold.redaction.engines.fold import fold
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from refold.redaction.rules.rule import Rule
from refold.redaction.values import Tally
from tests.redaction.samples import (
    NOISE,
    PLACEHOLDERS,
    PLANTED,
    Planted,
    keys,
    pii,
    texts,
)

redactor = Redactor()


def redacted(text: str, key: str | None = None) -> str:
    return redactor.text(text, key=key)[0]


@given(texts, st.none() | keys)
@settings(deadline=None)
def test_a_second_pass_changes_nothing(text: str, key: str | None) -> None:
    once = redacted(text, key)

    assert redactor.text(once, key=key) == (once, Tally())


@given(texts)
@settings(deadline=None)
def test_counts_are_of_the_placeholders_that_were_put(text: str) -> None:
    clean, counts = redactor.text(text)

    put = Counter(match.group() for match in PLACEHOLDER.finditer(clean))
    put.subtract(match.group() for match in PLACEHOLDER.finditer(text))
    assert +put == {f"[REDACTED:{kind}]": n for kind, n in counts.types.items()}


@given(texts)
@settings(deadline=None)
def test_placeholders_that_were_there_stay_in_order(text: str) -> None:
    left = iter(match.group() for match in PLACEHOLDER.finditer(redacted(text)))

    assert all(match.group() in left for match in PLACEHOLDER.finditer(text))


@given(st.sampled_from(PLACEHOLDERS), pii, pii)
@settings(deadline=None)
def test_a_placeholder_is_a_barrier(placeholder: str, left: str, right: str) -> None:
    assert redacted(left + placeholder + right) == (
        redacted(left) + placeholder + redacted(right)
    )


def test_a_word_before_a_placeholder_is_no_context_for_what_follows() -> None:
    assert redacted("学号：[REDACTED:STUDENT_ID] 2021001234").endswith(" 2021001234")


@pytest.mark.parametrize("planted", PLANTED)
def test_a_clean_text_is_returned_itself(planted: Planted) -> None:
    text = redacted(planted.text)

    assert redacted(text) is text


@pytest.mark.parametrize("text", NOISE)
def test_output_of_tools_stays_unchanged(text: str) -> None:
    assert redactor.text(text) == (text, Tally())


@given(st.lists(st.sampled_from(NOISE), max_size=6).map("\n".join))
@settings(deadline=None)
def test_joined_output_of_tools_stays_unchanged(text: str) -> None:
    assert redacted(text) is text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("手机１３９１２３４５６７０。", "手机[REDACTED:PHONE]。"),
        ("bob＠example．com", "[REDACTED:EMAIL]"),
        ("139\u200b1234\u200b5670", "[REDACTED:PHONE]"),
        ("139\u00a01234\u20115670!", "[REDACTED:PHONE]!"),
        ("\ufeff密\u200b码：hunter2x", "\ufeff密\u200b码：[REDACTED:SECRET]"),
        (r"\u5bc6\u7801\uff1aabc12345", r"\u5bc6\u7801\uff1a[REDACTED:SECRET]"),
        (r"tel \u0031\u0033\u003912345670", r"tel [REDACTED:PHONE]"),
        ("call 𝟏𝟑𝟗𝟏𝟐𝟑𝟒𝟓𝟔𝟕𝟎 now", "call [REDACTED:PHONE] now"),
        ("tel=%31%33%39%31%32%33%34%35%36%37%30", "tel=[REDACTED:PHONE]"),
        ("a %61%64%61%40%65%78%61%6d%70%6c%65%2e%6f%72%67", "a [REDACTED:EMAIL]"),
        (
            "password: &#98;&#101;&#97;&#114;&#45;&#55;&#55;&#81;",
            "password: [REDACTED:SECRET]",
        ),
        (
            "%70%61%73%73%77%64=%62%65%61%72%2d%37%37%51",
            "%70%61%73%73%77%64=[REDACTED:SECRET]",
        ),
    ],
)
def test_other_spellings_do_not_hide_a_value(text: str, expected: str) -> None:
    assert redacted(text) == expected


pieces = st.sampled_from(
    [
        *"a1\u200b\ufeff　－Ａ\\\n中𝟏𝗮",
        "\\u0041",
        "%31%32%33",
        "&#98;&#x61;",
        "%e5",
        "&#",
    ]
)


@given(st.lists(pieces, max_size=40).map("".join))
def test_folding_can_be_reversed(text: str) -> None:
    folded = fold(text)

    spans = [folded.span(at, at + 1) for at in range(len(folded.text))]
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_the_most_specific_of_two_rules_names_a_finding() -> None:
    assert redacted("api_key=ghp_q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6CgTuEaX") == (
        "api_key=[REDACTED:API_KEY]"
    )
    assert redacted("https://ada:hunter2@example.com/x") == (
        "https://ada:[REDACTED:URL_CREDENTIAL]@example.com/x"
    )


def test_nothing_of_two_findings_that_overlap_survives() -> None:
    rules = (
        Rule(id="a", type="LEFT", pattern="one two", gate=("one",), priority=1),
        Rule(id="b", type="RIGHT", pattern="two three", gate=("two",), priority=2),
    )

    assert Redactor(Plan(rules=rules)).text("one two three")[0] == "[REDACTED:RIGHT]"


def test_a_longer_finding_names_the_type_among_equals() -> None:
    rules = (
        Rule(id="a", type="SHORT", pattern="two", gate=("two",)),
        Rule(id="b", type="LONG", pattern="one two", gate=("one",)),
    )

    assert Redactor(Plan(rules=rules)).text("one two")[0] == "[REDACTED:LONG]"


def test_a_value_that_appears_when_its_neighbour_is_replaced_is_found() -> None:
    rules = (
        Rule(id="a", type="A", pattern="aa", gate=("a",), priority=1),
        Rule(id="b", type="B", pattern=r"(?<![a-z])b", gate=("b",)),
    )

    assert Redactor(Plan(rules=rules)).text("aab")[0] == "[REDACTED:A][REDACTED:B]"


def test_an_endlessly_matching_text_is_redacted_completely() -> None:
    peel = Rule(id="a", type="A", pattern=r"a(?!a)", gate=("a",))

    clean, _ = Redactor(Plan(rules=(peel,), work_per_kb=0)).text("a" * 100)

    assert not clean.replace("[REDACTED:A]", "")


@pytest.mark.parametrize(
    "key", ["phone", "phoneNumber", "mobile_no", "联系电话", "home phone"]
)
def test_a_key_gives_context(key: str) -> None:
    assert redacted("4155550132", key) == "[REDACTED:PHONE]"


@pytest.mark.parametrize(
    "key", ["id", "phone_calls", "telemetry", "iphone_model_x", "n"]
)
def test_another_key_gives_none(key: str) -> None:
    assert redacted("4155550132", key) == "4155550132"


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[33m{}\x1b[0m",
        "\x1b[1;31mtel:\x1b[m \x1b[K{}",
        "**{}**",
        "| {} |",
        "\\u001b[33m{}\\u001b[0m",
    ],
)
@pytest.mark.parametrize("value", ["13912345670", "a@example.org", "4111111111111111"])
def test_colours_and_markdown_hide_nothing(text: str, value: str) -> None:
    assert value not in redacted(text.format(value), None)


def test_a_password_in_markdown_is_found() -> None:
    assert "hunter2x" not in redacted("**Password:** hunter2x", None)
    assert "hunter2x" not in redacted("| **Password** | hunter2x |", None)


def test_variation_selectors_hide_nothing() -> None:
    assert redacted("139\ufe0f12345670", None) == "[REDACTED:PHONE]"

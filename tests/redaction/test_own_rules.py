"""A rule of a policy finds what its pattern matches, wherever an engine tries it."""

import re

import pytest
from hypothesis import assume, given, settings, strategies as st

from refold.redaction.engines.patterns import BadPattern, Pattern
from refold.redaction.plan import Plan
from refold.redaction.policy import OwnRule, Wrong, rule_of
from refold.redaction.redactor import Redactor
from refold.redaction.rules.rule import Rule

LITERALS = st.sampled_from(["abc", "BDG-", "工号", "No.", "x", "#", "ID:"])
CLASSES = st.sampled_from([r"\d", "[A-Z]", "[a-f0-9]", r"\w", "[^ ]", "[- ]", "."])
COUNTS = st.sampled_from(["", "?", "{2}", "{6}", "{1,4}", "{0,3}", "{4,9}"])
ATOMS = st.one_of(
    LITERALS.map(re.escape), st.tuples(CLASSES, COUNTS).map("".join), st.just(r"\b")
)
SEQUENCES = st.lists(ATOMS, min_size=1, max_size=4).map("".join)
GROUPS = st.one_of(
    SEQUENCES,
    st.lists(SEQUENCES, min_size=2, max_size=3).map(
        lambda parts: f"(?:{'|'.join(parts)})"
    ),
    st.tuples(SEQUENCES, st.sampled_from(["{1,3}", "{2}", "?"])).map(
        lambda pair: f"({pair[0]}){pair[1]}"
    ),
)
TELLING = st.sampled_from(
    ["abc", "BDG-", "工号", r"\d{6}", "(?:abc|BDG)", "(ID:){1,2}"]
)
PATTERNS = st.tuples(GROUPS | st.just(""), TELLING, GROUPS | st.just("")).map("".join)
ALPHABET = "".join(map(chr, range(32, 127))) + "\n工号是。"


def rule_with_pattern(pattern: str, **changed: object) -> Rule:
    keys: dict[str, object] = {
        "id": "org.x",
        "type": "XYZ",
        "pattern": pattern,
        "examples": ("",),
    }
    return rule_of(OwnRule.model_validate(keys | changed), min_score=0.6)


@settings(max_examples=30)
@given(PATTERNS, st.data())
def test_matches_of_a_pattern_are_found(pattern: str, data: st.DataObject) -> None:
    try:
        rule = rule_with_pattern(pattern)
    except Wrong:
        assume(False)
    plain = re.compile(pattern, re.ASCII)
    value = data.draw(st.from_regex(plain, fullmatch=True, alphabet=ALPHABET))
    before = data.draw(st.sampled_from(["", " ", "是", "see: ", "\n"]))
    after = data.draw(st.sampled_from(["", " ", "。", ", 7"]))
    text = f"{before}{value}{after}"
    assume(any(match.group() for match in plain.finditer(text)))

    redacted_text, tally = Redactor(Plan(rules=(rule,), engine="stdlib")).text(text)

    assert tally.n, (pattern, rule, text, redacted_text)


@settings(max_examples=30)
@given(PATTERNS, st.data())
def test_lengths_and_anchors_of_a_pattern_hold_for_its_matches(
    pattern: str, data: st.DataObject
) -> None:
    try:
        parsed = Pattern(pattern)
    except BadPattern:
        assume(False)

    plain = re.compile(pattern, re.ASCII)
    value = data.draw(st.from_regex(plain, fullmatch=True, alphabet=ALPHABET))

    assert parsed.shortest <= len(value) <= parsed.longest
    for anchor in parsed.anchors():
        assert anchor.before + anchor.rest == parsed.source
        assert any(literal in value.lower() for literal in anchor.literals)


@pytest.mark.parametrize(
    ("pattern", "named"),
    [("BDG-(?P<value>[0-9]{4})", True), (r"BDG-\(?P<value>[0-9]{4}", False)],
)
def test_only_a_group_is_the_value_of_a_pattern(pattern: str, named: bool) -> None:
    assert Pattern(pattern).named is named


@pytest.mark.parametrize(
    ("pattern", "at", "gate"),
    [
        (r"\bBDG-\d{4}\b", "gate", ("bdg-",)),
        (r"(?:BDG|STAFF)-\d{4}", "gate", ("bdg-", "staff-")),
        (r"(?:abc-){1,3}\d", "gate", ("abc-",)),
        (r"x{3}\d", "gate", ("xxx",)),
        (r"[ab]12[cd]\d", "gate", ("a12c", "a12d", "b12c", "b12d")),
        (r"工号\d", "gate", ("工号",)),
        (r"\d{2}-acme", "gate", ("-acme",)),
        (r"\bE\d{6}\b", "digits", ()),
        (r"(?:\d{4}[- ]?){4}", "digits", ()),
    ],
)
def test_a_pattern_is_tried_at_its_rarest_literal(
    pattern: str, at: str, gate: tuple[str, ...]
) -> None:
    rule = rule_with_pattern(pattern)

    assert (rule.at, rule.gate) == (at, gate)


@pytest.mark.parametrize(
    ("pattern", "value"),
    [("key[aé]-[0-9]{4}", "keyé-1234"), ("([abcdef][abcdef])xyz[0-9]{4}", "cdxyz1234")],
)
def test_a_partly_known_character_class_is_no_literal(pattern: str, value: str) -> None:
    redactor = Redactor(Plan(rules=(rule_with_pattern(pattern),), engine="stdlib"))

    assert redactor.text(f"it is {value}.")[0] == "it is [REDACTED:XYZ]."


def test_a_trigger_chooses_the_place() -> None:
    pattern = r"acme-\d{2}-long-literal"

    assert rule_with_pattern(pattern).gate == ("-long-literal",)
    assert rule_with_pattern(pattern, trigger=("ACME-",)).gate == ("acme-",)


def test_words_narrow_where_digits_are_tried_only_if_a_value_needs_them() -> None:
    by_itself = rule_with_pattern(r"\bE\d{6}\b", context=("employee",))
    needing = rule_with_pattern(
        r"\bE\d{6}\b", context=("employee",), context_required=True
    )
    text = "badge E123456 of an employee E765432"

    counts = [
        Redactor(Plan(rules=(rule,), engine="stdlib")).text(text)[1].n
        for rule in (by_itself, needing)
    ]

    assert counts == [2, 1]


@pytest.mark.parametrize(
    "pattern",
    [r"\d{3}-\d{2}", r"\d{5}", r"(?:ab|c)\d", r"abc?|\d{9}", r"\d{3} {4}\d{3}", "É{3}"],
)
def test_a_pattern_that_could_stand_anywhere_is_refused(pattern: str) -> None:
    with pytest.raises(Wrong, match="tried nowhere"):
        rule_with_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        (r"\bBDG-\d{4}\b", "BDG-4711"),
        (r"工号[:：]\s{0,2}(?P<value>\d{4})", "工号： 4711"),
        (r"\b[a-z]{2,8}@acme:\d{2}\b", "lin@acme:77"),
        (r"\bE\d{6}\b", "E123456"),
        (r"(?:\d{4}[- ]?){4}", "4711 0815 4711-0815"),
        (r"(?i)grüne-bdg-\d{2}", "grüne-BDG-44"),
    ],
)
def test_every_engine_finds_the_same(pattern: str, value: str) -> None:
    rule = rule_with_pattern(pattern)
    text = f"是{value}, ({value}) {value.upper()}\n１２３ \\n{value}"
    plain = Redactor(Plan(rules=(rule,), engine="stdlib"))
    other = Redactor(Plan(rules=(rule,), engine="vectorscan"))

    assert plain.text(text)[1].n >= 2
    assert other.text(text) == plain.text(text)

"""A policy defines the redaction; an invalid policy is reported with its line."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from pydantic_core import PydanticUndefined

from refold.redaction.guard import Limits
from refold.redaction.policy import (
    Allow,
    LimitsPart,
    OwnRule,
    Part,
    Policy,
    PolicyError,
    RecognizerPart,
    Scan,
    SkipPart,
    TypePart,
)
from refold.redaction.redactor import Redactor
from refold.redaction.rules import DEFAULT_PACKS, PACKS
from refold.redaction.types import TYPES, canonical, labels, well_formed

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = (DOCS / "reference" / "policy.md").read_text("utf-8")

BADGE = r"""version = 1
engine = "stdlib"
[[rules]]
id = "org.badge"
type = "BADGE"
pattern = '\bBDG-[A-Z]{2}\d{4}\b'
examples = ["badge «BDG-QX4711»."]
counter_examples = ["BDG-4711"]
"""


COMPLETE = """
[scan]
keys = false
numbers = "never"
nested_json = false
max_leaf_bytes = 4096
budget_ms = 250
[skip]
pointers = ["/meta/*/a~1b", "/t~0"]
keys = ["sha256"]
[allow]
values = ["127.0.0.1"]
[types.EMAIL_ADDRESS]
action = "drop_leaf"
[labels]
EMAIL = "mail_removed"
[limits]
leaf_bytes = 2048
event_bytes = 8192
"""


def redacted(policy: str, text: str, key: str | None = None) -> str:
    return Redactor(Policy.parse(policy).plan()).text(text, key=key)[0]


def rule(**changed: str) -> str:
    """A policy with one rule; a value is the text of a TOML value, empty: left out."""
    keys = {
        "id": '"org.badge"',
        "type": '"BADGE"',
        "pattern": r"'\bBDG-[A-Z]{2}\d{4}\b'",
        "examples": '["BDG-QX4711"]',
    }
    lines = [f"{key} = {value}" for key, value in (keys | changed).items() if value]
    return "\n".join(["version = 1", 'engine = "stdlib"', "[[rules]]", *lines])


def test_left_out_all_is_as_by_default() -> None:
    policy = Policy.parse("version = 1")

    assert policy.packs == DEFAULT_PACKS
    assert policy.plan().rules == tuple(
        r for name in DEFAULT_PACKS for r in PACKS[name]
    )
    assert policy.limits() == Limits()
    assert policy.plan().numbers == "contextual"


def test_every_table_reaches_the_plan() -> None:
    policy = Policy.parse(
        """
        version = 1
        name = "acme.dev"
        packs = ["secrets"]
        engine = "stdlib"
        min_score = 0.7
        pseudonyms = true
        on_error = "drop_leaf"
        audit = "paths"
        """
        + COMPLETE
    )

    plan = policy.plan()

    assert plan.name == "acme.dev"
    assert plan.rules == PACKS["secrets"]
    assert (plan.engine, plan.min_score, plan.pseudonyms) == ("stdlib", 0.7, True)
    assert (plan.on_error, plan.audit) == ("drop_leaf", "paths")
    assert (plan.keys, plan.numbers, plan.nested_json) == (False, "never", False)
    assert (plan.max_leaf_bytes, plan.budget_ms) == (4096, 250)
    assert plan.skip == {("meta", "*", "a/b"), ("t~",)}
    assert plan.skip_keys == {"sha256"}
    assert plan.allow_values == {"127.0.0.1"}
    assert plan.actions == {"EMAIL": "drop_leaf"}
    assert plan.labels == {"EMAIL": "mail_removed"}
    assert policy.limits() == Limits(2048, 8192)


BAD = [
    ("version = 1\nname = ", 2, "not TOML"),
    ("version = 1\n[scan]\nkeys = true\nkeys = true", 4, "not TOML"),
    ("version = 1\n\n[[rules]", 3, "not TOML"),
    ('name = "a"', 1, "version = 1 is missing"),
    ("# one\nversion = 2", 2, "should be 1"),
    ("version = 1\ncolour = 'red'", 2, "there is no key 'colour' here, only version"),
    ("version = 1\n[scan]\ndeep = true", 3, "only keys, numbers"),
    ("version = 1\n[limits]\nleaf = 1", 3, "only leaf_bytes, event_bytes"),
    ("version = 1\n[types.EMAIL]\ndo = 'keep'", 3, "only action"),
    ("version = 1\n[vault]\nkeep = 1", 3, "only types, days"),
    ('version = 1\nname = "A name"', 2, "name"),
    ('version = 1\nengine = "hyper"', 2, "'vectorscan'"),
    ('version = 1\nengine = "re2"', 2, "it should be 'auto', 'vectorscan' or 'stdlib'"),
    ("version = 1\nmin_score = 0", 2, "greater than 0"),
    ("version = 1\nmin_score = nan", 2, "min_score"),
    ('version = 1\nmin_score = "0.6"', 2, "valid number"),
    ('version = 1\npseudonyms = "yes"', 2, "valid boolean"),
    ('version = 1\non_error = "pass"', 2, "'block' or 'drop_leaf'"),
    ('version = 1\naudit = "all"', 2, "'silent'"),
    ('version = 1\npacks = "secrets"', 2, "valid array"),
    ('version = 1\npacks = [\n  "secrets",\n  # more\n  "pii-xx",\n]', 5, "pii-us"),
    ('version = 1\nscan.numbers = "some"', 2, "'contextual'"),
    ("version = 1\n[scan]\nbudget_ms = -1", 3, "greater than or equal to 0"),
    ("version = 1\nscan = 3", 2, "scan"),
    ('version = 1\n[skip]\npointers = ["meta"]', 3, "begins with /"),
    ('version = 1\n[skip]\npointers = [\n"/a",\n"/*/*"]', 5, "everything alone"),
    ('version = 1\n[skip]\npointers = [""]', 3, "begins with /"),
    ("version = 1\n[allow]\nregex = ['(']", 3, "not a regular expression"),
    ("version = 1\n[allow]\nregex = ['(a+)+']", 3, "too many ways"),
    ("version = 1\n[allow]\nregex = ['(?:a+){1,16}b']", 3, "too many ways"),
    ("version = 1\n[allow]\nregex = ['a', '(?=b)c']", 3, "ahead or behind"),
    ('version = 1\n\n[types.EMIAL]\naction = "keep"', 3, "no type EMIAL"),
    ('version = 1\n[types.EMAIL]\naction = "drop"', 3, "'drop_leaf'"),
    (
        "version = 1\n[types.IP]\naction = 'keep'\n[types.IP_ADDRESS]\naction = 'keep'",
        4,
        "IP is here already",
    ),
    ("\ufeffversion = 1\nx = 1", 2, "no key 'x'"),
    ("version = 1\npacks = " + "[" * 5000, 1, "nested too deep"),
    ('version = 1\n[labels]\nlocale = "xx"', 3, "en, zh"),
    ('version = 1\n[labels]\nEMAIL = "a b"', 3, "a label has"),
    ('version = 1\n[labels]\nEMAIL = "REDACTED:PHONE"', 3, "a label has"),
    ('version = 1\n[labels]\nEMIAL = "gone"', 3, "no type EMIAL"),
    ("version = 1\n[limits]\nleaf_bytes = 100", 2, "at least 1024"),
    ('version = 1\n[recognizer]\non_failure = "pass"', 3, "'closed' or 'open'"),
]


@pytest.mark.parametrize(("text", "line", "reason"), BAD)
def test_a_bad_policy_names_its_line_and_reason(
    text: str, line: int, reason: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy.parse(text, where="acme.toml")

    assert (caught.value.where, caught.value.line) == ("acme.toml", line)
    assert reason in caught.value.reason
    assert str(caught.value).startswith(f"acme.toml line {line}: ")


BAD_RULES = [
    ({"id": '"Org Badge"'}, 4, "an id is made of"),
    ({"id": '"email"'}, 4, "another rule"),
    ({"id": ""}, 3, "missing"),
    ({"type": '"badge no"'}, 5, "a type is"),
    ({"type": '"B"'}, 5, "a type is"),
    ({"pattern": "'BDG-['"}, 6, "not a regular expression"),
    ({"pattern": "'BDG-.*'"}, 6, "no bound"),
    ({"pattern": "'BDG-[0-9]+'"}, 6, "no bound"),
    ({"pattern": r"'(?<=x)BDG-\d'"}, 6, "ahead or behind"),
    ({"pattern": r"'BDG-(\d)\1'"}, 6, "refers back"),
    ({"pattern": r"'^BDG-\d'"}, 6, "anchor"),
    ({"pattern": r"'BDG-\d++'"}, 6, "possessive"),
    ({"pattern": r"'(?i)(?x)BDG-\d'"}, 6, "flag other than i, m and s"),
    ({"pattern": r"'(?i)(?u)BDG-\d'"}, 6, "flag other than i, m and s"),
    ({"pattern": r"'BDG-\d{600}'"}, 6, "604 characters"),
    ({"pattern": r"'BDG-(?:\w{1,9}){1,9}'"}, 6, "too many ways"),
    ({"pattern": r"'BDG-\w{1,99}\w{1,99}\w{1,99}x'"}, 6, "too many ways"),
    ({"pattern": "'(?:BDG)?'"}, 6, "empty text"),
    ({"pattern": r"'B\d{4}'"}, 6, "same 3 characters"),
    ({"pattern": r"'[A-Z]{20}\d{6}'"}, 6, "too far from its digits"),
    ({"pattern": "'工号：\\d{4}'"}, 6, "may also be written :"),
    ({"examples": "[]"}, 7, "at least 1"),
    ({"examples": '["nothing"]'}, 7, "finds nothing"),
    ({"examples": '[\n"BDG-QX4711",\n"none"]'}, 9, "finds nothing"),
    ({"examples": '["BDG-«QX4711»"]'}, 7, "something else than what is «marked»"),
    ({"counter_examples": '["no", "a BDG-QX4711"]'}, 8, "finds a value in it"),
    ({"validator": '"crc"'}, 8, "luhn"),
    ({"trigger": '["badge"]'}, 8, "stands in every match"),
    ({"context_required": "true"}, 8, "needs words"),
    ({"context": '[""]'}, 8, "empty"),
    ({"context": '["badge"]', "window": "65"}, 9, "less than or equal to 64"),
    ({"score": "0.3"}, 8, "its best score is 0.3"),
    ({"score": "1.5"}, 8, "less than or equal to 1"),
    ({"flags": '"i"'}, 8, "there is no key 'flags'"),
]


@pytest.mark.parametrize(("changed", "line", "reason"), BAD_RULES)
def test_a_bad_rule_names_its_line_and_reason(
    changed: dict[str, str], line: int, reason: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy.parse(rule(**changed))

    assert reason in caught.value.reason
    assert caught.value.line == line


def test_a_fault_in_the_second_rule_is_not_blamed_on_the_first() -> None:
    second = BADGE.partition("stdlib")[2].removeprefix('"')

    with pytest.raises(PolicyError, match="there is another rule") as caught:
        Policy.parse(BADGE + second)

    assert caught.value.line == 11


VALUES = st.sampled_from(
    [
        "0",
        "-1",
        "1e400",
        "nan",
        "true",
        '""',
        '"*"',
        "[]",
        "[1]",
        '["/"]',
        "{}",
        "{ a = 1 }",
        "1979-05-27",
        '"\\u0000"',
        "'x{1,9}'",
        "99999999999999999999999",
    ]
)


@settings(max_examples=60)
@given(st.data())
def test_every_policy_error_names_a_line(data: st.DataObject) -> None:
    lines = (BADGE + COMPLETE).splitlines()
    for _ in range(data.draw(st.integers(1, 2))):
        index = data.draw(st.integers(0, len(lines) - 1))
        match data.draw(st.sampled_from(["delete", "double", "value", "key"])):
            case "delete":
                del lines[index]
            case "double":
                lines.insert(index, lines[index])
            case "value":
                lines[index] = f"{lines[index].split('=')[0]}= {data.draw(VALUES)}"
            case "key":
                lines[index] = f"x{lines[index]}"

    try:
        outcome = Policy.parse("\n".join(lines)).plan().fingerprint
        line = 1
    except PolicyError as error:
        outcome = error.reason
        line = error.line

    assert outcome
    assert 1 <= line <= len(lines)


@given(st.text())
def test_texts_that_are_no_policy_are_refused(text: str) -> None:
    with pytest.raises(PolicyError):
        Policy.parse(text)


def test_an_own_rule_redacts() -> None:
    assert redacted(BADGE, "my BDG-QX4711, not BDG-47") == (
        "my [REDACTED:BADGE], not BDG-47"
    )


def test_only_the_group_value_is_redacted() -> None:
    policy = rule(
        pattern=r"'\bBDG-(?P<value>[A-Z]{2}\d{4})\b'", examples='["BDG-«QX4711»"]'
    )

    assert redacted(policy, "BDG-QX4711") == "BDG-[REDACTED:BADGE]"


@pytest.mark.parametrize("badge", ["BDG-QX4711", "STAFF-QX4711"])
def test_a_pattern_may_begin_in_several_ways(badge: str) -> None:
    policy = rule(pattern=r"'\b(?:BDG|STAFF)-[A-Z]{2}\d{4}\b'")

    assert redacted(policy, f"it is {badge}.") == "it is [REDACTED:BADGE]."


def test_a_literal_may_stand_in_the_middle() -> None:
    policy = rule(pattern=r"'\b[a-z]{2,8}@acme:\d{2}\b'", examples='["«ada@acme:12»"]')

    assert redacted(policy, "by lin@acme:77") == "by [REDACTED:BADGE]"


def test_case_is_ignored_if_the_pattern_says_so() -> None:
    policy = rule(pattern=r"'(?i)\bBDG-[A-Z]{2}\d{4}\b'")

    assert redacted(policy, "bdg-qx4711") == "[REDACTED:BADGE]"
    assert redacted(BADGE, "bdg-qx4711") == "bdg-qx4711"


def test_words_and_digits_are_those_of_ascii() -> None:
    policy = rule(pattern=r"'\bBDG-\w{4}\b'", examples='["BDG-QX47"]')

    assert redacted(policy, "是BDG-QX47是") == "是[REDACTED:BADGE]是"


CONTEXT = {
    "pattern": r"'\bE\d{6}\b'",
    "examples": '["工号: E123456"]',
    "context": '["工号", "employee no"]',
    "context_required": "true",
}


@pytest.mark.parametrize(
    ("text", "key", "is_redacted"),
    [
        ("工号：E123456", None, True),
        ("Employee no. of the lady: E123456", None, True),
        ("employee_no=E123456", None, True),
        ("E123456", "employee_no", True),
        ("E123456", None, False),
        ("E123456 is no 工号", None, False),
        ("employee no of whoever was there then: E123456", None, False),
    ],
)
def test_required_context_must_be_within_the_window(
    text: str, key: str | None, is_redacted: bool
) -> None:
    assert (redacted(rule(**CONTEXT), text, key) != text) is is_redacted


def test_context_lifts_a_score() -> None:
    policy = rule(**{**CONTEXT, "context_required": "false", "score": "0.3"})
    certain = rule(**{**CONTEXT, "context_required": "false", "score": "0.8"})

    assert redacted(policy, "E123456 工号 E123456") == "E123456 工号 [REDACTED:BADGE]"
    assert "E123456" not in redacted(certain, "E123456 工号 E123456")


def test_a_validator_refuses_matches_of_the_pattern() -> None:
    policy = rule(
        pattern=r"'\bPAY-\d{8}\b'", validator='"luhn"', examples='["PAY-12345674"]'
    )

    assert (
        redacted(policy, "PAY-12345674 PAY-12345675") == "[REDACTED:BADGE] PAY-12345675"
    )


def test_a_type_may_have_another_systems_name() -> None:
    policy = rule(type='"PHONE_NUMBER"', examples='["«BDG-QX4711»"]')

    assert redacted(policy, "BDG-QX4711") == "[REDACTED:PHONE]"


def test_a_type_of_an_own_rule_can_be_kept() -> None:
    policy = BADGE + '[types.BADGE]\naction = "keep"'

    assert redacted(policy, "BDG-QX4711") == "BDG-QX4711"


def test_an_allowed_value_is_no_finding() -> None:
    policy = BADGE + "[allow]\nregex = ['BDG-ZZ.+']\nvalues = ['BDG-AA0000']"

    text = "BDG-ZZ1234 BDG-AA0000 BDG-QX4711"

    assert redacted(policy, text) == "BDG-ZZ1234 BDG-AA0000 [REDACTED:BADGE]"


def test_labels_follow_the_locale_unless_a_type_has_its_own() -> None:
    policy = """
        version = 1
        engine = "stdlib"
        [labels]
        locale = "zh"
        EMAIL_ADDRESS = "邮件-已删除"
    """

    clean = redacted(policy, "手机 13912345670, lin.wei@campus-mail.test")

    assert clean == "手机 [手机号_已脱敏], [邮件-已删除]"


@pytest.mark.parametrize("own", [BADGE, rule(**CONTEXT)])
def test_a_second_pass_changes_nothing(own: str) -> None:
    policy = own + '\n[labels]\nlocale = "zh"'
    text = "工号：E123456 BDG-QX4711 手机 13912345670"

    once = redacted(policy, text)

    assert once != text
    assert redacted(policy, once) == once


def test_packs_can_be_chosen_without_a_file() -> None:
    policy = Policy.of_packs(["secrets"])

    assert policy.plan().rules == PACKS["secrets"]
    with pytest.raises(PolicyError, match="no pack of that name: pii-common"):
        Policy.of_packs(["secret"])
    with pytest.raises(PolicyError, match="no pack of that name"):
        policy.with_packs(["all"])
    with pytest.raises(PolicyError, match="at least 1024"):
        Policy.model_validate({"limits": {"leaf_bytes": 1}}).limits()


def test_a_policy_cannot_be_changed() -> None:
    policy = Policy.parse(BADGE)

    with pytest.raises(ValueError, match="frozen"):
        policy.name = "other"  # type: ignore[misc]  # the error is the test


def test_the_rule_set_distinguishes_policies() -> None:
    other = BADGE.replace("QX4711", "QX4712").replace("{4}", "{4,5}")

    names = {Redactor(Policy.parse(text).plan()).rule_set for text in (BADGE, other)}

    assert len(names) == 2


@pytest.mark.parametrize("pack", PACKS)
def test_each_pack_proves_its_examples_and_has_known_types(pack: str) -> None:
    policy = Policy.of_packs([pack])

    assert {rule.type for rule in policy.plan().rules} <= set(TYPES)


def test_no_two_types_share_a_name_or_a_label() -> None:
    names = [name for known in TYPES.values() for name in (known.name, *known.aliases)]
    spoken = labels("zh", TYPES)

    assert len(names) == len(set(names))
    assert all(map(well_formed, TYPES))
    assert len(set(spoken.values())) == len(TYPES)
    assert canonical("credit_card") == "BANK_CARD"
    assert canonical("MY_OWN") == "MY_OWN"


@pytest.mark.parametrize("page", ["redaction-policy", "write-a-rule"])
def test_the_policies_of_the_how_tos_can_be_used(page: str) -> None:
    text = (DOCS / "how-to" / f"{page}.md").read_text("utf-8")
    blocks = re.findall("```toml\n(.*?)```", text, re.DOTALL)
    policies = [block for block in blocks if block.startswith("version = 1")]

    assert policies
    for policy in policies:
        Policy.parse(policy)


def test_the_complete_example_works_as_described() -> None:
    text = (DOCS / "how-to" / "redaction-policy.md").read_text("utf-8")
    policy = text.split("```toml\n")[1].split("```")[0]
    message = "工号：E123456 support@acme.example ada@mail.example 手机 13912345670"

    assert redacted(policy, message) == (
        "工号：[REDACTED:EMPLOYEE_ID] support@acme.example [邮箱_已脱敏] "
        "手机 [手机号_已脱敏]"
    )


@pytest.mark.parametrize(
    ("table", "part"),
    [
        ("At the top", Policy),
        ("`[scan]`", Scan),
        ("`[skip]`", SkipPart),
        ("`[allow]`", Allow),
        ("`[types.X]`", TypePart),
        ("`[limits]`", LimitsPart),
        ("`[recognizer]`", RecognizerPart),
        ("`[[rules]]`", OwnRule),
    ],
)
def test_every_key_is_in_the_reference_with_its_default(
    table: str, part: type[Part]
) -> None:
    section = REFERENCE.split(f"\n## {table}")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|(.*?)\|", section, re.MULTILINE)
    documented = {name: default.strip(" `") for name, default in rows}
    fields = {
        name: field.get_default()
        for name, field in part.model_fields.items()
        if not (part is Policy and f"## `[{field.alias or name}" in REFERENCE)
        and name not in ("types", "labels", "rules")
    }

    assert list(documented) == list(fields)
    for name, default in fields.items():
        if documented[name] and default is not PydanticUndefined:
            assert tomllib.loads(f"x = {documented[name]}")["x"] == (
                list(default) if isinstance(default, tuple) else default
            )


def test_every_type_is_in_the_reference() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?)\|$", REFERENCE, re.MULTILINE)
    documented = [
        (name, description, tuple(re.findall(r"`(\w+)`", aliases)))
        for name, description, aliases in rows
        if name.isupper()
    ]

    assert documented == [(t.name, t.description, t.aliases) for t in TYPES.values()]

"""A redactor does what its plan says: actions, lists, limits, receipts."""

from dataclasses import replace
from typing import Any

import pytest

from refold.redaction.checks import Candidate
from refold.redaction.plan import Plan
from refold.redaction.redactor import RedactionError, Redactor
from refold.redaction.registered import Registered
from refold.redaction.rules.default import DEFAULT_RULES
from refold.redaction.rules.rule import Rule

MAIL = "a@example.org"
GONE = "[REDACTED:EMAIL]"


def breaks(match: Candidate) -> bool:
    raise ValueError(f"cannot judge {match.value}")


BROKEN = Rule(id="x", type="X", pattern="boom[0-9]", gate=("boom",), validator=breaks)


def test_a_kept_type_is_not_replaced() -> None:
    redactor = Redactor(Plan(actions={"EMAIL": "keep"}))

    assert redactor.text(f"{MAIL} or 13912345670") == (
        f"{MAIL} or [REDACTED:PHONE]",
        redactor.text("13912345670")[1],
    )


def test_a_text_with_a_type_that_drops_it_is_replaced_completely() -> None:
    redactor = Redactor(Plan(actions={"EMAIL": "drop_leaf"}))

    clean, tally = redactor.value({"a": f"write to {MAIL} today", "b": "hello"})

    assert clean == {"a": GONE, "b": "hello"}
    assert tally.types == {"EMAIL": 1}


def test_allowed_values_and_patterns_win_over_rules() -> None:
    redactor = Redactor(
        Plan(allow_values=frozenset({MAIL}), allow_patterns=(r".+@example\.com",))
    )

    clean, _ = redactor.text(f"{MAIL}, me@example.com, me@example.net")

    assert clean == f"{MAIL}, me@example.com, {GONE}"


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ("contextual", {"phone": "[REDACTED:PHONE]", "n": 13912345670}),
        ("never", {"phone": 13912345670, "n": 13912345670}),
    ],
)
def test_integers_are_redacted_as_the_plan_says(numbers: Any, expected: Any) -> None:
    redactor = Redactor(Plan(numbers=numbers))

    assert redactor.value({"phone": 13912345670, "n": 13912345670})[0] == expected


def test_every_integer_is_text_if_the_plan_wants_that() -> None:
    redactor = Redactor(Plan(numbers="always"))

    assert redactor.value([13912345670])[0] == ["[REDACTED:PHONE]"]


def test_keys_are_left_alone_if_the_plan_says_so() -> None:
    assert Redactor(Plan(keys=False)).value({MAIL: MAIL})[0] == {MAIL: GONE}
    assert Redactor().value({MAIL: MAIL})[0] == {GONE: GONE}


def test_paths_and_keys_are_skipped() -> None:
    redactor = Redactor(
        Plan(skip=frozenset({("a", "*", "raw")}), skip_keys=frozenset({"etag"}))
    )
    value: Any = {"a": [{"raw": MAIL, "b": MAIL}], "raw": MAIL, "x": {"etag": MAIL}}

    assert redactor.value(value)[0] == {
        "a": [{"raw": MAIL, "b": GONE}],
        "raw": GONE,
        "x": {"etag": MAIL},
    }


def test_json_in_strings_is_text_if_the_plan_says_so() -> None:
    # Only the key of an object says that these words are a secret.
    nested = '{"data": {"password": "a b c d"}}'
    redacted = '{"data": {"password": "[REDACTED:SECRET]"}}'

    assert Redactor().value([nested])[0] == [redacted]
    assert Redactor(Plan(nested_json=False)).value([nested])[0] == [nested]


def test_labels_stand_in_placeholders_and_are_left_alone_after() -> None:
    redactor = Redactor(
        Plan(labels={"EMAIL": "e-mail removed", "PHONE": "手机号_已脱敏"})
    )

    clean, _ = redactor.text(f"{MAIL} 13912345670")

    assert clean == "[e-mail removed] [手机号_已脱敏]"
    assert redactor.text(clean)[0] == clean
    assert Redactor().text("[手机号_已脱敏]62345678")[0] == "[手机号_已脱敏]62345678"


@pytest.mark.parametrize(
    ("audit", "expected"),
    [
        ("silent", {}),
        ("counts", {"n": 2, "types": {"EMAIL": 2}}),
        (
            "paths",
            {"n": 2, "types": {"EMAIL": 2}, "paths": [f"/a~1b/{GONE}/0", "/c"]},
        ),
    ],
)
def test_a_receipt_says_as_much_as_the_plan_allows(audit: Any, expected: Any) -> None:
    redactor = Redactor(Plan(audit=audit))
    key = "a/b"
    _, tally = redactor.value({key: {GONE: [MAIL]}, "c": MAIL})

    receipt = redactor.receipt(tally)

    assert receipt == {
        "rules": redactor.rule_set,
        "engine": redactor.engine,
        **expected,
    }


def test_an_error_refuses_the_value_or_drops_its_text() -> None:
    rules = (*DEFAULT_RULES, BROKEN)
    value: Any = {"a": "boom1", "b": MAIL}

    with pytest.raises(RedactionError):
        Redactor(Plan(rules=rules)).value(value)

    clean, tally = Redactor(Plan(rules=rules, on_error="drop_leaf")).value(value)
    assert clean == {"a": "[REDACTED:ERROR]", "b": GONE}
    assert tally.types == {"ERROR": 1, "EMAIL": 1}


def test_a_stub_stands_for_a_text_over_the_limit_where_stubs_may() -> None:
    redactor = Redactor(Plan(max_leaf_bytes=100, over_budget="stub"))
    stub = "[REDACTED:UNSCANNED 101 bytes]"

    clean, tally = redactor.value({"a": ["x" * 101, "b@c.org"], "d": "y"})

    assert clean == {"a": [stub, "[REDACTED:EMAIL]"], "d": "y"}
    assert tally.types == {"UNSCANNED": 1, "EMAIL": 1}
    assert redactor.text("x" * 101)[0] == stub


def test_a_text_over_the_limit_is_refused() -> None:
    redactor = Redactor(Plan(max_leaf_bytes=100))

    assert redactor.text("é" * 50)[0] == "é" * 50
    with pytest.raises(RedactionError, match="100 bytes"):
        redactor.text("é" * 51)
    with pytest.raises(RedactionError, match="100 bytes"):
        redactor.value({"a": ["x" * 101]})


def test_a_value_that_takes_too_long_is_refused() -> None:
    redactor = Redactor(Plan(budget_ms=1))

    with pytest.raises(RedactionError, match="budget_ms"):
        redactor.value([f"{MAIL}, {number}" for number in range(2_000)])


def test_a_value_is_the_context_of_what_follows_a_flag() -> None:
    value: Any = ["mysql", "--password", "letmein9", "--verbose", "letmein9"]

    assert Redactor().value(value)[0] == [
        "mysql",
        "--password",
        "[REDACTED:SECRET]",
        "--verbose",
        "letmein9",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"min_score": 0.3},
        {"actions": {"EMAIL": "keep"}},
        {"allow_values": frozenset({"a"})},
        {"skip_keys": frozenset({"a"})},
        {"labels": {"EMAIL": "x"}},
        {"numbers": "never"},
        {"audit": "paths"},
        {"pseudonyms": True},
    ],
)
def test_all_that_decides_is_in_the_name_of_the_rule_set(change: Any) -> None:
    assert Plan(**change).fingerprint != Plan().fingerprint
    assert Plan(engine="stdlib").fingerprint == Plan().fingerprint


@pytest.mark.parametrize("field", ["of_list", "of_object", "in_keys", "certain"])
def test_each_option_of_a_rule_is_in_the_name_of_the_rule_set(field: str) -> None:
    rules = Plan().rules
    change: Any = {field: not getattr(rules[0], field)}
    changed = replace(rules[0], **change)

    assert Plan(rules=(changed, *rules[1:])).fingerprint != Plan().fingerprint


def test_a_name_next_to_a_value_counts_in_any_order_and_case() -> None:
    redactor = Redactor()

    assert redactor.value({"name": "db", "key": "password", "value": "hunter2"})[0] == {
        "name": "db",
        "key": "password",
        "value": "[REDACTED:SECRET]",
    }
    assert redactor.value({"Name": "DB_PASSWORD", "Value": "hunter2"})[0] == {
        "Name": "DB_PASSWORD",
        "Value": "[REDACTED:SECRET]",
    }


def test_a_password_may_end_in_a_new_line() -> None:
    clean = Redactor().value({"password": "hunter2\n"})[0]

    assert clean == {"password": "[REDACTED:SECRET]"}


def test_a_registered_value_that_is_json_is_found_where_it_is_a_string() -> None:
    secret = '{"user":"svc","pin":"qq11ww22"}'
    registered = Registered()
    registered.register(secret)

    clean = Redactor(registered=registered).value({"c": secret})[0]

    assert clean == {"c": "[REDACTED:SECRET]"}

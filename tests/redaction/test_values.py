"""Redaction of JSON: same shape, copied only where it changes, numbers with context."""

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from refold.redaction.engines import EngineName
from refold.redaction.plan import Plan
from refold.redaction.redactor import RedactionError, Redactor
from tests.redaction.samples import keys, values

redactor = Redactor()


def redacted(value: Any) -> Any:
    return redactor.value(value)[0]


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return [shape(item) for item in value.values()]
    if isinstance(value, list):
        return ["list", *map(shape, value)]
    return "leaf"


@given(values)
@settings(deadline=None)
def test_a_second_pass_returns_the_same_object(value: Any) -> None:
    once = redacted(value)
    again, counts = redactor.value(once)

    assert again is once
    assert not counts


@given(values)
@settings(deadline=None)
def test_the_same_object_is_returned_exactly_when_nothing_is_found(value: Any) -> None:
    clean, counts = redactor.value(value)

    assert (clean is value) == (not counts)


@given(values)
@settings(deadline=None)
def test_the_shape_stays(value: Any) -> None:
    assert shape(redacted(value)) == shape(value)


@given(values, st.integers(1, 3), st.booleans())
@settings(deadline=None)
def test_json_in_strings_stays_json_of_its_shape(
    value: Any, levels: int, ascii_only: bool
) -> None:
    text: Any = value
    for _ in range(levels):
        text = json.dumps([text], ensure_ascii=ascii_only)

    clean: Any = redacted(text)
    again = redacted(clean)

    assert again is clean
    for _ in range(levels):
        (clean,) = json.loads(clean)
    assert shape(clean) == shape(value)


@given(st.dictionaries(keys, values, max_size=3))
@settings(deadline=None)
def test_the_argument_is_not_changed(value: dict[str, Any]) -> None:
    before = json.dumps(value)

    redactor.value(value)

    assert json.dumps(value) == before


def test_clean_parts_are_shared_with_the_original() -> None:
    value = {"dirty": "a@example.org", "clean": [{"n": 1}]}

    assert redacted(value)["clean"] is value["clean"]


def test_keys_are_redacted_and_stay_apart() -> None:
    value = {"a@example.org": 1, "b@example.org": 2, "[REDACTED:EMAIL]~3": 3}

    assert redacted(value) == {
        "[REDACTED:EMAIL]": 1,
        "[REDACTED:EMAIL]~2": 2,
        "[REDACTED:EMAIL]~3": 3,
    }


def test_a_replaced_key_makes_way_for_one_that_was_there() -> None:
    value = {"a@example.org": 1, "[REDACTED:EMAIL]": 2}

    assert redacted(value) == {"[REDACTED:EMAIL]~2": 1, "[REDACTED:EMAIL]": 2}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"phone": 13912345670}, {"phone": "[REDACTED:PHONE]"}),
        ({"手机": [13912345670]}, {"手机": ["[REDACTED:PHONE]"]}),
        ({"phone": 13912345670.0}, {"phone": "[REDACTED:PHONE]"}),
        ({"手机": [1.3912345670e10]}, {"手机": ["[REDACTED:PHONE]"]}),
        ({"ssn": 123456789.0}, {"ssn": "[REDACTED:SSN]"}),
        ('{"phone": 1.391234567e10}', '{"phone": "[REDACTED:PHONE]"}'),
        ({"student_id": 2021001234}, {"student_id": "[REDACTED:STUDENT_ID]"}),
        ({"card": 4111111111111111}, {"card": "[REDACTED:BANK_CARD]"}),
        ({"n": 110101199003070038}, {"n": "[REDACTED:ID_CARD]"}),
        ({"password": 12345678}, {"password": "[REDACTED:SECRET]"}),
        (
            {"name": "phone", "value": 4155550132},
            {"name": "phone", "value": "[REDACTED:PHONE]"},
        ),
    ],
)
def test_a_number_is_redacted_if_its_key_or_a_checksum_tells(
    value: Any, expected: Any
) -> None:
    assert redacted(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        {"n": 13912345670},
        {"ts": 1767294668088, "id": 2021001234},
        {"phone": 12345, "phones": True},
        {"n": 13912345670.0, "phones": [13912345670.5]},
        {"phone_calls": 13912345670},
        {"token_count": 13912345670},
        {"usage": {"input_tokens": 123456789, "tokens": 987654321}},
        {"embedding": [0.13912345670, 1.5]},
        [13912345670, None, False, 2**63],
    ],
)
def test_other_numbers_stay(value: Any) -> None:
    assert redacted(value) is value


KEY = "9f8e7d6c5b4a39281706f5e4d3c2b1a0"
HIDDEN = "[REDACTED:SECRET]"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["X-Api-Key", KEY], ["X-Api-Key", HIDDEN]),
        (
            {"headers": [["X-Api-Key", KEY], ["Accept", "text/html;q=0.9"]]},
            {"headers": [["X-Api-Key", HIDDEN], ["Accept", "text/html;q=0.9"]]},
        ),
        (["phone", "415 555 0132"], ["phone", "[REDACTED:PHONE]"]),
        (["--phone", "4155550132", "x"], ["--phone", "[REDACTED:PHONE]", "x"]),
        (["curl", "-u", "ada:s3cretpw"], ["curl", "-u", f"ada:{HIDDEN}"]),
        ({"学号": {"a": 2021001234}}, {"学号": {"a": "[REDACTED:STUDENT_ID]"}}),
        (
            {"auths": {"r.io": {"auth": "YWRhOmh1bnRlcjI="}}},
            {"auths": {"r.io": {"auth": "[REDACTED:AUTH_TOKEN]"}}},
        ),
    ],
)
@pytest.mark.parametrize("engine", ["stdlib", "vectorscan"])
def test_a_string_is_redacted_if_its_surroundings_name_it(
    value: Any, expected: Any, engine: EngineName
) -> None:
    either = Redactor(Plan(engine=engine))

    clean, _ = either.value(value)

    assert clean == expected
    assert either.value(clean)[0] is clean
    assert either.value([json.dumps(value)])[0] == [json.dumps(expected)]


@pytest.mark.parametrize(
    "value",
    [
        ["password1", "password2"],
        ["password", "username"],
        ["Password", "Enter 8 characters"],
        ["X-Api-Key", "X-Api-Key-2"],
        ["phone", "4155550132,[REDACTED:EMAIL]"],
        ["[REDACTED:EMAIL] api_key", KEY],
        ["api_key", KEY, "x"],
        ["git", "push", "-u", "origin:main"],
        ["docker", "run", "--user", "1000:1000"],
        {"student_id": {"version": 2021001234}},
        {"cache_key": "user:42:profile", "sort_key": "created_at", "auth": "oauth2"},
        {"public_key": KEY, "BUILD_KEY": KEY, "author": KEY},
    ],
)
def test_a_string_next_to_another_name_stays(value: Any) -> None:
    assert redacted(value) is value


def test_a_pair_keeps_the_context_that_it_has() -> None:
    value = {"学号": ["phone", "4155550132 415-555-0133"]}

    clean = redacted(value)

    assert clean == {"学号": ["phone", "[REDACTED:STUDENT_ID] [REDACTED:PHONE]"]}
    assert redacted(clean) is clean


def test_a_path_is_skipped_and_a_key_of_that_name_elsewhere_is_not() -> None:
    mail = "a@example.org"
    value: Any = {"blocks": [{"signature": mail, "text": mail}], "signature": mail}

    clean, counts = redactor.value(
        value, skip=frozenset({("blocks", "*", "signature")})
    )

    assert clean == {
        "blocks": [{"signature": mail, "text": "[REDACTED:EMAIL]"}],
        "signature": "[REDACTED:EMAIL]",
    }
    assert counts.types == {"EMAIL": 2}


def test_json_in_a_string_is_rewritten_only_if_it_changes() -> None:
    clean = '{ "b": 1.50,\n "a": ["\\u4f60\\u597d"] }'

    assert redacted([clean])[0] is clean
    assert redacted('{ "b": "a@example.org", "a": "\\u4f60" }') == (
        '{ "b": "[REDACTED:EMAIL]", "a": "\\u4f60" }'
    )


def test_each_line_of_json_lines_is_rewritten_only_if_it_changes() -> None:
    assert redacted('{"a": 1}\n\n{"phone": 13912345670}\n') == (
        '{"a": 1}\n\n{"phone": "[REDACTED:PHONE]"}\n'
    )


def test_half_a_surrogate_pair_stays_writable() -> None:
    clean = redacted('{"a": "\\ud800", "b": "a@example.org"}')

    assert json.loads(clean) == {"a": "\ud800", "b": "[REDACTED:EMAIL]"}
    assert clean.isascii()


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "a@example.org", "a": 1}',
        '{"a": "a@example.org", "n": NaN}',
        '{"a": "a@example.org", "n": 1e999}',
        '{"a": "a@example.org", ',
        "[" * 300 + '"a@example.org"' + "]" * 300,
        "[" * 100_000 + '"a@example.org"',
    ],
    ids=["a key twice", "NaN", "a huge number", "cut off", "deep", "very deep"],
)
def test_text_that_resembles_json_is_redacted_as_text(text: str) -> None:
    assert redacted(text) == text.replace("a@example.org", "[REDACTED:EMAIL]")


def test_json_in_json_beyond_the_last_level_is_redacted_as_text() -> None:
    text = "a@example.org"
    for _ in range(12):
        text = json.dumps([text])

    assert "a@example.org" not in redacted(text)


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"a": v}])
def test_a_value_nested_too_deep_is_refused(wrap: Any) -> None:
    value: Any = "a@example.org"
    for _ in range(200):
        value = wrap(value)

    with pytest.raises(RedactionError, match="deeper than 128 levels"):
        redactor.value(value)


def test_a_value_nested_deep_is_redacted() -> None:
    value: Any = "a@example.org"
    for _ in range(100):
        value = [value]

    assert "example" not in json.dumps(redacted(value))


@pytest.mark.parametrize("value", [[b"x"], {1: "a"}, {"a": {2.5}}])
def test_values_that_are_no_json_are_refused(value: Any) -> None:
    with pytest.raises(RedactionError):
        redactor.value(value)

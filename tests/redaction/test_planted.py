"""No planted value survives, in whatever field, key, nesting or encoding it stands."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from refold.redaction.redactor import Redactor
from tests.redaction.samples import KEYED, KEYS, PLANTED, Planted

redactor = Redactor()


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def wide(text: str) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if c.isdigit() or c == "@" else c for c in text)


HIDING: dict[str, Callable[[str], Any]] = {
    "alone": lambda text: text,
    "in quotes": lambda text: f'say "{text}"',
    "in brackets": lambda text: f"({text})",
    "in Chinese": lambda text: f"他说：{text}。好",
    "in a field": lambda text: {"note": text},
    "in a list": lambda text: ["x", text],
    "deep": lambda text: {"a": [{"b": {"c": [text]}}]},
    "as a key": lambda text: {text: 1},
    "beside a name": lambda text: {"name": "note", "value": text},
    "in JSON": lambda text: dumped({"note": text}),
    "in ASCII JSON": lambda text: json.dumps({"note": text}),
    "in JSON in JSON": lambda text: json.dumps({"x": json.dumps([text])}),
    "in JSON thrice": lambda text: [json.dumps([json.dumps([json.dumps([text])])])],
    "in JSON lines": lambda text: '{"a":1}\n' + json.dumps({"note": text}) + "\n",
    "in JSON in text": lambda text: f"Result: {dumped({'note': text})}, done",
    "in ASCII JSON in text": lambda text: f"Result: {json.dumps({'note': text})}, done",
    "after a line": lambda text: json.dumps({"note": f"a\n{text}\nb"}) + " and more",
    "in a repr": lambda text: repr({"note": text}),
    "in wide digits": wide,
    "with wide spaces": lambda text: text.replace(" ", "\u00a0"),
    "with odd dashes": lambda text: text.replace("-", "\u2011"),
    "with soft hyphens": lambda text: "\u00ad".join(text),
}


@pytest.mark.parametrize("way", HIDING)
def test_a_value_does_not_survive(way: str) -> None:
    for planted in PLANTED:
        clean, counts = redactor.value(HIDING[way](planted.text))

        assert counts.types[planted.type] == 1, planted
        assert f"[REDACTED:{planted.type}]" in dumped(clean), planted
        assert planted.value not in dumped(clean), planted


@pytest.mark.parametrize(
    "hide",
    [
        lambda key, value: {key: value},
        lambda key, value: {"a": [{key: [value]}]},
        lambda key, value: {"env": [{"name": key, "value": value}]},
        lambda key, value: json.dumps({key: value}),
        lambda key, value: '{"a":1}\n' + json.dumps({key: value}),
        lambda key, value: [json.dumps({"x": json.dumps({key: value})})],
    ],
)
def test_a_key_gives_its_value_away(hide: Callable[[str, str], Any]) -> None:
    for planted in KEYED:
        for key in KEYS[planted.type]:
            clean, counts = redactor.value(hide(key, planted.value))

            assert counts.n == 1, (planted, key)
            assert planted.value not in dumped(clean), (planted, key)


def test_a_key_and_its_parent_are_read_together() -> None:
    clean, _ = redactor.value(
        {"student": {"id": "2021001234"}, "phone": {"home": 4155550132}}
    )

    assert clean == {
        "student": {"id": "[REDACTED:STUDENT_ID]"},
        "phone": {"home": "[REDACTED:PHONE]"},
    }


@given(
    st.lists(st.sampled_from(PLANTED), min_size=1, max_size=6),
    st.lists(st.text("abc 。，\n", max_size=30), min_size=7, max_size=7),
)
@settings(deadline=None)
def test_no_value_of_several_survives(
    planted: list[Planted], between: list[str]
) -> None:
    parts = [f"{gap}\n{p.text}\n" for gap, p in zip(between, planted, strict=False)]

    clean, _ = redactor.text("".join(parts))

    assert not [p.value for p in planted if p.value in clean]

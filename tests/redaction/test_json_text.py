"""JSON in a string keeps its bytes, except for findings in it."""

from __future__ import annotations

import json
import re
from string import ascii_letters
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from refold.redaction import Plan, Redactor

REDACTOR = Redactor(Plan(engine="stdlib"))
SECRET = "bear-77Qx!9"
MAIL = "ada@corp.org"


def redacted(text: str) -> str:
    clean: Any = REDACTOR.value({"content": text})[0]
    return str(clean["content"])


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (
            '{\n  "password" : "bear-77Qx!9",\n  "n": 1.10, "z": -0\n}\n',
            '{\n  "password" : "[REDACTED:SECRET]",\n  "n": 1.10, "z": -0\n}\n',
        ),
        (
            '{"a": "caf\\u00e9 ada@corp.org \\/",  "phone": 13812345678 }',
            '{"a": "caf\\u00e9 [REDACTED:EMAIL] \\/",  "phone": "[REDACTED:PHONE]" }',
        ),
        (
            '{"a":1.0,"b":"ada@corp.org"}\n\n{"a": 2.00, "b" : 3}\n',
            '{"a":1.0,"b":"[REDACTED:EMAIL]"}\n\n{"a": 2.00, "b" : 3}\n',
        ),
        (
            '{"in": "{\\n \\"password\\": \\"bear-77Qx!9\\", \\"k\\": 1.10}"}',
            '{"in": "{\\n \\"password\\": \\"[REDACTED:SECRET]\\", \\"k\\": 1.10}"}',
        ),
        (
            '{"ada@corp.org": 1.10,  "b":"\\ud83d\\ude00 ada@corp.org"}',
            '{"[REDACTED:EMAIL]": 1.10,  "b":"\\ud83d\\ude00 [REDACTED:EMAIL]"}',
        ),
        (
            '{"a": 1.10, "a": "ada@corp.org"}',
            '{"a": 1.10, "a": "[REDACTED:EMAIL]"}',
        ),
    ],
)
def test_bytes_outside_of_a_finding_stay(text: str, clean: str) -> None:
    assert redacted(text) == clean
    assert redacted(clean) == clean


# No words: a word such as pass may describe the value under it.
texts = st.text(
    st.characters(
        codec="utf-8",
        exclude_characters="[]@" + ascii_letters,
        exclude_categories=["Lo"],
    ),
    max_size=12,
)
numbers = st.sampled_from(["1.10", "-0", "0", "1e5", "2.00", "1E-3", "-7.50"])
spaces = st.sampled_from(["", " ", "\n", "\t", " \r\n  "])


def spelt(text: str, *, ascii_only: bool, slashes: bool) -> str:
    written = json.dumps(text, ensure_ascii=ascii_only)
    return written.replace("/", "\\/") if slashes else written


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, str]:
    """Draw a JSON text with findings in it, oddly spelt, and the expected result."""
    text = "{"
    clean = "{"
    for index in range(draw(st.integers(1, 5))):
        space = draw(spaces)
        between = draw(spaces)
        ways = {"ascii_only": draw(st.booleans()), "slashes": draw(st.booleans())}
        key = spelt(f"k{index}{draw(texts)}", **ways)
        kind = draw(st.sampled_from(["plain", "number", "mail"]))
        before = draw(texts)
        after = draw(texts)
        value = expected = draw(numbers)
        if kind == "plain":
            value = expected = spelt(before, **ways)
        elif kind == "mail":
            value = spelt(f"{before} <{MAIL}> {after}", **ways)
            expected = value.replace(MAIL, "[REDACTED:EMAIL]")
        comma = "," if index else ""
        text += f"{comma}{space}{key}{between}:{space}{value}{between}"
        clean += f"{comma}{space}{key}{between}:{space}{expected}{between}"
    return text + "}", clean + "}"


@given(documents())
@settings(deadline=None, max_examples=200)
def test_any_spelling_of_json_stays(document: tuple[str, str]) -> None:
    text, clean = document
    plain = Redactor(Plan(engine="stdlib", numbers="never")).value({"content": clean})
    if plain[1]:
        return  # other generated values are found too

    assert redacted(text) == clean
    json.loads(redacted(text))


@given(
    st.recursive(
        st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)
        ),
        max_leaves=12,
    ),
    st.integers(0, 4),
)
@settings(deadline=None, max_examples=150)
def test_a_placeholder_never_breaks_json(value: Any, indent: int) -> None:
    text = json.dumps({"password": SECRET, "value": value}, indent=indent or None)

    clean = redacted(text)

    parsed = json.loads(clean)
    assert parsed["password"] == "[REDACTED:SECRET]"
    assert SECRET not in clean
    assert (
        len(re.findall(r"\s", clean)) == len(re.findall(r"\s", text))
        or value != parsed["value"]
    )

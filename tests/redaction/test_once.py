"""Each part of a value is searched once, and judged once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import orjson
import pytest
from hypothesis import example, given, strategies as st

from refold.redaction import documents
from refold.redaction.documents import Around, Work, redacted
from refold.redaction.engines import Hit, names as names_something
from refold.redaction.engines.stdlib import Triggers
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from refold.redaction.registered import Registered
from refold.redaction.rules import DEFAULT_PACKS, PACKS
from refold.redaction.scanner import Finding, Scanner
from refold.redaction.settler import Settler
from refold.redaction.values import NO_SKIP, Tally
from tests.redaction.samples import KEYED, KEYS, PLANTED

MAIL = "lin.wei@mail.example.org"
RULES = tuple(rule for pack in DEFAULT_PACKS for rule in PACKS[pack])
# Long enough that a repeated search is not the rest around a finding.
LONG = "The pass was closed, and nobody went on. " * 40


@pytest.fixture
def redactor() -> Redactor:
    """One that knows the keys of these tests already."""
    redactor = Redactor(Plan(rules=RULES, engine="stdlib"))
    keys = ("text", "content", "tool_name", "status", "rows", "note")
    redactor.value(dict.fromkeys(keys, ""))
    return redactor


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The texts that the engine got, in order."""
    given: list[bytes] = []
    scan = Triggers.scan

    def noted(self: Triggers, data: bytes) -> list[Hit]:
        given.append(data)
        return scan(self, data)

    monkeypatch.setattr(Triggers, "scan", noted)
    return given


@pytest.fixture
def judged_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that rules had to judge, in order."""
    asked: list[str] = []
    findings = Scanner._found

    def noted(self: Scanner, prepared: Any, *rest: Any, **more: Any) -> list[Finding]:
        asked.append(prepared.text)
        return findings(self, prepared, *rest, **more)

    monkeypatch.setattr(Scanner, "_found", noted)
    return asked


def _holding(contents: Sequence[bytes], text: str) -> int:
    return sum(text.encode() in content for content in contents)


@pytest.mark.parametrize("holds", ["", f"write to {MAIL}. "])
def test_a_text_is_scanned_once(
    redactor: Redactor, scanned: list[bytes], holds: str
) -> None:
    redactor.value({"text": f"{LONG}{holds}Then came the rain."})

    assert _holding(scanned, LONG[:100]) == 1


def test_a_long_text_with_a_finding_is_scanned_once(
    redactor: Redactor, judged_texts: list[str]
) -> None:
    text = f"{LONG}write to {MAIL}."

    redactor.value({"text": text, "note": LONG})

    assert judged_texts.count(text) == 1


def test_a_word_without_a_value_behind_it_is_not_settled(
    redactor: Redactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settler, "settle", None)
    value: Any = {"text": "the pass: it is closed", "content": "A bearer of news."}

    assert redactor.value(value) == (value, Tally())


def test_a_part_that_stands_between_many_findings_is_judged_once(
    redactor: Redactor, judged_texts: list[str]
) -> None:
    lines = [f"password: bear-{number}Q\n" for number in range(10, 40)]

    clean, tally = redactor.text("".join(lines))

    assert clean == "password: [REDACTED:SECRET]\n" * 30
    assert tally.n == 30
    # The whole text, and the part between two passwords.
    assert len(judged_texts) <= 4


def test_a_part_without_digits_is_not_judged_by_rules_of_numbers(
    redactor: Redactor, judged_texts: list[str]
) -> None:
    text = "Please call 13912345670 or call 13912345671 today"

    clean, _ = redactor.text(text)

    assert clean.count("[REDACTED:PHONE]") == 2
    assert judged_texts == [text]


def test_keys_that_say_nothing_are_scanned_once(
    redactor: Redactor, scanned: list[bytes]
) -> None:
    rows: Any = [{"status": "ok", "note": "there"} for _ in range(9)]

    redactor.value({"rows": rows})

    assert not _holding(scanned, "status")


def test_keys_that_hold_or_say_something_are_not_remembered(redactor: Redactor) -> None:
    value: Any = {MAIL: "x", "phone": "415 555 0132", "[REDACTED:EMAIL] phone": "4"}

    first = redactor.value(value)
    again = redactor.value(value)

    assert first == again
    assert first[1].types == {"EMAIL": 1, "PHONE": 1}


def test_a_value_that_is_registered_later_is_found_in_a_key_that_was_clean() -> None:
    registered = Registered()
    redactor = Redactor(Plan(rules=RULES, engine="stdlib"), registered=registered)
    assert redactor.value({"tannenberg": 1})[0] == {"tannenberg": 1}

    registered.register("tannenberg", "PROJECT")

    assert redactor.value({"tannenberg": 1})[0] == {"[REDACTED:PROJECT]": 1}


def test_json_in_a_string_is_scanned_as_that_alone(
    redactor: Redactor, scanned: list[bytes]
) -> None:
    redactor.value({"content": '{"status": "ok", "note": "the rain in the hills"}'})

    assert _holding(scanned, "the rain in the hills") == 1


def test_json_in_a_string_with_a_finding_is_scanned_as_that_and_by_its_leaves(
    redactor: Redactor, scanned: list[bytes]
) -> None:
    clean, _ = redactor.value({"content": f'{{"note": "the rain", "text": "{MAIL}"}}'})

    assert clean == {"content": '{"note": "the rain", "text": "[REDACTED:EMAIL]"}'}
    assert _holding(scanned, "the rain") == 2


FAST = Redactor(Plan(rules=RULES, engine="vectorscan"))
LOOSE = (
    "the password is in the safe",
    "enter 3 of 12345678 rooms",
    "an id and 1234567 rows",
    "the pass: closed",
    "api key",
    "[1, 2]",
    "[REDACTED:PHONE] 5",
    "",
    "-u",
)
texts = st.one_of(
    st.sampled_from(LOOSE),
    st.sampled_from([one.value for one in (*PLANTED, *KEYED)]),
    st.text("abc 。\n", max_size=20),
)
names = st.sampled_from(
    [
        "text",
        "note",
        "a",
        "id",
        "kong id",
        "hong",
        "hong kong",
        "value",
        MAIL,
        *sorted(set(chain.from_iterable(KEYS.values()))),
    ]
)
values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(texts, st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(names, values, max_size=4))
@example({"hong kong": {"id": "A1234563"}})
@example({"note": "the api key", "text": "4f3c2b1a"})
def test_values_whose_bytes_are_clean_stay_unchanged(value: dict[str, Any]) -> None:
    settler = Settler(FAST.plan, FAST.scanner)

    if FAST.scanner.proves_clean(orjson.dumps(value)):
        assert redacted(value, Work(settler), Around(NO_SKIP))[0] is value


@pytest.mark.parametrize("holds", ["it is late", "the pass: it is closed", "id 7 is 1"])
def test_clean_json_of_many_leaves_is_not_parsed(
    monkeypatch: pytest.MonkeyPatch, holds: str
) -> None:
    value: Any = {
        "rows": [{"id": n, "note": "a token", "text": holds} for n in range(9)]
    }
    monkeypatch.setattr(documents, "redacted", None)

    assert FAST.value(value) == (value, Tally())


def test_json_of_many_leaves_with_a_telling_key_is_parsed() -> None:
    rows = [{"id": n, "note": "a", "ip": "84.23.11.9"} for n in range(9)]
    value: Any = {"rows": rows}

    assert FAST.value(value)[1].types == {"IP": 9}


def test_json_with_a_finding_is_parsed() -> None:
    value: Any = {"rows": [{"note": "a token", "text": f"to {MAIL}"}]}

    assert FAST.value(value)[1].types == {"EMAIL": 1}


@pytest.mark.parametrize(
    ("data", "has_value", "expected"),
    [
        (b'{"token":1}', False, True),
        (b'{"token" :1}', False, True),
        (b'["token","x"]', False, True),
        (b'{"a":"token"}', False, False),
        (b'{"a": "token", "b": 1}', False, False),
        (b'{"a":"token","value":1}', True, True),
        (b'"{\\"a\\":\\"token\\"}"', False, True),
    ],
)
def test_keys_and_items_name_something_and_what_an_object_holds_does_not(
    data: bytes, has_value: bool, expected: bool
) -> None:
    end = data.index(b"token") + len(b"token")
    end = data.index(b'"', end) + 1

    assert names_something(data, end, has_value=has_value) is expected

"""The cost of redaction is bounded: counted in steps, which are the same everywhere."""

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from time import process_time
from typing import Any

import pytest

from refold.domain.envelope import Draft
from refold.domain.errors import EventTooLarge, RedactionFailed
from refold.domain.events import ToolResult
from refold.domain.placeholders import PLACEHOLDER
from refold.redaction.checks import Candidate, extents
from refold.redaction.chokepoint import redact
from refold.redaction.engines import EngineName, engine_of, run_start
from refold.redaction.engines.patterns import needed
from refold.redaction.guard import Limits
from refold.redaction.plan import WORK_PER_KB, Plan
from refold.redaction.redactor import Redactor
from refold.redaction.rules.default import DEFAULT_RULES
from refold.redaction.rules.rule import Rule
from refold.redaction.scanner import Compiled, Scanner, _WordsOfKeys, runs_near
from refold.redaction.values import Meter, OverBudget

ENGINES: tuple[EngineName, ...] = ("stdlib", "vectorscan")
scanner = Scanner(DEFAULT_RULES, "stdlib")


def counting(judged_values: list[str]) -> Redactor:
    def judge(candidate: Candidate) -> bool:
        judged_values.append(candidate.value)
        return True

    rule = Rule(id="x", type="X", pattern="x-[a-z]{4}", gate=("x-",), validator=judge)
    return Redactor(Plan(rules=(rule,), engine="stdlib"))


@pytest.mark.parametrize(
    "content",
    [
        {f"x-aaaa{number}": number for number in range(200)},
        ["x-aaaa"] * 500,
        {"a" * 1500: "x-aaaa"},
    ],
)
def test_too_large_events_are_refused_before_redaction(content: Any) -> None:
    judged_values: list[str] = []
    draft = Draft(ToolResult(call_id="c", content=content))
    limits = Limits(leaf_bytes=1024, event_bytes=1400)

    with pytest.raises(EventTooLarge):
        redact(draft, now=1, redactor=counting(judged_values), limits=limits)
    assert judged_values == []


def test_a_long_text_of_a_small_event_is_redacted_and_kept() -> None:
    draft = Draft(ToolResult(call_id="c", content="x-aaaa " * 1000))
    limits = Limits(leaf_bytes=1024, event_bytes=1400)

    done = redact(draft, now=1, redactor=counting([]), limits=limits)

    assert done.counts == {"X": 1000}


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("unit", [".E12345678", "-E2345678sk", "学号：2021001234 "])
def test_digits_that_stand_close_are_named_once(name: EngineName, unit: str) -> None:
    hits = engine_of(name, scanner._triggers).scan(unit.encode() * 300)

    assert len(hits) < 12 * 300


def test_many_runs_are_searched_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []

    def counted(text: str, place: int, members: str) -> int:
        looks.append(place)
        return run_start(text, place, members)

    monkeypatch.setattr("refold.redaction.scanner.run_start", counted)
    unit = ".E12345678"

    runs = runs_near(unit * 3000, range(len(unit), 3000 * len(unit), len(unit)))

    assert len(runs) == 3000
    assert len(looks) == 1


def test_a_key_without_a_word_is_shown_to_few_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []
    accepts_key = Compiled.accepts_key

    def counted(rule: Compiled, key: str, lower: str) -> bool:
        shown.append(key)
        return accepts_key(rule, key, lower)

    monkeypatch.setattr(Compiled, "accepts_key", counted)

    for number in range(1000):
        scanner.key_context(f"k{number}")
    assert scanner.key_context("phone").rules

    of_any_key = [ready for ready in scanner._with_context if ready.accepts_any_key]
    assert len(shown) <= 1000 * len(of_any_key) + len(scanner._with_context)
    assert 4 * len(of_any_key) < len(scanner._with_context)


def test_keys_with_the_same_words_share_the_search_for_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[frozenset[str]] = []
    scanner = Scanner(DEFAULT_RULES, "stdlib")
    choose = scanner._rules_with_words

    def counted(words: frozenset[str]) -> Sequence[Compiled]:
        chosen.append(words)
        return choose(words)

    monkeypatch.setattr(scanner, "_rules_of_words", lru_cache(None)(counted))

    for number in range(1000):
        assert scanner.key_context(f"password{number % 10}_{number}a") is not None
        assert scanner.key_context(f"{number}password").rules

    assert len(chosen) < 20


def test_only_words_near_the_end_of_a_key_give_it_context() -> None:
    words = ["pw", "手机号", "密", "phone number"]
    near_end_of = _WordsOfKeys(words).near_end_of

    assert near_end_of("") == frozenset()
    assert near_end_of("pw") == {"pw"}
    assert near_end_of("密") == {"密"}
    assert near_end_of("p") == frozenset()
    assert near_end_of("phone number of 手机号 pw") == {"pw", "手机号", "phone number"}
    for word in words:
        assert near_end_of(f"of {word}{'-' * 24}") == {word}
        assert near_end_of(f"of {word}{'-' * 25}") == frozenset()


@pytest.mark.parametrize("sign", [b"A", b"<", b"9", b"@", b"-"])
@pytest.mark.parametrize("name", ENGINES)
def test_a_repeated_character_is_scanned_once(name: EngineName, sign: bytes) -> None:
    engine = engine_of(name, scanner._triggers)

    assert len(engine.scan(b"\n" + sign * 100_000 + b"\n")) < 10


# Each value is found only when the next one is gone: a round of work for each.
DEAR = "CLIENT_SECRET=a8f5f167f44f4964" * 400
STUB = f"[REDACTED:UNSCANNED {len(DEAR)} bytes]"
refusing = Redactor(Plan(engine="stdlib"))
stubbing = refusing.stubbing


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": "x", "b": [1, DEAR]}, "/b/1"),
        ({"a": json.dumps({"c": [DEAR]})}, "/a/c/0"),
        ({"ann@corp.example.org": DEAR}, "/[REDACTED:EMAIL]"),
    ],
)
def test_a_text_made_to_take_long_is_refused_with_its_place(
    value: Any, place: str
) -> None:
    with pytest.raises(OverBudget, match="work_per_kb") as raised:
        refusing.value(value)

    assert raised.value.at == place
    assert "a8f5" not in str(raised.value)


def test_the_refusal_names_the_event_and_the_field() -> None:
    draft = Draft(ToolResult(call_id="c", content=["x", DEAR]))

    with pytest.raises(RedactionFailed, match=r"tool_result.*/content/1.*unscanned="):
        redact(draft, now=1, redactor=refusing, limits=Limits())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stub_represents_one_text_only(engine: EngineName) -> None:
    redactor = Redactor(Plan(engine=engine, over_budget="stub"))
    value: dict[str, Any] = {
        "mail": "write to ann.lee@corp.example.org",
        "lines": [DEAR, "phone 13800138000", f"密{DEAR}"],
        "inside": json.dumps({"c": DEAR, "d": 1}),
    }

    clean, tally = redactor.value(value)

    assert clean == {
        "mail": "write to [REDACTED:EMAIL]",
        "lines": [
            STUB,
            "phone [REDACTED:PHONE]",
            f"[REDACTED:UNSCANNED {len(DEAR) + 3} bytes]",
        ],
        "inside": json.dumps({"c": STUB, "d": 1}),
    }
    assert tally.types == {"EMAIL": 1, "PHONE": 1, "UNSCANNED": 3}
    assert redactor.value(clean) == (clean, Redactor().value({})[1])


def test_only_a_stub_with_a_size_is_a_placeholder() -> None:
    assert PLACEHOLDER.fullmatch(STUB)
    assert not PLACEHOLDER.fullmatch("[REDACTED:SECRET 12 bytes]")
    assert not PLACEHOLDER.fullmatch("[REDACTED:UNSCANNED hunter2 bytes]")


def test_a_stubbing_redactor_shares_rules_and_is_made_once() -> None:
    assert stubbing.rule_set == refusing.rule_set
    assert stubbing.scanner is refusing.scanner
    assert refusing.stubbing is stubbing
    assert stubbing.stubbing is stubbing


def test_a_policy_without_a_budget_has_no_time_limit() -> None:
    clean, tally = Redactor(Plan(work_per_kb=0)).text(DEAR)

    assert "a8f5" not in clean
    assert "UNSCANNED" not in tally.types


def dense(kind: str) -> str:
    """A list of values with as little between them as lists have."""
    random = Random(kind)
    lines: dict[str, Callable[[], str]] = {
        "phones": lambda: "139" + "".join(random.choices("0123456789", k=8)),
        "mails": lambda: f"u{random.randrange(10**6)}@ex.com",
        "passwords": lambda: f"DB_PASSWORD=aB3{random.randrange(10**9)}xYz",
        "rows": lambda: (
            f"{random.randrange(999)},张三,139{random.randrange(10**8):08},"
            f"a{random.randrange(10**4)}@b.org,4111111111111111"
        ),
        "logs": lambda: (
            f"10.0.{random.randrange(255)}.7 user=bob token="
            f"abc{random.randrange(10**9)}def id={random.randrange(10**12)}"
        ),
    }
    return "\n".join(lines[kind]() for _ in range(600))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("key", ["text", "password", "phone"])
@pytest.mark.parametrize("kind", ["phones", "mails", "passwords", "rows", "logs"])
def test_lists_of_values_take_less_than_half_of_the_budget(
    engine: EngineName, kind: str, key: str
) -> None:
    half = Redactor(Plan(engine=engine, work_per_kb=WORK_PER_KB // 2))

    _, tally = half.value({key: dense(kind)})

    assert tally.n >= 1
    assert "UNSCANNED" not in tally.types


@pytest.mark.parametrize(
    "unit", ["password=", "E12345678 ", "a.b@c.co ", "[REDACTED:SECRET]学号 2021001234"]
)
def test_work_grows_with_the_text_and_no_faster(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps(length: int) -> int:
        meters: list[Meter] = []

        def meter(_: Scanner, text: str, whole: Meter | None = None) -> Meter:
            meters.append(Meter(1 << 60))
            return meters[-1]

        monkeypatch.setattr(Scanner, "meter", meter)
        refusing.text((unit * length)[:length])
        return sum(counted.spent for counted in meters)

    assert steps(40_000) < 2.1 * steps(20_000)


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (r"(?<![a-z])(?:remote|(?i:Client))[ _]?(?i:ip)", ("client", "remote")),
        (r"(?i:IP)(?:地址|来自)?", ("ip",)),
        (r"手机号?|(?:tele)?phone(?=:)", ("phone", "手机")),
        (r"(?:abc){1,2}[0-9]", ("abc",)),
    ],
)
def test_a_context_is_searched_only_near_its_words(
    context: str, words: tuple[str, ...]
) -> None:
    assert needed(context) == words


def test_optional_text_is_not_needed_for_a_match() -> None:
    assert needed(r"(?:abc)?[0-9]{0,4}") == ()
    assert needed(r"(?:abc|[0-9])") == ()
    assert needed(r"(?:abc){0,2}de(?:f|gh)") == ("de",)


@pytest.mark.parametrize(
    "unit",
    [
        "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tTUlJRXZnSUJBREFOQmdrcWhraUc5dzBC",
        "MIIEowIBAAKCAQEAy8Dbv8prpJ/0kKhlGeJYozo2t60EG8L0561g13R29LvMR5hy\n",
        "-----END PRIVATE KEY-----\nMIIEowIBAAKCAQEAy8Dbv8prpJ0kKhlGeJYozo2t60EG8L05\n",
    ],
)
def test_the_lines_of_keys_are_scanned_once(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    down = extents._end_of_key_lines

    def counted(text: str, start: int) -> int:
        looked.append(down(text, start) - start)
        return start + looked[-1]

    monkeypatch.setattr(extents, "_end_of_key_lines", counted)
    text = unit * 300

    Redactor(Plan(engine="stdlib", work_per_kb=0)).text(text)

    assert sum(looked) < 4 * len(text)


def test_a_long_head_of_a_table_is_read_once() -> None:
    rule = next(rule for rule in DEFAULT_RULES if rule.id == "secret.cells")
    pattern = re.compile(rule.pattern)
    columns = "| password " * 200

    def seconds_taken(text: str) -> float:
        began = process_time()
        for _ in range(200):
            assert pattern.match(text, 2) is None
        return process_time() - began

    # Each column was read again for each way to divide those before it.
    assert seconds_taken(columns) < 20 * seconds_taken(columns[:110]) + 0.01

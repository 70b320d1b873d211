"""A redacted document still parses, and both engines redact it alike."""

from __future__ import annotations

import json
from random import Random

import pytest

from benchmarks.redaction import laws
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from tests.redaction.structured import FORMATS, PARSERS, document

REDACTORS = {
    "stdlib": Redactor(Plan(engine="stdlib")),
    "vectorscan": Redactor(Plan(engine="vectorscan")),
}
redactor = REDACTORS["vectorscan"]
DOCUMENTS = 80


@pytest.mark.parametrize("name", FORMATS)
def test_a_redacted_document_still_parses(name: str) -> None:
    parse = PARSERS[name]
    findings = 0
    for seed in range(DOCUMENTS):
        generated = document(Random(seed), name)
        before = parse(generated.text[generated.start :])

        clean, tally = redactor.text(generated.text)

        assert clean.startswith(generated.text[: generated.start]), seed
        after = parse(clean[generated.start :])
        if name == "csv":
            assert after == before, seed  # as many cells in each row
        findings += tally.n
    assert findings > DOCUMENTS


@pytest.mark.parametrize("name", FORMATS)
def test_engines_redact_a_document_identically_and_once(name: str) -> None:
    for seed in range(DOCUMENTS // 2):
        generated = document(Random(f"engines {seed}"), name)
        clean = {
            engine: by_engine.text(generated.text)[0]
            for engine, by_engine in REDACTORS.items()
        }

        assert clean["stdlib"] == clean["vectorscan"], seed
        assert redactor.text(clean["stdlib"])[0] == clean["stdlib"], seed


@pytest.mark.parametrize("seed", range(4))
def test_laws_hold_for_generated_values(seed: int) -> None:
    verdict = laws.laws(REDACTORS, 500, seed)

    assert verdict.cases == 500
    assert verdict.examples == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"pin": 4821}', '{"pin": "[REDACTED:SECRET]"}'),
        ('log: {"pin":4821,"n":7}', 'log: {"pin":"[REDACTED:SECRET]","n":7}'),
        ('x {\\"pin\\": 4821}', 'x {\\"pin\\": \\"[REDACTED:SECRET]\\"}'),
        ("{'pin': 4821}", "{'pin': '[REDACTED:SECRET]'}"),
        ('$ x\n{"otp": 482913\n}', '$ x\n{"otp": "[REDACTED:SECRET]"\n}'),
        (
            'a {"list": [13812345678, 15051468284]}',
            'a {"list": ["[REDACTED:PHONE]", "[REDACTED:PHONE]"]}',
        ),
        (
            '{"phone": ["13812345678", 15051468284, 1]}',
            '{"phone": ["[REDACTED:PHONE]", "[REDACTED:PHONE]", 1]}',
        ),
        (
            '$ x\n{\n  "list": [\n    13812345678,\n    15051468284\n  ]\n}\n',
            '$ x\n{\n  "list": [\n    "[REDACTED:PHONE]",\n'
            '    "[REDACTED:PHONE]"\n  ]\n}\n',
        ),
        (
            'x {"phone":\n  13812345678\n}',
            'x {"phone":\n  "[REDACTED:PHONE]"\n}',
        ),
        (
            'x {"list": [' + "13812345678, " * 30 + "1]}",
            'x {"list": [' + '"[REDACTED:PHONE]", ' * 30 + "1]}",
        ),
        (
            'log: {"a":[{"b":"x"} , 4111111111111111]} end',
            'log: {"a":[{"b":"x"} , "[REDACTED:BANK_CARD]"]} end',
        ),
        (
            "x [true,-4111111111111111] y",
            'x [true,"[REDACTED:BANK_CARD]"] y',
        ),
        (
            '{"password":-4111111111111111}',
            '{"password":"[REDACTED:BANK_CARD]"}',
        ),
        (
            'x {\\"a\\":[[null] , 1e+20 , 4111111111111111]}',
            'x {\\"a\\":[[null] , 1e+20 , \\"[REDACTED:BANK_CARD]\\"]}',
        ),
        (
            'x {"ids": ["\\\\", [4111111111111111]]}',
            'x {"ids": ["\\\\", ["[REDACTED:BANK_CARD]"]]}',
        ),
        (
            f'x {{"a": [{"1, " * 200}4111111111111111]}}',
            f'x {{"a": [{"1, " * 200}"[REDACTED:BANK_CARD]"]}}',
        ),
    ],
)
def test_a_number_of_json_in_a_text_becomes_a_string(text: str, expected: str) -> None:
    for by_engine in REDACTORS.values():
        assert by_engine.text(text)[0] == expected
        assert by_engine.text(expected)[0] == expected


@pytest.mark.parametrize(
    "text",
    [
        "pin: 4821",
        'the "pin" is 4821, thanks',
        '{"note": "pin: 4821, and so on"}',
        "call 13812345678, 15051468284",
        '"my pin: 4821"',
        "see [1], 4111111111111111, not this",
        "none, 4111111111111111",
    ],
)
def test_a_number_outside_of_json_gets_no_quotes(text: str) -> None:
    clean = redactor.text(text)[0]

    assert clean.count('"') == text.count('"')
    assert "[REDACTED:" in clean


NUMBERS = [13812345678, 15051468284, 4111111111111111, -4111111111111111, -482913]
OTHERS: list[object] = [
    1,
    2.5,
    -3,
    1e20,
    True,
    False,
    None,
    "a",
    "it's",
    'say "x"',
    "",
    [],
    {},
]


def generated(random: Random, depth: int = 0) -> object:
    """Generate a value of JSON with numbers that redaction finds."""
    choice = random.random()
    if choice < 0.2:
        return random.choice(NUMBERS)
    if choice < 0.25:
        return [1] * 60
    if depth < 4 and choice < 0.45:
        return [generated(random, depth + 1) for _ in range(random.randrange(6))]
    if depth < 4 and choice < 0.7:
        keys = random.sample(["a", "password", "phone", "pin", "k q"], k=3)
        return {key: generated(random, depth + 1) for key in keys}
    return random.choice(OTHERS)


def test_generated_json_behind_a_text_stays_valid() -> None:
    random = Random(7)
    findings = 0
    for _ in range(1_500):
        value = {"list": generated(random), "items": [generated(random)]}
        separators = random.choice([None, (",", ":"), (" , ", " : ")])
        document = json.dumps(
            value, indent=random.choice([None, 1, 4]), separators=separators
        )
        if random.random() < 0.2:
            document = json.dumps({"text": document})
        before = random.choice(["", "log: ", "$ cmd\n"])
        after = random.choice(["", " end", "\nok"])

        clean, tally = redactor.text(f"{before}{document}{after}")

        redacted = json.loads(clean.removeprefix(before).removesuffix(after))
        if isinstance(redacted.get("text"), str):
            json.loads(redacted["text"])
        findings += tally.n
    assert findings > 1_500


def test_json_behind_a_text_in_a_value_still_parses() -> None:
    text = '2026-03-02 INFO sent={"pin": 4821, "phone": 13812345678}'
    clean = redactor.value({"content": text, "n": [text]})[0]

    for line in (clean["content"], clean["n"]):
        assert json.loads(str(line).partition("=")[2].rstrip("']")).keys() == {
            "pin",
            "phone",
        }

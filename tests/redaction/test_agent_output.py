"""Data that an agent needs stays unchanged: ids, counts, tensors, and file names."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.redaction.redactor import Redactor

redactor = Redactor()
LINES = (Path(__file__).parent / "agent_output.txt").read_text().splitlines()


def test_lines_of_tools_stay() -> None:
    assert len(LINES) >= 300
    changed = [line for line in LINES if redactor.text(line)[0] != line]

    assert changed == []


def test_lines_of_tools_stay_together_and_under_a_key() -> None:
    text = "\n".join(LINES)

    assert redactor.text(text)[0] == text
    assert redactor.value({"content": text})[0] == {"content": text}


def test_columns_of_numbers_have_hardly_a_finding() -> None:
    source = random.Random(20_260_731)
    lines: list[str] = []
    for _ in range(20_000):
        cells = [str(source.randrange(10 ** source.randrange(1, 13))) for _ in range(6)]
        lines.append("  ".join(cells))
    text = "\n".join(lines)

    _, tally = redactor.text(text)

    assert tally.n <= 5 * len(text) / 1e6, tally.rules


@pytest.mark.parametrize(
    ("value", "is_redacted"),
    [
        ({"id": 15812345678}, False),
        ({"databaseId": 15812345678}, False),
        ({"total_tokens": 13812345678}, False),
        ({"samples": [15912345678, 13912345678]}, False),
        ({"list": [13812345678]}, True),
        ({"contact": 13812345678}, True),
        ({"bank": 6222026006705354217}, True),
        ({"x": 4111111111111111}, True),
        ({"pin": 4821}, True),
        ({"otp": 265145}, True),
        ({"password": 191428}, True),
        ({"secret": 191428320}, True),
        ({"mrn": 69715259}, True),
        ({"count": 4821}, False),
    ],
)
def test_a_number_has_one_verdict_in_each_form(value: Any, is_redacted: bool) -> None:
    (key, number), *_ = value.items()
    as_text = (
        [str(item) for item in number] if isinstance(number, list) else str(number)
    )
    forms = [value, {key: as_text}]
    for form in forms:
        text = json.dumps(form)

        assert (redactor.value(form)[0] != form) == is_redacted
        assert (redactor.value({"t": text})[0] != {"t": text}) == is_redacted
        assert (redactor.text(text)[0] != text) == is_redacted


def test_a_finding_in_json_includes_nothing_of_its_neighbors() -> None:
    key = "MIIEow3fTq9q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6CgTuEaX"
    head = "-----BEGIN RSA PRIVATE KEY-----"
    pem = f"{head}\\n{key}\\n{key}\\n-----END RSA PRIVATE KEY-----"
    digest = "q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6CgTuEaXoIiGkMzPnQvSyBwD"
    for cut in (pem, pem[len(head) + 2 :]):
        text = f'{{"digest": "{digest}", "size": 24, "pem": "{cut}", "x": 1}}'

        clean = redactor.text(text)[0]

        assert clean == text.replace(cut, "[REDACTED:PRIVATE_KEY]")


@pytest.mark.parametrize(
    "line",
    [
        "gh run view 15812345678",
        "https://github.com/a/b/actions/runs/15812345678/job/43812345679",
        "s3://bucket/parts/15912345678.parquet",
        "txid 15912345678",
        "total_tokens: 13812345678",
        "loss 1.5912345678e+10",
        "tensor([15912345678, 13912345678])",
        "15812345678  completed  success  CI  main  push",
        "4242424242424242 bytes",
        "Run 15812345678 (attempt 2) finished in 4m12s",
        "job_15812345678.log: no such file or directory",
        "rows=15812345678 width=8",
        "call id 15812345678 returned",
    ],
)
def test_numbers_without_a_sign_of_calling_stay(line: str) -> None:
    assert redactor.text(line)[0] == line


@pytest.mark.parametrize(
    "text",
    [
        "13812345678",
        " 13812345678\n",
        "13812345678, 15912345678",
        "138 1234 5678",
        "+8613812345678",
        "tel:13812345678",
        "call 13812345678",
        "my number is 13812345678",
        "我的号码13812345678",
        "张三,13812345678",
        "ada@mail.example.org,13812345678",
    ],
)
def test_numbers_with_a_sign_of_calling_are_phones(text: str) -> None:
    clean = redactor.text(text)[0]

    assert "12345678" not in clean.replace(" ", "")
    assert "[REDACTED:PHONE]" in clean


def test_a_key_that_is_no_text_is_named() -> None:
    with pytest.raises(refold.RefoldError, match="a key is of type int"):
        refold.redact({"a": {3: "a"}})

"""What an agent needs stays as it is: ids, counts, tensors, and names of files."""

import pytest

import refold
from refold.redaction.redactor import Redactor

redactor = Redactor()


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

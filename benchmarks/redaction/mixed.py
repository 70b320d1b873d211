"""Clean text with one byte in a hundred of personal data and secrets, in sentences."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.redaction import personal
from benchmarks.redaction.credentials import SECRETS
from benchmarks.redaction.vendors import VENDORS

SHARE = 0.01
_SENTENCES = {
    "PHONE": (
        "My number is {}, call after six.",
        "请拨打手机 {}，谢谢。",
        "电话：{}。",
    ),
    "EMAIL": ("Write to {} about it.", "有问题请发邮件到 {}。", "cc: {}"),
    "ID_CARD": ("身份证号 {}，请核实。", "The id card says {}."),
    "BANK_CARD": ("Please charge card {}.", "银行卡号：{}"),
    "PASSWORD": ("password: {}", "密码：{}", "DB_PASSWORD={}"),
    "TOKEN": ("Authorization: Bearer {}", 'api_token = "{}"', "TOKEN={}"),
    "JWT": ("The cookie held {} at noon.", "jwt={}"),
    "API_KEY": ("Use {} for the demo.", "API_KEY={}", "密钥是 {}。"),
}
_KINDS = tuple(_SENTENCES)
_WEIGHTS = (30, 30, 10, 10, 8, 4, 2, 6)


def mixed(rng: random.Random, clean: Sequence[str]) -> list[str]:
    """``clean`` with values in sentences of their own, at ends of lines."""
    texts, size, planted = [], 0, 0
    for text in clean:
        size += len(text.encode())
        while planted < size * SHARE:
            value, sentence = planting(rng)
            planted += len(value.encode())
            text = _inserted(rng, text, sentence)
        texts.append(text)
    return texts


def planting(rng: random.Random) -> tuple[str, str]:
    """A value and the sentence it stands in."""
    kind = rng.choices(_KINDS, _WEIGHTS)[0]
    if kind == "API_KEY":
        value = rng.choice(VENDORS).make(rng)
    elif kind in SECRETS:
        value = SECRETS[kind](rng)
    else:
        value = personal.make(rng, kind)
    return value, rng.choice(_SENTENCES[kind]).format(value)


def _inserted(rng: random.Random, text: str, sentence: str) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    lines[at] = f"{lines[at]} {sentence}"
    return "\n".join(lines)

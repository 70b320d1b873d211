"""All measured texts, from one seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from benchmarks.redaction import events, prose, values
from benchmarks.redaction.events import Json, noise
from benchmarks.redaction.values import ALNUM, BASE64, HEX, SECRETS, VENDORS, run

SIZE = 100_000


def adversarial(rng: random.Random, size: int = SIZE) -> dict[str, str]:
    """The texts by their origin."""
    return {
        name: (unit * (size // len(unit) + 1))[:size]
        for name, unit in _units(rng).items()
    }


def _units(rng: random.Random) -> dict[str, str]:
    return {
        "dotted letters": "a.",
        "at signs": "@",
        "almost e-mails": "a@b.",
        "long local parts": "a" * 63 + "@",
        "endless label": "x@" + "a-" * 400,
        "ones": "1",
        "digits and spaces": "1 ",
        "digits and dashes": "13-",
        "grouped fours": "4111 1111 1111 1112 ",
        "bare mobiles": "13812345678 ",
        "phone words": "phone ",
        "phone words in Chinese": "手机",
        "context and no value": "password: ",
        "assignments of nothing": "secret_key_token=",
        "quotes": 'password="',
        "escaped quotes": '{\\"password\\":\\"',
        "password as Chinese word": "密码：",
        "endless value": "token=" + run(rng, 3000),
        "PEM heads": "-----BEGIN RSA PRIVATE KEY-----\n",
        "one PEM without an end": "-----BEGIN PRIVATE KEY-----\n"
        + run(rng, 99_000, BASE64),
        "JWT heads": "eyJhbGciOiJIUzI1NiJ9.",
        "JWT dots": "eyJ.eyJ.",
        "key prefixes": "sk-ghp_AKIAxoxb-glpat-hf_",
        "key prefixes in words": "AKIA" + "A" * 15 + " ",
        "schemes": "a://b:",
        "credentials without a host": "postgres://u:" + "p" * 80,
        "placeholders": "[REDACTED:EMAIL]",
        "open placeholders": "[REDACTED:",
        "full-width digits": "１３８\u200b１２",
        "hex": run(rng, 50_000, HEX) + run(rng, 50_000, ALNUM),
    }


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
    """Return ``clean`` with values in separate sentences at ends of lines."""
    texts = []
    size = 0
    planted = 0
    for text in clean:
        size += len(text.encode())
        while planted < size * SHARE:
            value, sentence = planting(rng)
            planted += len(value.encode())
            text = _inserted(rng, text, sentence)
        texts.append(text)
    return texts


def planting(rng: random.Random) -> tuple[str, str]:
    """Return a value and the sentence that contains it."""
    kind = rng.choices(_KINDS, _WEIGHTS)[0]
    if kind == "API_KEY":
        value = rng.choice(VENDORS).make(rng)
    elif kind in SECRETS:
        value = SECRETS[kind](rng)
    else:
        value = values.make(rng, kind)
    return value, rng.choice(_SENTENCES[kind]).format(value)


def _inserted(rng: random.Random, text: str, sentence: str) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    lines[at] = f"{lines[at]} {sentence}"
    return "\n".join(lines)


SEED = 20_260
Texts: TypeAlias = list[str]
_MEBI = 1_000_000
_LONG = 100_000


@dataclass(frozen=True)
class Corpora:
    """The corpora at ``scale`` of their size, each generated on first use."""

    scale: float = 1.0
    seed: int = SEED

    @cached_property
    def clean(self) -> Texts:
        """Chinese and English prose and Python, without personal data."""
        return prose.chunks(self._clean)

    @cached_property
    def mixed(self) -> Texts:
        """The same with one byte in a hundred of personal data and secrets."""
        return mixed(self._rng("mixed"), self.clean)

    @cached_property
    def clean_long(self) -> Texts:
        """``clean`` in texts of 100 KB."""
        return prose.chunks("".join(self.clean), _LONG)

    @cached_property
    def mixed_long(self) -> Texts:
        """``mixed`` in texts of 100 KB."""
        return prose.chunks("".join(self.mixed), _LONG)

    @cached_property
    def events(self) -> list[Json]:
        """Results of tools, as JSON values."""
        count = max(26, int(events.EVENTS * self.scale))
        return [*events.events(self._rng("events"), count)]

    @cached_property
    def small_events(self) -> list[Json]:
        """Events of 174 bytes."""
        rng = self._rng("small")
        return [
            events.small_event(rng) for _ in range(max(200, int(5000 * self.scale)))
        ]

    @cached_property
    def small_leaves(self) -> list[Json]:
        """Answers of a hundred short rows each."""
        rng = self._rng("leaves")
        return [events.small_leaves(rng) for _ in range(max(5, int(100 * self.scale)))]

    @cached_property
    def noise(self) -> dict[str, str]:
        """Return tool outputs by kind, without personal data."""
        return noise(self._rng("noise"), int(4 * _MEBI * self.scale))

    @cached_property
    def code(self) -> dict[str, str]:
        """Whole files of the standard library in which a plain eye sees nothing."""
        files = [file for file in prose.library() if not prose.personal(file[1])]
        return dict(files[:: max(1, round(1 / self.scale))])

    @cached_property
    def adversarial(self) -> dict[str, str]:
        """Thirty texts of 100 KB; at a smaller scale, shorter ones."""
        size = int(_LONG * min(1.0, self.scale * 10))
        return adversarial(self._rng("adversarial"), size)

    @cached_property
    def _clean(self) -> str:
        rng = self._rng("clean")
        third = int(1.65 * _MEBI * self.scale)
        chinese = prose.chinese(rng, int(1.8 * _MEBI * self.scale))
        return chinese + prose.english(rng, third) + prose.code(third)

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}:{name}")

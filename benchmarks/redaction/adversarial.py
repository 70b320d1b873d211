"""Thirty texts made to keep a redactor busy, 100 KB each."""

from __future__ import annotations

import random

from benchmarks.redaction.credentials import ALNUM, BASE64, HEX, run

SIZE = 100_000


def adversarial(rng: random.Random, size: int = SIZE) -> dict[str, str]:
    """Each text by what it is made of."""
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

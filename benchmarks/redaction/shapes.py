"""Fills templates: ``{h40}`` is forty hexadecimal digits, ``{path}`` a file's name."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Mapping

from benchmarks.redaction import prose, vocabulary as words
from benchmarks.redaction.credentials import (
    ALNUM,
    BASE32,
    BASE64,
    HEX,
    LOWER,
    UPPER,
    URL64,
    run,
    uuid,
)

_SLOT = re.compile(r"\{([a-z]+|[A-Za-z]\d+)\}")
_ALPHABETS = {
    "A": ALNUM,
    "b": BASE64,
    "c": "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L",
    "d": string.digits,
    "h": HEX,
    "l": LOWER + string.digits,
    "t": BASE32,
    "u": UPPER,
    "w": URL64,
}


def filled(template: str, rng: random.Random) -> str:
    """``template`` with each slot drawn anew.

    A letter and a number are so many characters of an alphabet, digits not led by 0;
    a word is one of the shapes below, or not a slot.
    """

    def fill(slot: re.Match[str]) -> str:
        name = slot[1]
        if shape := _SHAPES.get(name):
            return shape(rng)
        if name.isalpha():
            return slot[0]
        text = run(rng, int(name[1:]), _ALPHABETS[name[0]])
        return f"{rng.randint(1, 9)}{text[1:]}" if name[0] == "d" else text

    return _SLOT.sub(fill, template)


def path(rng: random.Random) -> str:
    """A path of a project."""
    folders = rng.choices(words.SYMBOLS, k=rng.randint(1, 3))
    ending = rng.choice((".py", ".ts", ".go", ".md", "_test.py", ".yaml"))
    return "/".join(("src", *folders, rng.choice(words.SYMBOLS) + ending))


def stamp(rng: random.Random) -> str:
    """A time as logs write it."""
    r = rng.randint
    day = f"{r(2023, 2026)}-{r(1, 12):02}-{r(1, 28):02}"
    return f"{day}T{r(0, 23):02}:{r(0, 59):02}:{r(0, 59):02}.{r(0, 999):03}Z"


def sentence(rng: random.Random) -> str:
    """The start of an English sentence."""
    return prose.english(rng, 40).split("\n")[0][:90]


_SHAPES: Mapping[str, Callable[[random.Random], str]] = {
    "n": lambda rng: str(rng.randint(1, 9999)),
    "path": path,
    "second": lambda rng: str(rng.randint(1_500_000_000, 1_900_000_000)),
    "milli": lambda rng: str(rng.randint(1_500_000_000_000, 1_900_000_000_000)),
    "sentence": sentence,
    "stamp": stamp,
    "status": lambda rng: rng.choice(("200", "200", "304", "404")),
    "thing": lambda rng: rng.choice(words.EN_THINGS),
    "uuid": uuid,
    "word": lambda rng: rng.choice(words.SYMBOLS),
}

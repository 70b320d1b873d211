"""Clean text: English and Chinese prose about programs, and Python that is on hand."""

from __future__ import annotations

import functools
import random
import re
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.redaction import vocabulary as words

CHUNK = 1800
_RARE = 1 / 30
# What might be personal data or a secret, seen by no rule of Refold but by a plain eye.
_SUSPICIOUS = re.compile(
    r"[\w.+-]@[\w-]"
    r"|\d{7}|\d[ .()/-]{1,2}\d{3,4}[ .()/-]{1,2}\d{3,4}|\+\d{2}"
    r"|-----BEGIN|\beyJ|://[^/\s]*:[^/\s]*@"
    r"|(?i:passw|passphrase|secret|token|bearer|api.?key|credential|\bauth)"
    r"[\w\"']{0,12}\s{0,3}(?:[:=]|=>)\s{0,3}\S"
    r"|[A-Za-z0-9+/_-]{32}"
)

# Personal data and secrets as such.  A name of a variable beside a word is neither, and
# long numbers in a library are nobody's.
_PERSONAL = re.compile(
    r"[\w.+-]@[\w-]+\.[a-z]|-----BEGIN|\beyJ|://[^/\s:]*:[^/\s@]{3,}@"
    r"|(?i:passwo?r?d|secret)\w*[\"']?\s?[:=]\s?[\"'b]"
)


def english(rng: random.Random, size: int) -> str:
    """About ``size`` bytes of English documentation in paragraphs."""
    return _prose(rng, size, _english, " ", "\n\n")


def chinese(rng: random.Random, size: int) -> str:
    """About ``size`` bytes of Chinese technical prose in paragraphs."""
    return _prose(rng, size, _chinese, "", "\n")


def code(size: int) -> str:
    """Up to ``size`` bytes of the standard library, suspicious lines left out."""
    kept: list[str] = []
    total = 0
    for _, text in library():
        lines = [line for line in text.splitlines(True) if not suspicious(line)]
        kept.extend(lines)
        total += sum(map(len, lines))
        if total >= size:
            break
    return "".join(kept)[:size]


@functools.cache
def library() -> tuple[tuple[str, str], ...]:
    """Name and text of the modules of the running standard library, in one order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if {"test", "tests", "site-packages", "dist-packages"} & {*name.parts}:
            continue
        if text := _decoded(path):
            found.append((str(name), text))
    return tuple(found)


def suspicious(line: str) -> bool:
    """Whether a line might hold personal data or a secret."""
    return bool(_SUSPICIOUS.search(line))


def personal(text: str) -> bool:
    """Whether a text might hold personal data or a secret, less strictly."""
    return bool(_PERSONAL.search(text))


def chunks(text: str, size: int = CHUNK) -> list[str]:
    """Cut ``text`` into pieces of about ``size`` bytes in UTF-8, at ends of lines."""
    pieces, lines, length = [], [], 0
    for line in text.splitlines(True):
        lines.append(line)
        length += len(line.encode())
        if length >= size:
            pieces.append("".join(lines))
            lines, length = [], 0
    return [*pieces, "".join(lines)] if lines else pieces


def _decoded(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _prose(
    rng: random.Random,
    size: int,
    sentence: Callable[[random.Random], str],
    space: str,
    end: str,
) -> str:
    parts: list[str] = []
    total = 0
    while total < size:
        paragraph = space.join(sentence(rng) for _ in range(rng.randint(2, 6)))
        paragraph = paragraph + end
        parts.append(paragraph)
        total += len(paragraph.encode())
    return "".join(parts)


def _english(rng: random.Random) -> str:
    sentences = words.EN_RARE if rng.random() < _RARE else words.EN_SENTENCES
    return rng.choice(sentences).format_map(
        _Slots(rng, words.EN_THINGS, words.EN_ACTS, words.EN_HOW, words.EN_QUALITIES)
    )


def _chinese(rng: random.Random) -> str:
    sentences = words.ZH_RARE if rng.random() < _RARE else words.ZH_SENTENCES
    return rng.choice(sentences).format_map(
        _Slots(rng, words.ZH_THINGS, words.ZH_ACTS, words.ZH_HOW, words.ZH_QUALITIES)
    )


class _Slots(dict[str, str]):
    """Fills a template's slots with words and numbers, each drawn when asked for."""

    def __init__(
        self,
        rng: random.Random,
        things: Sequence[str],
        acts: Sequence[str],
        how: Sequence[str],
        qualities: Sequence[str],
    ) -> None:
        super().__init__()
        self._rng = rng
        self._words = {"t": things, "a": acts, "h": how, "q": qualities}
        self._words["s"] = words.SYMBOLS

    def __missing__(self, slot: str) -> str:
        if bank := self._words.get(slot[0]):
            return self._rng.choice(bank)
        return _number(self._rng, slot)


def _number(rng: random.Random, slot: str) -> str:
    r = rng.randint
    match slot:
        case "v":
            return f"{r(0, 9)}.{r(0, 30)}" + rng.choice(("", f".{r(0, 20)}", "rc1"))
        case "p":
            return rng.choice((f"{r(1, 99)}", f"{r(1, 99)}.{r(0, 9)}"))
        case "d":
            return f"{r(2009, 2026)}-{r(1, 12):02}-{r(1, 28):02}"
        case "c":
            return f"{r(0, 23):02}:{r(0, 59):02}:{r(0, 59):02}"
        case "x":
            return f"{r(1, 12)}.{r(1, 9)}"
        case "k" | "k2":
            return str(r(10_000, 400_000))
        case "n":
            return rng.choice((f"{r(2, 999)}", f"{r(1, 64)},{r(0, 999):03}", "65536"))
        case _:
            return f"{r(2, 64)}"

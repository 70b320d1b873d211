"""Which of many exact texts occur in a text, by whichever engine is installed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

from refold.redaction.engines import EngineName
from refold.redaction.engines.octets import in_bytes
from refold.redaction.fold import TELLING, telling

# (the texts that occur, whether the text may look like something else)
Occurring: TypeAlias = Callable[[str], tuple[list[str], bool]]


def occurring(literals: Sequence[str], engine: EngineName) -> Occurring:
    """A function that says which of ``literals`` are in a text; threads may share it.

    engine: one that is installed, by its name.
    """
    if engine == "vectorscan":
        return _Vectorscan(literals)
    if engine == "re2":
        return _Re2(literals)
    return _Stdlib(literals)


class _Stdlib:
    def __init__(self, literals: Sequence[str]) -> None:
        self._literals = literals

    def __call__(self, text: str) -> tuple[list[str], bool]:
        found = [literal for literal in self._literals if literal in text]
        return found, bool(telling(text))


class _Re2:
    """One search says whether there is any: only then each is searched for.

    A set of RE2 could say which, but also says that there is none when its memory is
    too small.
    """

    def __init__(self, literals: Sequence[str]) -> None:
        import re2

        options = re2.Options()
        options.max_mem = 64 << 20
        options.log_errors = False
        options.never_capture = True
        escaped = [re2.escape(literal.encode()).decode() for literal in literals]
        self._any = re2.compile("|".join([*escaped, *TELLING]), options)
        self._each = _Stdlib(literals)

    def __call__(self, text: str) -> tuple[list[str], bool]:
        if self._any.search(text.encode(errors="replace")):
            return self._each(text)
        return [], False


class _Vectorscan:
    """One database of all literals, made for short ones: a long one costs no more."""

    def __init__(self, literals: Sequence[str]) -> None:
        import hyperscan

        self._literals = literals
        self._hyperscan: Any = hyperscan
        expressions = [_telling(), *map(_bytes, literals)]
        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._database.compile(
            expressions=[expression.encode() for expression in expressions],
            ids=list(range(len(expressions))),
            elements=len(expressions),
            flags=hyperscan.HS_FLAG_SINGLEMATCH,
        )
        self._local = threading.local()

    def __call__(self, text: str) -> tuple[list[str], bool]:
        numbers: list[int] = []
        data = text.encode(errors="replace")
        try:
            self._scan(data, numbers, self._scratch())
        except self._hyperscan.ScratchInUseError:
            # A signal's handler, or a log line, in the middle of a search.
            numbers.clear()
            self._scan(data, numbers, self._hyperscan.Scratch(self._database))
        found = sorted(numbers)
        folds = bool(found) and found[0] == 0
        return [self._literals[number - 1] for number in found[folds:]], folds

    def _scan(self, data: bytes, numbers: list[int], scratch: Any) -> None:
        self._database.scan(
            data, match_event_handler=_note, context=numbers, scratch=scratch
        )

    def _scratch(self) -> Any:
        """Working memory, which no two searches may share at a time."""
        try:
            return self._local.scratch
        except AttributeError:
            scratch = self._local.scratch = self._hyperscan.Scratch(self._database)
            return scratch


@cache
def _telling() -> str:
    """What a text holds that may look like something else, over bytes."""
    return "|".join(map(in_bytes, TELLING))


def _bytes(literal: str) -> str:
    """``literal`` for an expression: every byte that is not plain in hex."""
    return "".join(
        character
        if character.isascii() and character.isalnum()
        else "".join(f"\\x{byte:02x}" for byte in character.encode())
        for character in literal
    )


def _note(number: int, _start: int, _end: int, _flags: int, numbers: Any) -> None:
    numbers.append(number)

"""Checks that rules name: functions that judge what a pattern matched."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from refold.domain.locks import computed_once


class Candidate(NamedTuple):
    """A match of a pattern, for a check to judge; ``text`` is the text around it."""

    text: str
    start: int
    end: int
    match: re.Match[str]

    @property
    def value(self) -> str:
        """The text that would be redacted."""
        return self.text[self.start : self.end]

    def before(self, length: int) -> str:
        """Up to ``length`` characters that stand before the value."""
        start = self.start - length
        if start < 0:
            start = 0  # faster than ``max``, and checks call this many times
        return self.text[start : self.start]

    def after(self, length: int) -> str:
        """Up to ``length`` characters that stand after the value."""
        return self.text[self.end : self.end + length]


# Returns True or False as its decision, or a number to add to the score of the match.
Validator: TypeAlias = Callable[[Candidate], bool | float]
# Returns the extents of the values in a text with this match, in order.  The set holds
# the places that one call has looked at, so that the next does not look at them again.
Extents: TypeAlias = Callable[[str, re.Match[str], set[int]], list[tuple[int, int]]]


@dataclass(frozen=True)
class Check:
    """A function that judges matches; its module is loaded on the first use.

    name:   the name of the function, as in the fingerprint of a plan.
    module: the module of the checks that has it; empty for a program's own function.
    own:    a program's own function.
    """

    name: str
    module: str = ""
    own: Callable[..., Any] | None = None

    @classmethod
    def named(cls, path: str) -> Check:
        """The function at ``module.name``, as the files of packs write it."""
        module, _, name = path.partition(".")
        return cls(name, module)

    @computed_once
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        if self.own is not None:
            return self.own
        module = import_module(f"refold.redaction.checks.{self.module}")
        function: Callable[..., Any] = getattr(module, self.name)
        return function

"""Checks that a rule names: they judge what its pattern found."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias


class Candidate(NamedTuple):
    """What a pattern matched, for a validator to judge; ``text`` is all around it."""

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
        return self.text[max(0, self.start - length) : self.start]

    def after(self, length: int) -> str:
        """Up to ``length`` characters that stand after the value."""
        return self.text[self.end : self.end + length]


# True and False decide; a number is added to the score of what was matched.
Validator: TypeAlias = Callable[[Candidate], bool | float]
# From a text and a match in it to the extents of values, in order; what it has looked
# at for one match of the text it remembers in the set, and does not look at again.
Extents: TypeAlias = Callable[[str, re.Match[str], set[int]], list[tuple[int, int]]]

"""Pack ``person``: names that a label or a key gives away."""

from __future__ import annotations

from refold.redaction.checks import Candidate
from refold.redaction.rules.rule import load, pattern

_NOBODY = pattern(__name__, "_NOBODY")
_NOT_A_NAME = pattern(__name__, "_NOT_A_NAME")


def person(found: Candidate) -> bool:
    """Words that start with capitals, of which none is a word of machines or firms."""
    return not _NOBODY.fullmatch(found.value)


def person_zh(found: Candidate) -> bool:
    """A Chinese name; not what a form says of the field for it."""
    return not _NOT_A_NAME.search(found.value)


PERSON = load(globals(), "person")

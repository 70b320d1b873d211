"""The inventory of erasure: every place where Refold may keep something of a user."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["table", "key table", "file", "outside"]


class Place(NamedTuple):
    """One place, and what an erasure does there.

    name:   of a table, or of files; for ``outside``, what people call it.
    holds:  what of a user may be in it.
    erased: how an erasure removes that, or why nothing of the user can be read there.
    files:  for ``file``: the names below ``REFOLD_HOME``, as a pattern.
    """

    kind: Kind
    name: str
    holds: str
    erased: str
    files: str = ""

"""The table of rights in the documentation equals the rights that are set up."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from refold.adapters.sql.roles import RIGHTS, ROLES, SETTING, Right

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "schema.md"


def documented(rights: list[Right]) -> str:
    """Return the first letter of each verb, in one order; a lock changes nothing."""
    letters = {
        right.verb[0]: "*" if right.becoming == "false" else "" for right in rights
    }
    letters_of_verbs = " ".join(
        verb + letters[verb] for verb in "SIUD" if verb in letters
    )
    own = any(SETTING in right.rows for right in rights)
    return (letters_of_verbs + " own" * own) or "–"


def test_every_table_has_its_row() -> None:
    names = sorted(set(chain.from_iterable(RIGHTS.values())))
    rows = [
        [f"`{name}`", *(documented([*RIGHTS[role].get(name, ())]) for role in ROLES)]
        for name in names
    ]
    head = ["table", *(f"`{role}`" for role in ROLES)]

    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]

    page = PAGE.read_text("utf-8")
    assert [line for line in lines if line not in page] == []

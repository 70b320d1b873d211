"""The statements in the files of ``data``, and names that stand in statements.

Nothing here needs SQLAlchemy, which takes longer to load than a short process runs.
"""

from __future__ import annotations

import re
from functools import cache
from pkgutil import get_data
from typing import Final

from refold.domain.canonical import load_packaged_toml

SCHEMA: Final = "refold"  # the schema of the tables on PostgreSQL
# Names in ``settings`` that stay there.  A transaction that rewrites sets
# ``rewriting`` and removes it before it commits.
FLOOR: Final = "floor"  # on SQLite: the highest position of a deleted row
CLOCK: Final = "clock"  # on SQLite: the store's time at one tick
SETTINGS: Final = frozenset(
    {"schema_version", "store_id", "key_generation", FLOOR, CLOCK}
)
# The tables of a store.
TABLES: Final = (
    "settings",
    "heads",
    "blobs",
    "receipts",
    "views",
    "leases",
    "subjects",
    "erasures",
    "certificates",
    "holds",
    "leaves",
    "seals",
    "tree_heads",
    "audit",
    "accesses",
    "exports",
    "labels",
    "events",
)
FIRST: Final = ("", "", "")  # sorts before all streams, and before all stored views
LAST: Final = 2**63 - 1  # no seq and no number of a leaf is higher
_HOLE: Final = re.compile(r"\{(\w+)\}")


@cache
def statements(file: str) -> dict[str, str]:
    """Return the statements of ``file.sql``, by the name in their ``-- name:`` lines.

    An earlier statement replaces its ``{name}`` in later ones.  A name without a
    statement stays as a hole, which the caller fills.
    """
    content = get_data("refold.adapters.sql", f"data/{file}.sql") or b""
    queries: dict[str, str] = {}
    for section in content.decode().split("-- name: ")[1:]:
        name, _, body = section.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        query = "\n".join(lines).strip()
        queries[name] = filled(query, **queries)
    return queries


def filled(query: str, **holes: str) -> str:
    """Return the query with these holes filled; other holes stay."""
    return _HOLE.sub(lambda hole: holes.get(hole[1], hole[0]), query)


def guards(file: str) -> tuple[str, ...]:
    """Return the statements of ``file.sql`` that make events immutable, in order."""
    return tuple(
        query for name, query in statements(file).items() if name.startswith("guard_")
    )


@cache
def refusals(engine: str) -> dict[str, tuple[str, str]]:
    """Return the reason and the remedy for each error of an engine.

    The key is the code of the error, or a part of its text.
    """
    reasons: dict[str, tuple[str, str]]
    reasons = load_packaged_toml("refold.adapters.sql", "data", "refusals.toml")[engine]
    return reasons

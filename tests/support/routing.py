"""Whose rows a statement is about: of each table of users it must say whose.

An engine that spreads users over machines can send such a statement to one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import sqlglot
from sqlglot import exp

from refold.adapters.sql import tables

USER: Final = "user_id"
OF_USERS: Final = frozenset(
    table.name
    for table in tables.build(None, rowid=True).metadata.tables.values()
    if USER in table.columns
)
_PARTS: Final = (exp.Select, exp.Update, exp.Delete)


def unrouted(statement: str) -> list[str]:
    """The tables of users that a part of the statement names without saying whose.

    Said is: ``user_id`` equals a value, or the ``user_id`` of what was given as values,
    or of another table of the same part of which it is said.  What a part outside says
    does not count: such an engine asks all its machines for a part that leans on it.
    """
    found = list[str]()
    for tree in sqlglot.parse(statement, read="postgres"):
        if isinstance(tree, exp.Command):
            raise ValueError(f"cannot be parsed: {statement[:200]}")
        if tree is not None:
            found += _of(tree, frozenset())
    return found


def _of(node: Any, said: frozenset[str]) -> Iterator[str]:
    """Of a part and those in it; ``said`` names the values outside."""
    if isinstance(node, _PARTS):
        sources = dict(_sources(node))
        known = said | {
            name for name, table in sources.items() if table not in OF_USERS
        }
        equals = [*_equal(node)]
        for _ in sources:  # each pass may make one more known
            known |= {
                name
                for name in sources
                for one, other in equals
                if _names(one, name, sources) and _is_said(other, known)
            }
        yield from (
            f"{sources[name]} {name}" for name in sorted(sources.keys() - known)
        )
        said |= {name for name, table in sources.items() if table not in OF_USERS}
    for child in node.iter_expressions():
        yield from _of(child, said)


def _sources(node: Any) -> Iterator[tuple[str, str]]:
    """What a part reads or changes, by the name that it has there."""
    found = [join.this for join in node.args.get("joins") or ()]
    if not isinstance(node, exp.Select):
        found.append(node.this)
    for key in ("from_", "from", "using"):
        given = node.args.get(key)
        some = given if isinstance(given, list) else [given]
        found += [one.this if isinstance(one, exp.From) else one for one in some if one]
    for one in found:
        inner = one.this if isinstance(one, exp.Lateral) else one
        named = inner.name if isinstance(inner, exp.Table) else ""
        yield one.alias_or_name or named, named
        for join in one.args.get("joins") or ():
            yield join.this.alias_or_name, join.this.name


def _equal(node: Any) -> Iterator[tuple[Any, Any]]:
    """What must be equal to what, where the part's own conditions hold."""
    conditions = [join.args.get("on") for join in node.args.get("joins") or ()]
    where = node.args.get("where")
    conditions.append(where.this if where else None)
    while conditions:
        one = conditions.pop()
        if isinstance(one, exp.Paren):
            conditions.append(one.this)
        elif isinstance(one, exp.And):
            conditions += [one.left, one.right]
        elif isinstance(one, exp.EQ):
            left, right = one.left, one.right
            pairs = [(left, right)]
            if isinstance(left, exp.Tuple) and isinstance(right, exp.Tuple):
                pairs = [*zip(left.expressions, right.expressions, strict=True)]
            for left, right in pairs:
                yield left, right
                yield right, left


def _names(one: Any, source: str, sources: dict[str, str]) -> bool:
    """Whether it is the user of that source."""
    if not isinstance(one, exp.Column) or one.name != USER:
        return False
    return one.table == source or (not one.table and len(sources) == 1)


def _is_said(one: Any, known: frozenset[str]) -> bool:
    if isinstance(one, exp.Column):
        return one.table in known
    return not one.find(exp.Select)

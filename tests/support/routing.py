"""Finds tables of users in a statement that does not say whose rows it wants.

An engine that spreads users over machines can send a statement to one of them only if
the statement names the user for each table.
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
    """Return the tables of users for which a part of the statement names no user.

    A part names the user of a table if its conditions say that the table's ``user_id``
    equals a value, the ``user_id`` of given values, or that of another table of the
    same part whose user is named.  Conditions of an outer part do not count, because
    such an engine sends a part that depends on the outer one to all its machines.
    """
    tables_without_user: list[str] = []
    for tree in sqlglot.parse(statement, read="postgres"):
        if isinstance(tree, exp.Command):
            raise ValueError(f"cannot be parsed: {statement[:200]}")
        if tree is not None:
            tables_without_user += _unrouted_in(tree, frozenset())
    return tables_without_user


def _unrouted_in(node: Any, outer: frozenset[str]) -> Iterator[str]:
    """Yield the tables without a user in a part of a statement and in its inner parts.

    outer: the names of the outer parts' sources that are values and no tables of users.
    """
    if isinstance(node, _PARTS):
        sources = dict(_sources(node))
        values = frozenset(
            name for name, table in sources.items() if table not in OF_USERS
        )
        outer |= values
        for name in sorted(sources.keys() - _with_user(node, sources, outer)):
            yield f"{sources[name]} {name}"
    for child in node.iter_expressions():
        yield from _unrouted_in(child, outer)


def _with_user(
    node: Any, sources: dict[str, str], values: frozenset[str]
) -> frozenset[str]:
    """Return the sources of a part whose user is named, together with ``values``."""
    equal_pairs = list(_equal(node))
    named = values
    for _ in sources:  # each pass may find the user of one more table
        for name in sources:
            for left, right in equal_pairs:
                if _is_user_of(left, name, sources) and _is_known(right, named):
                    named |= {name}
    return named


def _sources(node: Any) -> Iterator[tuple[str, str]]:
    """Yield the sources that a part reads or changes: (its name there, its table)."""
    sources = [join.this for join in node.args.get("joins") or ()]
    if not isinstance(node, exp.Select):
        sources.append(node.this)
    for key in ("from_", "from", "using"):
        argument = node.args.get(key)
        listed = argument if isinstance(argument, list) else [argument]
        for source in listed:
            if isinstance(source, exp.From):
                sources.append(source.this)
            elif source:
                sources.append(source)
    for source in sources:
        inner = source.this if isinstance(source, exp.Lateral) else source
        table = inner.name if isinstance(inner, exp.Table) else ""
        yield source.alias_or_name or table, table
        for join in source.args.get("joins") or ():
            yield join.this.alias_or_name, join.this.name


def _equal(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the pairs of expressions that a part's own conditions require to be equal.

    Each pair comes in both orders.
    """
    conditions = [join.args.get("on") for join in node.args.get("joins") or ()]
    where = node.args.get("where")
    conditions.append(where.this if where else None)
    while conditions:
        condition = conditions.pop()
        if isinstance(condition, exp.Paren):
            conditions.append(condition.this)
        elif isinstance(condition, exp.And):
            conditions += [condition.left, condition.right]
        elif isinstance(condition, exp.EQ):
            left = condition.left
            right = condition.right
            pairs = [(left, right)]
            if isinstance(left, exp.Tuple) and isinstance(right, exp.Tuple):
                pairs = [*zip(left.expressions, right.expressions, strict=True)]
            for left, right in pairs:
                yield left, right
                yield right, left


def _is_user_of(expression: Any, source: str, sources: dict[str, str]) -> bool:
    """Whether an expression is the ``user_id`` of that source."""
    if not isinstance(expression, exp.Column) or expression.name != USER:
        return False
    if expression.table:
        return bool(expression.table == source)
    return len(sources) == 1


def _is_known(expression: Any, named: frozenset[str]) -> bool:
    """Whether an expression is a value, or a column of a source whose user is named."""
    if isinstance(expression, exp.Column):
        return expression.table in named
    return not expression.find(exp.Select)

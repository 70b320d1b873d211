"""Sessions and their forks: a family is one witness, and a taint is inherited.

A fork goes on from its parent as it was: what the parent was steered by, and what it
was shown, is the fork's too.  And forks of one session are no independent sessions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from refold.projections.memory.shown import Shown


def families(shown: Iterable[Shown]) -> list[Shown]:
    """Each session with its family, and with what it inherits; in order of ids.

    Of a parent's taints all count, wherever they are; of what it was shown, that before
    the fork.
    """
    known = {one.session_id: one for one in shown}
    return [_member(one, known) for _, one in sorted(known.items())]


def untainted(shown: Iterable[Shown]) -> list[Shown]:
    """Those that may speak for something."""
    return [one for one in families(shown) if not one.taints]


def _member(one: Shown, known: dict[str, Shown]) -> Shown:
    if one.family:
        return one  # it was looked up already
    taints, advised = set(one.taints), dict(one.advised)
    family, (parent, at) = one.session_id, one.parent
    while parent and parent != family:
        family = parent
        older = known.get(parent)
        if older is None:
            break
        taints.update(older.taints)
        for name, seq in older.advised.items():
            if seq <= at:
                advised.setdefault(name, 0)
        parent, at = older.parent
    return replace(one, family=family, taints=tuple(sorted(taints)), advised=advised)

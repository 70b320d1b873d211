"""Items of memory in words, a line each: of their closed vocabulary, and no other."""

from __future__ import annotations

import re
from typing import Any, Final

from refold.projections.memory.item import Evidence, Item

# Ids are the program's, but a line must not become two, nor a sentence.
_PLAIN: Final = re.compile(r"[\w.:@/-]{1,64}")
_CITED: Final = 2


def said(item: Item) -> str:
    """What an item says."""
    content: dict[str, Any] = dict(item.content)
    match item.kind:
        case "path":
            return way(item)
        case "failure":
            return f"{content['tool']} fails: {content['reason']}"
        case "recovery":
            fix, tool = content["fix"], content["tool"]
            again = "again" if fix == tool else fix
            return f"{tool} fails: {content['reason']}, then {again}"
        case "check":
            return f"checked with {content['tool']}"
        case "effort":
            return f"{content['n']} reflections"
        case _:
            parts = (f"{name}: {value}" for name, value in content.items())
            return ", ".join(parts)


def way(item: Item) -> str:
    """A path: what was called after what, ``+`` for what was called at once."""
    path: Any = item.content["path"]
    return " → ".join("+".join(step) for step in path)


def advised(item: Item) -> str:
    """The item as advice for a model, with what speaks for it, on one line."""
    content: dict[str, Any] = dict(item.content)
    match item.kind:
        case "path" if item.against > item.confidence:
            text = f"Avoid: {way(item)} ({_rate(1 - (item.success or 0), item)} failed"
        case "path":
            text = f"Suggested tool path: {way(item)} ({_well(item)}"
        case "check":
            text = f"Verification: {content['tool']} ({_well(item)}"
        case "failure":
            text = (
                f"Avoid: {content['tool']} often fails with {content['reason']} "
                f"(in {item.sessions} sessions"
            )
        case "recovery":
            fix = (
                "trying again" if content["fix"] == content["tool"] else content["fix"]
            )
            text = (
                f"If {content['tool']} fails with {content['reason']}: {fix} "
                f"({_well(item)}"
            )
        case _:
            text = f"Reflections: {content['n']} were enough ({_well(item)}"
    return f"- {text}; {cited(item)})"


def cited(item: Item) -> str:
    """The item's id, and sessions and seqs that show it."""
    places = [f"{one.session_id} #{one.seqs[0]}-{one.seqs[-1]}" for one in shown(item)]
    return ", ".join((item.memory_id, *places))


def shown(item: Item) -> list[Evidence]:
    """What of its evidence is cited."""
    able = [o for o in item.evidence if o.seqs and _PLAIN.fullmatch(o.session_id)]
    return able[:_CITED]


def _well(item: Item) -> str:
    return f"{_rate(item.success or 0.0, item)} went well"


def _rate(part: float, item: Item) -> str:
    return f"{part:.0%} of {item.sessions} sessions"

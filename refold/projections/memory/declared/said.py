"""What of a profile may be said to a model: a line of advice an item, with evidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from refold.domain.certificate import timestamp
from refold.projections.memory.advice import Line
from refold.projections.memory.declared.drawing import of_kind, standing
from refold.projections.memory.declared.profile import Profile
from refold.projections.memory.item import Item
from refold.projections.memory.telling import cited

# Of each section, the surest; of mistakes, the newest.
MOST: Final = 5


def lines(profile: Profile, now: int) -> list[Line]:
    """The profile as advice, the most useful first, at most ``MOST`` lines a section.

    Nothing that too few sessions show, that is stale, or that has expired at ``now``.
    A mistake is one event: it is said only as an example of an error type or of a weak
    topic that may be said.  A preference is the user's own word and needs no witnesses.
    """
    items = [one for one in profile.items if one.expires_at > now]
    sure = [one for one in items if one.established]
    sections: list[Iterable[Line]] = [
        _told("Preference", of_kind(items, "preference")),
        _told("Weak topic", standing(sure, "weak")),
        _told("Common error type", of_kind(sure, "error")),
        _areas(profile, {one.memory_id for one in sure}),
        _told("Learning progress", of_kind(sure, "progress")),
        _told("Strong topic", standing(sure, "strong")),
        _told("Recent mistake", _examples(items, sure)),
    ]
    return [line for section in sections for line in islice(section, MOST)]


def _told(section: str, items: Iterable[Item]) -> Iterator[Line]:
    for one in items:
        text = f"- {section}: {told(one)}; {cited(one)}"
        yield Line(text, one.memory_id)


def _areas(profile: Profile, sure: set[str]) -> Iterator[Line]:
    for area in profile.improvement_areas:
        if sure.issuperset(area.because):
            text = f"- Improvement area: {area.name}; {', '.join(area.because)}"
            yield Line(text, area.because[0])


def told(item: Item) -> str:
    """What an item of declarative memory says, in names and numbers."""
    content: dict[str, Any] = dict(item.content)
    match item.kind:
        case "error":
            often = f"{content['count']}× in {item.sessions} sessions"
            return f"{content['error']}, {often}"
        case "topic":
            items = f"over {content['verdicts']} items"
            return f"{place(content)}, {content['rate']:.0%} right {items}"
        case "progress":
            return f"{content['subject']} {content['level']:.0%}"
        case "mistake":
            about = (content["item_id"], place(content), content["error"])
            return " ".join((timestamp(item.updated_at)[:10], *filter(None, about)))
        case _:
            value = content["value"]
            shown = str(value).lower() if isinstance(value, bool) else value
            return f"{content['key']} = {shown}"


def place(content: dict[str, Any]) -> str:
    """The topic, and its subject if it has one."""
    topic, subject = content["topic"], content["subject"]
    return f"{topic} ({subject})" if topic and subject else topic or subject


def _examples(items: Iterable[Item], sure: list[Item]) -> Iterator[Item]:
    errors = {one.content["error"] for one in of_kind(sure, "error")}
    weak = {(i.content["subject"], i.content["topic"]) for i in standing(sure, "weak")}
    for one in of_kind(items, "mistake"):
        where = one.content["subject"], one.content["topic"]
        if one.content["error"] in errors or where in weak:
            yield one

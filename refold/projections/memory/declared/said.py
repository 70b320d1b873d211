"""What of a profile may be said to a model: a line of advice an item, with evidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from refold.domain.certificate import timestamp
from refold.projections.memory.advice import Line
from refold.projections.memory.declared.drawing import of_kind, standing
from refold.projections.memory.declared.profile import Profile
from refold.projections.memory.item import INDEPENDENT, Item
from refold.projections.memory.telling import cited, shown

# Of each section, the surest; of mistakes, the newest.
MOST: Final = 5


def lines(profile: Profile, now: int) -> list[Line]:
    """The profile as advice, the most useful first, at most ``MOST`` lines a section.

    Nothing that too few sessions show, that is stale, or that has expired at ``now``.
    A mistake is one event: it is said only as an example of an error type or of a weak
    topic that may be said, and as surely.  A preference is the user's own word and
    needs no witnesses.
    """
    items = [one for one in profile.items if one.expires_at > now]
    sure = [one for one in items if one.established]
    sections: list[Iterable[Line]] = [
        _told("Preference", of_kind(items, "preference")),
        _told("Weak topic", standing(sure, "weak")),
        _told("Common error type", of_kind(sure, "error")),
        _areas(profile, {one.memory_id: one for one in sure}),
        _told("Learning progress", of_kind(sure, "progress")),
        _told("Strong topic", standing(sure, "strong")),
        _mistakes(items, sure),
    ]
    return [line for section in sections for line in islice(section, MOST)]


def why_not(profile: Profile, item: Item, *, now: int, threshold: float) -> list[str]:
    """Why an item of the profile is not said to a model; nothing if it may be."""
    found = [one for one in lines(profile, now) if one.memory_id == item.memory_id]
    if found:
        sure = max(line.sure for line in found)
        low = f"below the threshold: {sure:.2f} of {threshold:.2f}"
        return [low] if sure < threshold else []
    reasons = list(_unfit(item))
    if item.kind == "mistake" and not _as_examples(profile.items, [item]):
        reasons.append("no example of an error type or topic that may be said")
    return reasons or [f"{MOST} of its kind come first"]


def _unfit(item: Item) -> Iterator[str]:
    if item.kind in ("preference", "mistake") or item.established:
        return
    if item.tainted:
        yield f"tainted: of its sessions {item.tainted_sessions} may not speak"
    if item.stale:
        yield "stale: something newer says the contrary"
    if item.sessions < INDEPENDENT and not item.tainted:
        yield "too few sessions show it"


def _told(section: str, items: Iterable[Item]) -> Iterator[Line]:
    for one in items:
        yield _line(f"{section}: {told(one)}", [one], one.confidence)


def _areas(profile: Profile, sure: Mapping[str, Item]) -> Iterator[Line]:
    for area in profile.improvement_areas:
        because = [sure[name] for name in area.because if name in sure]
        if len(because) == len(area.because):
            surest = max(one.confidence for one in because)
            yield _line(f"Improvement area: {area.name}", because, surest)


def _mistakes(items: Sequence[Item], sure: Sequence[Item]) -> Iterator[Line]:
    for one, surest in _as_examples(sure, of_kind(items, "mistake")):
        yield _line(f"Recent mistake: {told(one)}", [one], surest)


def _line(text: str, because: Sequence[Item], sure: float) -> Line:
    """A line that names what it comes from; it goes by the first of that."""
    named = ", ".join(cited(one) for one in because)
    sessions = [place.session_id for one in because for place in shown(one)]
    return Line(f"- {text}; {named}", because[0].memory_id, sure, sessions)


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


def _as_examples(
    items: Sequence[Item], mistakes: Iterable[Item]
) -> list[tuple[Item, float]]:
    """Mistakes of an error type or in a weak topic that may be said, and how surely."""
    sure = [one for one in items if one.established]
    errors = {one.content["error"]: one.confidence for one in of_kind(sure, "error")}
    weak = {_where(one): one.confidence for one in standing(sure, "weak")}
    found = []
    for one in mistakes:
        of = (errors.get(one.content["error"]), weak.get(_where(one)))
        known = [confidence for confidence in of if confidence is not None]
        if known:
            found.append((one, max(known)))
    return found


def _where(item: Item) -> tuple[Any, Any]:
    return item.content["subject"], item.content["topic"]
